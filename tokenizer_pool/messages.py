"""The messages of a tokenizer worker: START, and the frames between it and a frontend.

The worker sends READY on each connection it accepts. Under the same id it answers TOKENIZE with TOKENIZED, DETAIL with
DETAILED, DECODE with DECODED, CHAT with RENDERED and SCAN with SCANNED, or any of them with REFUSED. What the first
five and their answers carry is in `tasks`.
"""

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from wire.frames import Buffer
from wire.pairs import ChatPairs

TOKENIZE = 0x0200
TOKENIZED = 0x0201
REFUSED = 0x0202
READY = 0x0203  # no payload: a connection opens before its peer has accepted it, this says that the peer lives
DETAIL = 0x0204
DETAILED = 0x0205
DECODE = 0x0206
DECODED = 0x0207
CHAT = 0x0208
RENDERED = 0x0209
SCAN = 0x020A
SCANNED = 0x020B

_REFUSED = struct.Struct("<BiII")  # reason, index of the text in its piece (-1 = none), special tokens, tokens allowed


class Truncation(enum.IntEnum):
    """The end of a text that is cut off where it is too long; NONE refuses it."""

    NONE = 0
    RIGHT = 1
    LEFT = 2


class TextRefusal(enum.IntEnum):
    """Why there are no ids for a text, or none for the model in a given list of ids, or no text for the ids."""

    TOO_LONG = 0  # only with Truncation.NONE
    FAILED = 1  # the tokenizer could not take the text
    EMPTY = 2  # no tokens: a given list is empty, or the text is blank and the model has no special tokens
    OUT_OF_VOCABULARY = 3  # an id that the model has no row for: a given one, or of an added token in the text
    TOO_MUCH = 4  # all items of a request together: more than it may have for details, or to be decoded
    NO_ROOM = 5  # the special tokens alone are as many as a text may have in this request
    NO_TEMPLATE = 6  # the model has no chat template
    TOO_LARGE = 7  # a text has not enough tokens as far as it is read
    UNCUT = 8  # a text has no place to cut for too long, and not enough tokens before
    UNUSED = 9  # a chat comes with a name, or a pair with an instruction, that the model's template does not use


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSpec:
    """The facts about a model that a worker needs."""

    folder: str  # a local model folder with a tokenizer.json
    max_seqlen: int  # tokens of a text, special tokens included
    do_lower_case: bool = False  # of sentence_bert_config.json: lower-case before anything else
    vocab_size: int | None = None  # rows of the model's embedding table; None = ids are not checked
    template: tuple[str, ...] = ()  # parts that a pair is put into, see engine.model.tasks.PairTemplate; () = none
    chat_pairs: ChatPairs | None = None  # pairs are put into the folder's chat template; None = they are not
    instruction: str = ""  # the model's own, which its template may have no place for
    chat_of_texts: ChatPairs | None = None  # texts are, and it must leave them as they are
    as_it_stands: bool = False  # tokenizer.json alone says all, and there are no special tokens: static embeddings
    marks_prompts: bool = False  # tokens of a prompt are marked as such, see wire.parts


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerStart:
    """START for a tokenizer worker."""

    listener_fd: int | None  # of its listening Unix socket; None = it is in the process of its only frontend
    models: list[str]  # names
    tokenizers: list[TokenizerSpec]  # of the same models


class TextRefused(Exception):
    """An item has no answer; `index` is its place in the piece or request, -1 where it is not known.

    TOO_LONG carries what is allowed, NO_ROOM the number of special tokens too. TOO_MUCH carries the characters that all
    items of a request may have together, if these are too many.
    """

    def __init__(
        self, reason: TextRefusal, index: int, *, num_tokens: int = 0, max_tokens: int = 0, max_chars: int = 0
    ) -> None:
        super().__init__(f"{reason.name} at index {index}")
        self.reason = reason
        self.index = index
        self.num_tokens = num_tokens
        self.max_tokens = max_tokens
        self.max_chars = max_chars

    def moved(self, places: Sequence[int]) -> Self:
        """Make this the refusal of a request that has the items at these places."""
        if self.index >= 0:
            self.index = places[self.index]
        return self


def encode_refused(refused: TextRefused) -> list[Buffer]:
    """REFUSED."""
    return [_REFUSED.pack(refused.reason, refused.index, refused.num_tokens, refused.max_tokens)]


def decode_refused(payload: memoryview) -> TextRefused:
    """The inverse of `encode_refused`."""
    reason, index, num_tokens, max_tokens = _REFUSED.unpack(payload)
    return TextRefused(TextRefusal(reason), index, num_tokens=num_tokens, max_tokens=max_tokens)
