"""`--config`: what a file may say, what outranks it, and one line that names file and key for what is wrong."""

from collections.abc import Callable
from pathlib import Path

import pytest

from server.settings.flag import SettingsError
from server.settings.model import ModelSettings
from server.settings.precedence import settings_from
from server.settings.settings import Settings

Read = Callable[..., Settings]
TWO_MODELS = """
port = 1
engine = "fake"
max-batch-tokens = "auto"

[[model]]
model-id = "one"
fake-fault = ["exit@batch:1"]

[[model]]
model_id = "org/two"
served-model-name = "two"
engine = "transformers"
max-batch-tokens = 512
auto-truncate = false
"""


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Settings of a file with this text, with words of the command line and variables."""

    def settings(text: str, words: dict[str, str] | None = None, **variables: str) -> Settings:
        path = tmp_path / "embedline.toml"
        path.write_text(text)
        return settings_from(words or {}, variables, config=str(path))

    return settings


def test_one_model(read: Read) -> None:
    settings = read('model-id = "a"\nport = 5\nbulk-max-wait = 3\ncors_allow_origin = ["*"]\nmetrics-auth = true')

    assert settings == Settings(
        models=(ModelSettings(model_id="a"),),
        port=5,
        bulk_max_wait=3.0,
        cors_allow_origin=("*",),
        metrics_auth=True,
    )


def test_several_models(read: Read) -> None:
    assert read(TWO_MODELS) == Settings(
        models=(
            ModelSettings(model_id="one", engine="fake", fake_fault=("exit@batch:1",)),
            ModelSettings(
                model_id="org/two",
                served_model_name="two",
                engine="transformers",
                max_batch_tokens=512,
                auto_truncate=False,
            ),
        ),
        port=1,
    )


def test_the_command_line_outranks_the_environment_and_that_the_file(read: Read) -> None:
    text = 'port = 1\nfrontends = 1\npayload-limit = 1\nhf-token = "file"'

    settings = read(text, {"port": "3"}, PORT="2", EMBEDLINE_FRONTENDS="2", HF_TOKEN="")

    assert (settings.port, settings.frontends, settings.payload_limit, settings.hf_token) == (3, 2, 1, "file")


def test_what_outranks_the_file_holds_for_every_model(read: Read) -> None:
    models = read(TWO_MODELS, {"engine": "fake"}, MAX_BATCH_TOKENS="77").models

    assert [(model.engine, model.max_batch_tokens) for model in models] == [("fake", 77), ("fake", 77)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("port = ", "is not TOML"),
        ("x = " + "[" * 5000, "is not TOML"),
        ("prot = 1", "unknown key 'prot'"),
        ('config = "another.toml"', "unknown key 'config'"),
        ("[server]\nport = 1", "unknown key 'server'"),
        ('port = "1"', "port must be a whole number"),
        ("port = true", "port must be a whole number"),
        ("port = 70000", "port must be at most 65535"),
        ("auto-truncate = 1", "auto-truncate must be true or false"),
        ("api-key = 'one'", "api-key must be a list of texts"),
        ("api-key = [1]", "api-key must be a list of texts"),
        ("model-id = 5", "model-id must be text"),
        ("max-batch-tokens = 'all'", "max-batch-tokens must be a whole number or auto"),
        ("hf-token = 'a'\nhf_token = 'b'", "hf_token is given twice"),
        ("max-input-length = 9\nmax-model-len = 9", "max-model-len is given twice"),
        ("model = 'a'", "models are given as [[model]] tables"),
        ("[model]\nmodel-id = 'a'", "models are given as [[model]] tables"),
        ("[[model]]\nport = 1", "[[model]] 1: unknown key 'port'"),
        ("[[model]]\nmodel-id = 'a'\n[[model]]\ndtype = 'x'", "[[model]] 2: dtype must be one of"),
        ("[[model]]\nengine = 'fake'", "[[model]] 1: model-id is missing"),
        ("[[model]]\nmodel-id = ''", "[[model]] 1: --model-id must not be empty"),
        ("[[model]]\nmodel-id = 'a'\n[[model]]\nmodel-id = 'a'", "--served-model-name must differ between models"),
        ("[[model]]\nmodel-id = 'a'\ndefault-prompt = 'a'\ndefault-prompt-name = 'b'", "[[model]] 1: --default-prompt"),
        ('jobs = "a\\u0000b"', "jobs must not have a NUL"),
        ('api-key = ["a\\u0000b"]', "api-key must not have a NUL"),
        ("revision = 'r'\n[[model]]\nmodel-id = 'a'", "--revision is for one model"),
    ],
)
def test_what_is_wrong_is_one_line_that_names_the_file(read: Read, tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read(text)

    message = str(refused.value)
    assert str(tmp_path / "embedline.toml") in message
    assert words in message
    assert "\n" not in message


def test_one_models_own_flags_are_not_for_several(read: Read) -> None:
    for words, variables in ({"model_id": "a"}, {}), ({}, {"SERVED_MODEL_NAME": "a"}):
        with pytest.raises(SettingsError, match="is for one model"):
            read(TWO_MODELS, words, **variables)


@pytest.mark.parametrize("content", [None, b"\xff", b"#" * 2_000_000])
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "c.toml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(SettingsError) as refused:
        settings_from({}, {}, config=str(path))

    assert str(path) in str(refused.value)
