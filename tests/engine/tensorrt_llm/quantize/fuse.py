"""Ends a run at any call that changes files, as a kill would."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class Killed(BaseException):
    """In place of the signal: nothing of ours catches it."""


class Fuse:
    """Lets so many calls that change files through, writes half of the next one, and ends everything there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, num_calls: int) -> None:
        self.rest = num_calls
        for owner, name in (
            (os, "pwrite"), (os, "ftruncate"), (os, "fsync"), (os, "open"), (shutil, "copyfile"), (shutil, "rmtree"),
            (Path, "mkdir"), (Path, "rename"), (Path, "write_text"), (Path, "unlink"), (Path, "rmdir"),
        ):  # fmt: skip
            monkeypatch.setattr(owner, name, self._cut_off(getattr(owner, name), halves=name == "pwrite"))

    def _cut_off(self, call: Callable[..., Any], *, halves: bool) -> Callable[..., Any]:
        def cut_off(first: Any, *arguments: Any, **others: Any) -> Any:
            self.rest -= 1
            if self.rest < 0:
                if halves:
                    content, *rest = arguments
                    call(first, content[: len(content) // 2], *rest)
                raise Killed
            return call(first, *arguments, **others)

        return cut_off
