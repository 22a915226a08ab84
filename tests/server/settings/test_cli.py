"""The command line: the list of flags, where each is read from, and one line for what is wrong."""

import re
from pathlib import Path

import pytest

from server.settings.flag import SettingsError
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from tests.server.settings.cli_runs import Run


def test_without_arguments_everything_has_its_default(run: Run) -> None:
    assert run.settings() == Settings()


def test_flags_and_variables(run: Run) -> None:
    run.environment(
        PORT="1234", AUTO_TRUNCATE="false", MODEL_ID="from/the-environment", EMBEDLINE_INTERACTIVE_MAX_WAIT="2.5"
    )

    settings = run.settings("--model-id", "from/a-flag", "--fake-fault", "exit@load", "--fake-fault", "nan@token:9")

    (model,) = settings.models
    assert model.model_id == "from/a-flag"  # a flag outranks a variable
    assert (settings.port, model.auto_truncate, settings.interactive_max_wait) == (1234, False, 2.5)
    assert model.fake_fault == ("exit@load", "nan@token:9")
    assert run.settings("-p", "0", "--host", "::1", "--auto-truncate") == Settings(
        port=0, hostname="::1", models=(ModelSettings(model_id="from/the-environment"),), interactive_max_wait=2.5
    )


def test_other_names_for_the_same(run: Run) -> None:
    run.environment(HF_API_TOKEN="hf_other", EMBEDLINE_MAX_MODEL_LEN="64")

    settings = run.settings("--pooling-method", "CLS")

    assert settings.hf_token == "hf_other"
    assert (settings.models[0].max_input_length, settings.models[0].pooling) == (64, "cls")


def test_lists_and_switches(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "one, two")
    monkeypatch.setenv("EMBEDLINE_METRICS_AUTH", "1")
    monkeypatch.setenv("MAX_BATCH_TOKENS", "")  # as compose files leave it

    settings = run.settings("--cors-allow-origin", "https://a.example", "--cors-allow-origin", "*", "--json-output")

    assert settings.api_key == ("one", "two")
    assert settings.cors_allow_origin == ("https://a.example", "*")
    assert (settings.metrics_auth, settings.json_output, settings.strict_model_name) == (True, True, False)
    assert settings.models[0].max_batch_tokens is None
    assert run.settings("--max-batch-tokens", "99").models[0].max_batch_tokens == 99
    assert run.settings("--max-batch-tokens", "auto", "--no-metrics-auth").metrics_auth is False


def test_several_models(run: Run) -> None:
    """What is each one's own goes by its place; the rest holds for all, and MODEL_ID is one model."""
    models = ["--model-id", "a", "--served-model-name", "one", "--model-id", "b", "--served-model-name", "two"]
    run.environment(MODEL_ID="c,d")

    served = run.settings(*models, "--dtype", "float32").models
    with_revisions = run.settings("--model-id", "a", "--model-id", "b", "--revision", "v1", "--revision", "v2").models

    assert served == (
        ModelSettings(model_id="a", served_model_name="one", dtype="float32"),
        ModelSettings(model_id="b", served_model_name="two", dtype="float32"),
    )
    assert [(model.model_id, model.revision) for model in with_revisions] == [("a", "v1"), ("b", "v2")]
    assert [model.name for model in run.settings().models] == ["c,d"]


def test_a_model_needs_no_flag(run: Run) -> None:
    run.environment(MODEL_ID="from/the-environment")

    assert run.settings("org/a").models == (ModelSettings(model_id="org/a"),)
    assert run.settings("org/a", "--revision", "v1", "--dtype", "float32").models == (
        ModelSettings(model_id="org/a", revision="v1", dtype="float32"),
    )
    assert run.settings("org/a", "--model-id", "org/a") == run.settings("org/a")


@pytest.mark.parametrize("command", ["serve", "doctor"])
@pytest.mark.parametrize("flags", [["b"], ["a", "b"]])
def test_two_models_of_which_one_has_no_flag_are_refused(
    run: Run, command: str, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.exit_code(command, "a", *(word for name in flags for word in ("--model-id", name))) == 2
    assert capsys.readouterr().err == (
        "embedline: --model-id names another model than 'a', which stands without a flag: give one of the two; for "
        "several models repeat --model-id\n"
    )


def test_doctor_takes_a_model_without_a_flag(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(
        "server.commands.doctor.doctor", lambda settings, *, as_json: asked.append(settings.models[0].model_id)
    )
    for words in (["org/a"], ["--model-id", "org/b"]):
        assert not run.exit_code("doctor", *words)
    assert asked == ["org/a", "org/b"]


@pytest.mark.parametrize(
    ("word", "dtype"),
    [("fp32", "float32"), ("float", "float32"), ("bf16", "bfloat16"), ("FP16", "float16"), ("half", "float16")],
)
def test_a_dtype_has_the_names_that_others_give_it(
    run: Run, word: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "models.toml"
    file.write_text(f'[[model]]\nmodel-id = "a"\ndtype = "{word.lower()}"\n[[model]]\nmodel-id = "b"')

    assert run.settings("--dtype", word).models[0].dtype == dtype
    assert [model.dtype for model in run.settings("--config", str(file)).models] == [dtype, "auto"]
    monkeypatch.setenv("DTYPE", word)
    assert run.settings().models[0].dtype == dtype


@pytest.mark.parametrize("variable", ["REVISION", "SERVED_MODEL_NAME"])
def test_a_variable_is_for_one_model(
    run: Run, variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, "v1")

    assert run.exit_code("serve", "--model-id", "a", "--model-id", "b") == 2
    flag = variable.lower().replace("_", "-")
    assert capsys.readouterr().err == f"embedline: --{flag} is for one model; give it once for each --model-id\n"


def test_a_file_is_named_by_flag_or_variable(run: Run, tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text("port = 1\nfrontends = 7")
    (tmp_path / "two.toml").write_text("port = 2")

    assert run.settings("--config", str(tmp_path / "one.toml"), "--port", "9") == Settings(port=9, frontends=7)
    run.environment(EMBEDLINE_CONFIG=str(tmp_path / "two.toml"))
    assert run.settings().port == 2
    assert run.settings("--config", str(tmp_path / "one.toml")).port == 1


@pytest.mark.parametrize(
    ("command", "flags", "refused", "code"),
    [
        ("server.commands.inspect:inspect", {"pooling": "cls", "hf_token": "hf"}, "--port", 0),
        (
            "server.features.verify.comparison:verify",
            {"quantization": "fp8", "pooling": "cls"},
            "--max-batch-tokens",
            1,
        ),
    ],
)
def test_a_command_takes_the_flags_of_a_model_that_it_heeds(
    run: Run,
    command: str,
    flags: dict[str, str],
    refused: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[tuple[Settings, bool]] = []

    def note(settings: Settings, *, as_json: bool) -> int:
        asked.append((settings, as_json))
        return code

    monkeypatch.setattr(command.replace(":", "."), note)
    run.environment(EMBEDLINE_CONFIG="/not/for/this", EMBEDLINE_DEVICES="cuda:1")
    name = command.rpartition(":")[2]
    words = [word for flag, value in flags.items() for word in (f"--{flag.replace('_', '-')}", value)]

    assert run.exit_code(name, "a-model", *words, "--json") == code
    of_server = {flag: flags.pop(flag) for flag in ("hf_token",) if flag in flags}
    model = ModelSettings(model_id="a-model", devices="cuda:1", **flags)  # type: ignore[arg-type]
    assert asked == [(Settings(models=(model,), **of_server), True)]  # type: ignore[arg-type]
    assert run.exit_code(name, "a-model", refused, "1") == 2
    assert refused in capsys.readouterr().err


def test_secrets_are_not_shown(run: Run) -> None:
    settings = run.settings("--api-key", "sesame", "--hf-token", "hf_sesame")

    assert "sesame" not in repr(settings)


def test_hostname_is_never_read_from_the_environment(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOSTNAME", "HOST", "FAKE_FAULT", "EMBEDLINE_HOSTNAME"):
        monkeypatch.setenv(name, "a-container")

    assert run.settings() == Settings()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["serve", "--port", "many"], "--port"),
        (["serve", "--interactive-max-wait", "soon"], "--interactive-max-wait"),
        (["serve", "--otlp-endpoint"], "--otlp-endpoint"),
        (["serve", "--gpu-memory-share", "0"], "--gpu-memory-share must be at least 0.01"),
        (["serve", "--gpu-memory-share", "1.1"], "--gpu-memory-share must be at most 1"),
        (["serve", "--model-id", "a", "--revision", "1", "--revision", "2"], "--revision is given 2 times for 1"),
        (
            ["serve", "--model-id", "a", "--model-id", "b", "--model-id", "c", "--served-model-name", "n"],
            "--served-model-name is given 1 times for 3",
        ),
        (["serve", "a", "b"], "unexpected extra argument"),
        (["serve", ""], "--model-id must not be empty"),
        (["serve", "--dtype", "fp12"], "--dtype must be one of auto, float32, bfloat16, float16"),
        (["serve", "--model-id", "a", "--model-id", "a"], "--served-model-name must differ between models"),
        (["sevre"], "sevre"),
        (["--serve"], "--serve"),
    ],
    ids=str,
)
def test_what_is_wrong_is_one_line_that_names_the_flag(
    run: Run, capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    assert run.exit_code(*arguments) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(r"embedline: [^\n]+\n", captured.err)
    assert named in captured.err


def test_a_wrong_variable_names_its_flag(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.environment(MAX_BATCH_TOKENS="lots")

    assert run.exit_code("serve") == 2
    assert capsys.readouterr().err == (
        "embedline: --max-batch-tokens (the variable MAX_BATCH_TOKENS) must be a whole number or auto\n"
    )


def test_what_the_server_finds_wrong_is_one_line_too(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(settings: Settings) -> int:
        raise SettingsError("--port 80: can't listen there")

    monkeypatch.setattr("server.commands.serve.serve", refuse)

    assert run.exit_code("serve") == 2
    assert capsys.readouterr().err == "embedline: --port 80: can't listen there\n"


def test_the_servers_exit_code_is_ours(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.commands.serve.serve", lambda settings: 7)
    assert run.exit_code("serve") == 7
