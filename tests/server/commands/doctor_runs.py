"""A made-up machine for `embedline doctor`, what it and `inspect` print, and commands in processes of their own."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.machine import cuda_driver
from engine.machine.cuda_driver import Cuda, Gpu
from server.commands import probe as doctor_probe
from server.commands.inspect import inspect
from server.commands.probe import Environment
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from server.supervisor import model_plan
from tests.structure.sources import ROOT

Examined = Callable[..., Any]  # see conftest.py
GIB = 1 << 30

H100 = Gpu(0, "NVIDIA H100", (9, 0), 80 * GIB)


class Computer:
    """What this machine is taken for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.installed: dict[str, str] = {}  # beside what really is
        self.lacks = {"tensorrt_llm"}  # of what really is
        self._cuda = Cuda(why_none="there is no CUDA driver here")
        monkeypatch.setattr(cuda_driver, "find", lambda: self._cuda)
        monkeypatch.setattr(model_plan, "_torch_version", lambda: "2.13.0")
        self._probe = doctor_probe.probe
        monkeypatch.setattr(doctor_probe, "probe", self._probed)

    def has(self, *gpus: Gpu) -> None:
        self._cuda = Cuda(gpus, "", (13, 0))

    def has_library(self, version: str = "1.4.0rc1") -> None:
        self.installed["tensorrt_llm"] = version

    def _probed(self, modules: Any) -> Environment:
        found = self._probe(modules)
        kept = {name: version for name, version in found.versions.items() if name not in self.lacks}
        return dataclasses.replace(found, versions=kept | self.installed)


def inspected(capsys: pytest.CaptureFixture[str], folder: Path, **model: Any) -> dict[str, Any]:
    """What `embedline inspect` says, of a model that can be served."""
    assert inspect(Settings(models=(ModelSettings(model_id=str(folder), **model),)), as_json=True) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def ended(*arguments: str, code: str | None = None) -> "subprocess.CompletedProcess[str]":
    """`embedline …` in a process of its own, or with other code in its place."""
    command = [sys.executable, "-P", *(["-m", "embedline"] if code is None else ["-c", code]), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def reasons(found: Any, engine: str) -> str:
    return " | ".join(found["engines"][engine]["why_not"])


def able(found: Any) -> set[str]:
    return {name for name, engine in found["engines"].items() if engine["can_serve"]}
