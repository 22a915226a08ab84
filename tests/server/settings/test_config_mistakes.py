"""Ways to start a server wrongly: each is exit code 2 and one line that names what to change. What bounds and words
flags have is in test_settings.py.

In this process, up to where processes would be started; tests/server_e2e/test_refusals_at_start.py does one of them by
the real command.
"""

import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from server import cli
from server.commands.running import prepare
from server.http.access import HEALTH_PATHS
from server.settings.settings import Settings
from server.supervisor import model_plan
from tests.server.settings.cli_runs import VARIABLES
from tests.server_e2e.expected import minilm


@pytest.fixture(autouse=True)
def _nothing_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stop_before_the_start(settings: Settings) -> int:
        prepare(settings)
        raise AssertionError("nothing was found wrong")

    monkeypatch.setattr("server.commands.serve.serve", stop_before_the_start)
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)


Refuse = Callable[..., str]


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refuse:
    """Run the command and return what is wrong with it."""

    def run(*arguments: str) -> str:
        # the last of what is given twice counts, so these stand in nobody's way
        monkeypatch.setattr(sys, "argv", ["embedline", "serve", "--port", "0", "--prometheus-port", "0", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        assert ended.value.code == 2
        assert captured.out == ""
        assert re.fullmatch(r"embedline: [^\n]+\n", captured.err)
        return captured.err

    return run


FAKE = ("--engine", "fake")


@pytest.mark.holds("Limits", "Shutdown")
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--model-id", "./no-such-folder"), "--model-id"),
        (("--model-id", "/no/such/folder"), "--model-id"),
        (("--model-id", ""), "--model-id"),
        (("--model-id", "somebody/unknown-model"), "--model-id"),
        (("--revision", "main"), "--model-id"),  # the package that has the model has no revisions
        (("--served-model-name", " "), "--served-model-name"),
        (("--engine", "steam"), "--engine"),
        (("--devices", "cuda:99"), "--devices"),
        (("--devices", "cpu,"), "--devices"),
        (("--devices", "cpu", "--quantization", "fp8"), "--quantization"),
        (("--devices", "cpu", "--engine", "transformers", "--quantization", "int8"), "--quantization"),
        (("--max-input-length", "1000000"), "--max-input-length"),
        (("--max-input-length", "1"), "--max-input-length"),
        (("--default-prompt-name", "query"), "--default-prompt-name"),
        (("--default-prompt", "a", "--default-prompt-name", "b"), "--default-prompt-name"),
        (("--frontends", "100000"), "--frontends"),
        (("--tokenization-workers", "257"), "--tokenization-workers"),
        (("--batch-managers", "257"), "--batch-managers"),
        (("--engine", "fake", "--devices", ",".join(["cpu"] * 257)), "--devices"),
        (("--batch-managers", "2"), "--batch-managers"),
        (("--port", "65536"), "--port"),
        (("--prometheus-port", "99999"), "--prometheus-port"),
        (("--hostname", "256.256.256.256"), "--hostname"),
        (("--engine-python", "/nope"), "--engine-python"),
        (("--engine-python", "/bin/true"), "--engine-python"),
        (("--cors-allow-origin", "example.org"), "--cors-allow-origin"),
        (("--allowed-hosts", "https://example.org"), "--allowed-hosts"),
        (("--allowed-hosts", "example.org:8080"), "--allowed-hosts"),
        (("--allowed-hosts", ""), "--allowed-hosts"),
        (("--ssl-certfile", "/no/such/file"), "--ssl-certfile"),
        (("--ssl-certfile", "/dev/null"), "--ssl-certfile"),
        (("--ssl-keyfile", "/dev/null"), "--ssl-keyfile"),
        (("--request-log-sample-rate", "1.5"), "--request-log-sample-rate"),
        (("--api-key", ""), "--api-key"),
        (("--api-key", "one", "--api-key", "one"), "--api-key"),
        (("--api-key-file", "/no/such/file"), "--api-key-file"),
        (("--compiled-cache", "/dev/null"), "--compiled-cache"),
        (("--config", "/no/such/file.toml"), "--config"),
        (("--max-batch-token", "5"), "--max-batch-token"),
        (("--auto-truncate=maybe",), "--auto-truncate"),
        (("--port",), "--port"),
        *((("--cpu-threads", number), "--cpu-threads") for number in ("0", "-1", "4096")),
        (("a-model",), "a-model"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_flag(refuse: Refuse, arguments: tuple[str, ...], named: str) -> None:
    assert re.search(rf"(?<![\w-]){re.escape(named)}(?![\w-])", refuse(*arguments))


def program(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_an_interpreter_that_says_nothing(refuse: Refuse, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(model_plan, "_PROBE_SECONDS", 0.01)
    silent = program(tmp_path / "silent", "#!/bin/sh\nexec sleep 60\n")

    assert "--engine-python did not answer" in refuse(*FAKE, "--engine-python", silent)


def test_a_program_that_cannot_be_run(refuse: Refuse, tmp_path: Path) -> None:
    assert "--engine-python" in refuse(*FAKE, "--engine-python", program(tmp_path / "broken", "#!/no/such/shell\n"))


@pytest.mark.holds("Shutdown")
@pytest.mark.parametrize(
    "variable", ["EMBEDLINE_FRONTENDS", "AUTO_TRUNCATE", "MAX_BATCH_TOKENS", "EMBEDLINE_REQUEST_LOG"]
)
def test_a_variable(refuse: Refuse, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "-?")

    name = variable.removeprefix("EMBEDLINE_").lower().replace("_", "-")
    assert f"--{name} (the variable {variable})" in refuse()


@pytest.mark.parametrize("variable", ["AIP_PREDICT_ROUTE", "AIP_HEALTH_ROUTE"])
def test_a_path_that_vertex_would_ask_in_vain(refuse: Refuse, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "/v1/endpoints/1/deployedModels/2:explain")

    assert f"the variable {variable} names a path" in refuse(*FAKE)


@pytest.mark.parametrize("path", sorted({"/", *HEALTH_PATHS}))
def test_vertex_may_ask_any_path_of_health(refuse: Refuse, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setenv("AIP_HEALTH_ROUTE", path)
    monkeypatch.setenv("AIP_PREDICT_ROUTE", "/none")

    assert "the variable AIP_PREDICT_ROUTE names a path" in refuse(*FAKE)


@pytest.fixture
def taken_port() -> Iterator[str]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield str(taken.getsockname()[1])


@pytest.mark.parametrize("flag", ["--port", "--prometheus-port"])
def test_a_port_in_use(refuse: Refuse, taken_port: str, flag: str) -> None:
    assert f"{flag} {taken_port}" in refuse(*FAKE, flag, taken_port)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", None),
        ("config.json", "{"),
        ("config.json", "[]"),
        ("modules.json", "{}"),
        ("model.safetensors", None),
    ],
)
def test_a_folder_that_is_no_model(refuse: Refuse, tmp_path: Path, file: str, content: str | None) -> None:
    folder = tmp_path / "model"
    shutil.copytree(minilm(), folder)
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_text(content)

    assert file in refuse("--model-id", str(folder))
