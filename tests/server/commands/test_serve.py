"""What the log says at a start of who may ask, and how a model wants to be asked."""

import json
import logging
import socket
from pathlib import Path

import pytest

from server.commands.running import Prepared, _log_models_and_keys, prepare
from server.frontend.start import Access
from server.settings.api_keys import ApiKey, digest
from server.settings.flag import SettingsError
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from server.supervisor.listeners import Listeners
from server.supervisor.model_plan import plan_models
from server.supervisor.ports import Ports
from tests.engine.folder_files import change
from tests.engine.model.detection import shapes
from tokenizer_pool import cl100k

ANYONE, EMPTY = "anyone who can reach", "API_KEY is empty"


@pytest.mark.holds("API keys")
@pytest.mark.parametrize(
    ("host", "variable", "has_keys", "warned"),
    [
        ("127.0.0.1", None, False, []),
        ("0.0.0.0", None, False, [ANYONE]),
        ("0.0.0.0", None, True, []),
        ("0.0.0.0", "", False, [EMPTY, ANYONE]),
        ("127.0.0.1", "", False, [EMPTY]),
        ("127.0.0.1", "sesame", True, []),
    ],
)
def test_a_server_that_is_open_to_others_says_so(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    host: str,
    variable: str | None,
    has_keys: bool,
    warned: list[str],
) -> None:
    monkeypatch.delenv("API_KEY", raising=False)
    if variable is not None:
        monkeypatch.setenv("API_KEY", variable)
    keys = [ApiKey("team", digest(b"sesame"))] if has_keys else []

    with caplog.at_level(logging.WARNING), socket.create_server((host, 0)) as http:
        ports = Ports(Listeners([http]), monitor=None)
        _log_models_and_keys(Prepared([], Access(keys=keys), cache_dir=None, ports=ports), scheme="http")

    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == len(warned)
    assert all(words in line for words, line in zip(warned, lines, strict=True))


def test_keys_that_nothing_reads_are_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shapes.embedding(tmp_path)
    change(tmp_path / "config.json", made_up=1, is_causal=True)
    asked = ModelSettings(model_id=str(tmp_path), engine="fake", trust_config_key=("is_causal",))
    plans = plan_models(Settings(models=(asked,)))

    with caplog.at_level(logging.INFO), socket.create_server(("127.0.0.1", 0)) as http:
        ports = Ports(Listeners([http]), monitor=None)
        _log_models_and_keys(Prepared(plans, Access(), cache_dir=None, ports=ports), scheme="http")

    assert "config.json has keys that transformers' bert does not read: made_up" in caplog.text
    assert "--trust-config-key: is_causal" in caplog.text


@pytest.mark.holds("Prompts")
@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        ({"query": "Q: "}, ['the-model: prompts query: send queries with "input_type": "query", which puts \'Q: \'']),
        ({"query": "", "document": ""}, []),
        ({}, []),
    ],
    ids=["one side", "empty", "none"],
)
def test_a_start_says_which_prompts_a_model_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, prompts: dict[str, str], said: list[str]
) -> None:
    shapes.embedding(tmp_path)
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    asked = ModelSettings(model_id=str(tmp_path), served_model_name="the-model", engine="fake")
    plans = plan_models(Settings(models=(asked,)))

    with caplog.at_level(logging.INFO), socket.create_server(("127.0.0.1", 0)) as http:
        ports = Ports(Listeners([http]), monitor=None)
        _log_models_and_keys(Prepared(plans, Access(), cache_dir=None, ports=ports), scheme="http")

    lines = [record.getMessage() for record in caplog.records if "input_type" in record.getMessage()]
    assert [line[: len(words)] for line, words in zip(lines, said, strict=True)] == said
    assert all(line.endswith("(source: config_sentence_transformers.json)") for line in lines)


@pytest.mark.holds("Token ids")
def test_a_start_without_the_vocabulary_that_it_needs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cl100k, "installed", lambda: None)
    with pytest.raises(SettingsError, match=r"^--tiktoken-vocabulary: .*extra is not installed .* embedline\[cl100k\]"):
        prepare(Settings(token_ids="cl100k"))
    with pytest.raises(SettingsError, match=r"^--tiktoken-vocabulary: .*can't be read"):
        prepare(Settings(token_ids="cl100k", tiktoken_vocabulary=str(tmp_path / "nowhere")))
