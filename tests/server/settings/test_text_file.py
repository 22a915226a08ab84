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
def test_another_encoding_is_named(tmp_path: Path, flag: str) -> None:
    reader, text = READERS[flag]
    (tmp_path / "file").write_text(text, encoding="utf-16")
    with pytest.raises(SettingsError, match=f"^{flag}.* is not UTF-8 text; save it as UTF-8$"):
        reader(str(tmp_path / "file"))


@pytest.mark.parametrize("flag", ["--api-key-file", "--config", "--jobs-webhook-secrets"])
def test_a_pointer_of_git_lfs_is_named(tmp_path: Path, flag: str) -> None:
    (tmp_path / "file").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(SettingsError, match=f"^{flag}.* is a pointer of Git LFS; git lfs pull"):
        READERS[flag][0](str(tmp_path / "file"))
