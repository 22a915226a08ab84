"""Every flag and variable of text-embeddings-inference's router is taken, in each of its forms."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.model import model_folder
from engine.model.model_folder import ModelFolder
from engine.types import ModelError
from server.settings.model import ModelSettings
from server.settings.settings import Settings, server_flags
from server.settings.tei_flags import check_dense_path, warn_of_flags_without_effect
from tests.engine.folder_files import write
from tests.server.settings.cli_runs import VARIABLES as VARIABLES_READ
from tests.server.settings.cli_runs import Run

# Of router/src/main.rs, at commit 0d124dc: words, the field they set here, its value.
WORDS = """
--model-id org/model --revision refs/pr/2 --tokenization-workers 3 --dtype float16 --served-model-name name
--pooling last-token --max-concurrent-requests 512 --max-batch-tokens 16384 --max-batch-requests 64
--max-client-batch-size 32 --default-prompt-name query --dense-path 2_Dense --hf-token hf_x --hostname 0.0.0.0
--port 80 --uds-path /tmp/text-embeddings-inference-server --huggingface-hub-cache /data --payload-limit
2000000 --otlp-endpoint http://localhost:4317 --otlp-service-name text-embeddings-inference.server
--prometheus-port 9000
"""
FORMS: list[tuple[list[str], str, Any]] = [
    *(([flag, word], flag[2:].replace("-", "_"), None) for flag, word in zip(*[iter(WORDS.split())] * 2, strict=True)),
    (["--default-prompt", "query: "], "default_prompt", "query: "),
    (["--model-id=org/model"], "model_id", "org/model"),
    *((["--dtype", word], "dtype", word) for word in ("float32", "bfloat16")),
    *((["--pooling", word], "pooling", word) for word in ("cls", "mean", "splade")),
    (["--auto-truncate"], "auto_truncate", True),
    (["--auto-truncate", "true"], "auto_truncate", True),
    (["--auto-truncate", "false"], "auto_truncate", False),
    (["--auto-truncate=false"], "auto_truncate", False),
    (["--hf-api-token", "hf_x"], "hf_token", "hf_x"),
    (["-p", "80"], "port", 80),
    (["-p80"], "port", 80),
    (["--api-key", "sesame"], "api_key", ("sesame",)),
    (["--json-output"], "json_output", True),
    (["--disable-spans"], "disable_spans", True),
    (["--cors-allow-origin", "https://a.example"], "cors_allow_origin", ("https://a.example",)),
    (["--cors-allow-origin", "*", "--cors-allow-origin", "https://a"], "cors_allow_origin", ("*", "https://a")),
]
VARIABLES: list[tuple[str, str, str, Any]] = [
    ("AUTO_TRUNCATE", "false", "auto_truncate", False),
    ("JSON_OUTPUT", "true", "json_output", True),
    ("JSON_OUTPUT", "y", "json_output", True),
    ("DISABLE_SPANS", "1", "disable_spans", True),
    ("CORS_ALLOW_ORIGIN", "*", "cors_allow_origin", ("*",)),
    ("HF_API_TOKEN", "hf_x", "hf_token", "hf_x"),
    ("API_KEY", "sesame", "api_key", ("sesame",)),
    ("LOG_LEVEL", "WARN", "log_level", "warn"),
    ("LOG_LEVEL", "TRACE", "log_level", "trace"),
    ("PORT", "80", "port", 80),
]
# Its variables are its flags' names in capitals. Docker sets HOSTNAME to the container's name, so it is not read here.
NOT_READ = {"HOSTNAME"}


def value_of(settings: Settings, name: str) -> Any:
    return getattr(settings if hasattr(settings, name) else settings.models[0], name)


@pytest.mark.holds("Containers")
@pytest.mark.parametrize(
    ("words", "name", "value"), FORMS, ids=lambda part: " ".join(part) if type(part) is list else ""
)
def test_a_flag_in_this_form(run: Run, words: list[str], name: str, value: Any) -> None:
    last = words[-1]
    expected = (int(last) if last.isdecimal() else last) if value is None else value
    assert value_of(run.settings(*words), name) == expected


@pytest.mark.parametrize(("variable", "word", "name", "value"), VARIABLES)
def test_a_variable(run: Run, monkeypatch: pytest.MonkeyPatch, variable: str, word: str, name: str, value: Any) -> None:
    monkeypatch.setenv(variable, word)
    assert value_of(run.settings(), name) == value


@pytest.mark.holds("Containers")
def test_every_flags_variable_is_read() -> None:
    theirs = {words[0].partition("=")[0] for words, _, _ in FORMS if words[0].startswith("--")}
    assert {name[2:].replace("-", "_").upper() for name in theirs} - {*VARIABLES_READ} == NOT_READ


def test_a_whole_start_command(run: Run) -> None:
    words = "--model-id org/m --auto-truncate --json-output --dtype float16 --auto-truncate false -p 3000"
    settings = run.settings("--hostname", "0.0.0.0", *words.split())
    (model,) = settings.models
    assert (model.model_id, model.dtype, model.auto_truncate) == ("org/m", "float16", False)
    assert (settings.json_output, settings.port, settings.hostname) == (True, 3000, "0.0.0.0")


@pytest.mark.holds("Containers")
def test_what_has_no_effect_is_said_and_its_value_is_not(caplog: pytest.LogCaptureFixture) -> None:
    given = Settings(uds_path="/secret", otlp_endpoint="http://secret", otlp_service_name="secret", disable_spans=True)
    with caplog.at_level(logging.WARNING):
        warn_of_flags_without_effect(given)

    said = [record.getMessage() for record in caplog.records]
    without = [flag.long_name for flag in server_flags() if flag.group == "Without effect"]
    assert [line.partition(" has no effect here: ")[0] for line in said] == without
    assert "secret" not in " ".join(said)


def test_what_has_no_effect_on_several_models_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    models = (
        ModelSettings(attention="tiles", served_model_name="a"),
        ModelSettings(attention="auto", served_model_name="b"),
    )
    with caplog.at_level(logging.WARNING):
        warn_of_flags_without_effect(Settings(models=models))
    [record] = caplog.records
    assert record.getMessage().startswith("--attention has no effect here: ")


def test_defaults_are_not_spoken_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        warn_of_flags_without_effect(Settings())
    assert caplog.records == []


@pytest.fixture
def folder(tmp_path: Path) -> ModelFolder:
    """A model with one Dense module."""
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense_1024": "Dense"}
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(kinds.items())
    ]
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 9}
    write(tmp_path / "config.json", {"model_type": "bert", **sizes, "max_position_embeddings": 16})
    write(tmp_path / "modules.json", modules)
    write(tmp_path / "1_Pooling" / "config.json", {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": True})
    dense = {"in_features": 8, "out_features": 4, "bias": True, "activation_function": "torch.nn.Identity"}
    write(tmp_path / "2_Dense_1024" / "config.json", dense)
    return model_folder.read(tmp_path, needs_weights=False)


@pytest.mark.parametrize("asked", [None, "2_Dense_1024", "2_Dense_1024/", "./2_Dense_1024"])
def test_the_models_own_dense_module_is_taken(
    folder: ModelFolder, asked: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    check_dense_path(asked, folder)
    assert caplog.records == []


@pytest.mark.holds("Containers")
def test_another_dense_module_is_refused(folder: ModelFolder) -> None:
    with pytest.raises(ModelError, match=r"^--dense-path names another .*2_Dense_1024.*leave the flag out$"):
        check_dense_path("2_Dense_768", folder)


@pytest.mark.parametrize("number", [0, 2])
def test_where_there_is_not_one_it_is_passed_over(
    folder: ModelFolder, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    check_dense_path("2_Dense", replace(folder, steps=folder.steps * number))
    assert f"the model has {number} Dense modules" in caplog.text
