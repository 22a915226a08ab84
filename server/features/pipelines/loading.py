"""The file of --pipelines: runs it, once, and checks every pipeline in it."""

import importlib.util
import sys
import traceback
from pathlib import Path
from typing import Any

from embedline.pipelines import Pipeline, PipelineError

_MODULE = "embedline_pipelines_file"


class PipelinesUnusable(Exception):
    """The file can't be used: the message is one line that names it and, where there is one, the line."""


def load(file: str) -> dict[str, Pipeline[..., Any]]:
    """The pipelines of a file, by name. It may import what lies beside it. Raises PipelinesUnusable."""
    path = Path(file).resolve()
    if not path.is_file():
        raise PipelinesUnusable(f"--pipelines {file}: there is no such file")
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    if spec is None or spec.loader is None:
        raise PipelinesUnusable(f"--pipelines {file}: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module  # where dataclasses look for the types of their fields
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # last: it can't stand in for a module of ours
    try:
        spec.loader.exec_module(module)
        found = [value for value in vars(module).values() if isinstance(value, Pipeline)]
        for pipeline in found:
            _ = pipeline.graph
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        raise PipelinesUnusable(f"--pipelines {file}: {_line_prefix(error, path)}{_in_words(error)}") from None
    if not found:
        raise PipelinesUnusable(f"--pipelines {file}: it has no pipeline; @pipeline makes one of a function")
    by_name = {pipeline.name: pipeline for pipeline in found}
    if len(by_name) < len({id(pipeline) for pipeline in found}):
        raise PipelinesUnusable(f"--pipelines {file}: two pipelines have the same name")
    return by_name


def _line_prefix(error: BaseException, path: Path) -> str:
    """The innermost line of the file that was being run; "" if none was."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"line {error.lineno}: "
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"line {lines[-1]}: " if lines else ""


def _in_words(error: BaseException) -> str:
    words = str(error.msg) if isinstance(error, SyntaxError) else str(error)
    line = " ".join(words.split())
    return line if isinstance(error, PipelineError) else f"{type(error).__name__}: {line}"
