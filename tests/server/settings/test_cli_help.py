"""What the command line says of itself: versions and help."""

import dataclasses
import os
import re
import subprocess
import sys
from typing import Any

import pytest
from typer.main import get_command

from embedline import __version__
from server import program
from server.feature import Command, Feature, Group, loaded
from server.features.table import FEATURES
from server.settings.flag import SettingsError
from server.settings.settings import GROUPS
from tests.server.settings.cli_runs import FLAGS, Run
from tests.server_e2e.running import ROOT

PLANTED = Feature(
    name="planted",
    commands={
        "measure": Command(function=f"{__name__}:measure", flags=("revision",), is_of_model=True, before="doctor"),
        "many": Group(help="Several.", functions={"first": f"{__name__}:first"}),
    },
)
COMMANDS = {
    *("serve", "inspect", "verify", "compile", "doctor", "convert", "quantize", "health", "version"),
    *("backfill", "bench", "jobs", "ray"),
}


@pytest.mark.holds("There is one list of flags")
def test_the_command_takes_every_flag_of_the_settings() -> None:
    """docs/flags.md is the list that a reviewer sees change: test_flags_page.py compares it with the settings."""
    serve = get_command(program.make_app()).commands["serve"]  # type: ignore[attr-defined]
    options = [parameter for parameter in serve.params if parameter.name not in ("help", "model")]

    assert [[*it.opts, *it.secondary_opts] for it in options if it.name == "config"] == [["--config"]]
    found = {it.name: (*it.opts, *it.secondary_opts) for it in options if it.name != "config"}
    assert found == {flag.name: flag.spellings for flag in FLAGS}


def test_a_command_that_needs_what_engines_compute_with_says_so(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lack(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("server.commands.model_copies.compile_model", lambda settings, out: lack("torch"))
    assert run.exit_code("compile", "a-model", "--out", "out") == 2
    assert "needs torch, which is not installed here" in capsys.readouterr().err

    monkeypatch.setattr("server.commands.model_copies.compile_model", lambda settings, out: lack("server.of_ours"))
    with pytest.raises(ModuleNotFoundError):
        run("compile", "a-model", "--out", "out")


@pytest.mark.holds("Containers")
@pytest.mark.parametrize("word", ["--version", "-V"])
@pytest.mark.parametrize("before", [(), ("serve", "--hostname", "0.0.0.0")], ids=["", "an image's entry point"])
def test_version(run: Run, capsys: pytest.CaptureFixture[str], before: tuple[str, ...], word: str) -> None:
    run(*before, word)
    assert not run.exit_code("version")
    assert capsys.readouterr().out == 2 * f"{__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_the_commands(run: Run, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert not run.exit_code(*arguments)

    shown = capsys.readouterr().out
    assert {name for name in COMMANDS if not re.search(rf"^ +{name} ", shown, re.MULTILINE)} == set()


def test_help_of_the_real_command_names_every_flag_in_full() -> None:
    shown = subprocess.run(
        [sys.executable, "-P", "-m", "embedline", "serve", "--help"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert re.findall(r"^(\S[\w ]+):$", shown, re.MULTILINE) == ["Arguments", "Options", *GROUPS]
    names = {name for flag in FLAGS for name in flag.spellings}
    assert {name for name in names if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", shown)} == set()


def measure(out: str, **words: Any) -> None:
    """Say what was given."""
    print(out, {name: word for name, word in words.items() if word is not None})


def first() -> None:
    """Be refused."""
    raise SettingsError("it can't\nbe done")


def test_what_a_feature_names_as_a_place_is_there() -> None:
    places = [getattr(feature, field.name) for feature in FEATURES for field in dataclasses.fields(feature)]
    for command in (command for feature in FEATURES for command in feature.commands.values()):
        places += [command.function] if isinstance(command, Command) else command.functions.values()
    named = [place for place in places if isinstance(place, str) and ":" in place]
    assert len(named) > 10
    assert all(loaded(place) for place in named)


def test_a_features_commands_are_those_of_embedline(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.features.table.FEATURES", (PLANTED,))
    assert not run.exit_code("--help")
    listed = re.findall(r"^  (\w+)  ", capsys.readouterr().out.partition("Commands:")[2], re.MULTILINE)
    assert (listed[listed.index("doctor") - 1], listed[-1]) == ("measure", "many")

    assert not run.exit_code("measure", "here", "--revision", "v1", "--task", "embed")
    assert capsys.readouterr().out == "here {'revision': ['v1'], 'task': 'embed'}\n"
    assert run.exit_code("measure", "here", "--port", "1") == 2
    assert "--port" in capsys.readouterr().err
    assert run.exit_code("many", "first") == 2
    assert capsys.readouterr().err == "embedline: it can't be done\n"
    assert not run.exit_code("many", "--help")
    assert "Several." in capsys.readouterr().out
