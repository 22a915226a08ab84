"""Text files that flags name, as editors save them."""

import codecs
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embedline.bench.requests import read_texts
from server.features.jobs.webhooks import read_secrets
from server.settings import precedence
from server.settings.api_keys import api_keys
from server.settings.flag import SettingsError
from server.supervisor import model_files

SECRET = "whsec_" + "QUJD" * 10
RANGES = "[[-1, -1], [1, 1]]"
READERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "--api-key-file": (lambda path: [key.digest for key in api_keys((), path)], "name:secret\n# more\n"),
    "--config": (precedence.parsed, 'port = 9000\nmodel-id = "a/model"\n'),
    "--jobs-webhook-secrets": (read_secrets, SECRET),
    "--int8-ranges": (lambda path: model_files._ranges_in(Path(path)).tolist(), RANGES),
    "--texts": (lambda path: read_texts(Path(path)), "first\nsecond\n"),
}


@pytest.mark.parametrize("flag", READERS)
def test_a_byte_order_mark_changes_nothing(tmp_path: Path, flag: str) -> None:
    reader, text = READERS[flag]
    plain, marked = tmp_path / "plain.json", tmp_path / "marked.json"
    plain.write_text(text)
    marked.write_bytes(codecs.BOM_UTF8 + text.encode())
    assert reader(str(marked)) == reader(str(plain))


@pytest.mark.parametrize("flag", ["--api-key-file", "--config", "--jobs-webhook-secrets"])
@pytest.mark.parametrize(
    ("text", "encoding", "words"),
    [
        (None, "utf-16", "is not UTF-8 text; save it as UTF-8$"),
        (
            "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
            "utf-8",
            "is a pointer of Git LFS; git lfs",
        ),
    ],
    ids=["another encoding", "a pointer of Git LFS"],
)
def test_what_is_no_such_text_is_named(tmp_path: Path, flag: str, text: str | None, encoding: str, words: str) -> None:
    reader, good = READERS[flag]
    (tmp_path / "file").write_text(text or good, encoding=encoding)
    with pytest.raises(SettingsError, match=f"^{flag}.* {words}"):
        reader(str(tmp_path / "file"))
