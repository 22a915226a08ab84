"""The interpreter of engine processes if it is not the server's: whether it is fit, and which packages it has."""

import functools
import json
import subprocess
import sys

from engine import registry
from server.settings.flag import SettingsError

_SECONDS = 10.0  # in which it says so: imports nothing that takes time, but may be read from a cold disk
_TENSORRT_LLM = registry.ENGINES[registry.TENSORRT_LLM].packages[0]
_PROBE = f"""
import importlib.util, json, sys
names = ("numpy", "{_TENSORRT_LLM}")
print(json.dumps({{"version": sys.version_info[:2], "has": [n for n in names if importlib.util.find_spec(n)]}}))
"""


def check_engine_python(python: str) -> None:
    """Raises SettingsError where engine processes can't run under it. Found later, it would look like a crash."""
    if python != sys.executable:
        _packages(python)


def has_tensorrt_llm_alone(python: str) -> bool:
    """Whether it is an interpreter with TensorRT-LLM and pins of its own, as in the tensorrt-llm image.

    Other engines may not work there: they need other versions. Raises SettingsError.
    """
    return python != sys.executable and _TENSORRT_LLM in _packages(python)


@functools.cache
def _packages(python: str) -> frozenset[str]:
    """Which of the probe's packages it can import. Raises SettingsError."""
    try:
        ended = subprocess.run(
            [python, "-P", "-c", _PROBE],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_SECONDS,
            check=False,
        )
    except OSError as error:
        raise SettingsError(f"--engine-python can't be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise SettingsError(f"--engine-python did not answer within {_SECONDS:g} seconds") from None
    try:
        found = json.loads(ended.stdout)
        is_fit = tuple(found["version"]) >= (3, 11) and "numpy" in found["has"]
    except (ValueError, KeyError, TypeError):
        is_fit = False
    if ended.returncode or not is_fit:
        raise SettingsError("--engine-python must be Python 3.11 or newer with numpy")
    return frozenset(found["has"])
