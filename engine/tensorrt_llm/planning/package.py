"""Checks that the package tensorrt_llm is installed, in a version that can encode. Never imports it."""

import importlib.metadata
import importlib.util
import inspect
import re

from engine.types import ModelError

NAME = "tensorrt_llm"

_OLDEST = "1.3.0rc22"
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?(?:\.?(a|b|rc|dev)(\d+))?")
_STAGES = ("dev", "a", "b", "rc", "")  # in order; "" is the release
_INSTEAD = (
    "take the tensorrt-llm image, or --engine-python with a Python that has it; --engine fused or transformers, in the "
    "cuda image, needs none"
)


def find() -> str:
    """The installed version, "" if its files do not say. Raises ModelError if there is none, or it is too old.

    Newer versions than we know are accepted; `check_features` decides when it is imported.
    """
    spec = importlib.util.find_spec(NAME)
    if spec is None or spec.origin is None:
        raise ModelError(f"the package {NAME} is not installed for this Python; {_INSTEAD}")
    try:
        version = importlib.metadata.version(NAME)
    except importlib.metadata.PackageNotFoundError:
        return ""
    if is_too_old(version):
        raise ModelError(
            f"{NAME} {version} is too old: LLM.encode came to the 1.3.0 release candidates, and {_OLDEST} is "
            f"the oldest that is served; {_INSTEAD}"
        )
    return version


def is_too_old(version: str) -> bool:
    """False if it is not a version that we can read."""
    key, oldest = _key(version), _key(_OLDEST)
    return key is not None and oldest is not None and key < oldest


def check_features(version: str, llm_class: type, args_class: type) -> None:
    """Raises ModelError if the package's LLM or its arguments' class lacks what encoding needs."""
    encode, feature = getattr(llm_class, "encode", None), ""
    if encode is None:
        feature = "LLM.encode"
    elif "return_raw_logits" not in inspect.signature(encode).parameters:
        feature = "return_raw_logits of LLM.encode"
    elif "encode_only" not in getattr(args_class, "model_fields", {}):
        feature = f"encode_only in {args_class.__name__}"
    if feature:
        raise ModelError(f"{NAME} {version or 'of no known version'} has no {feature}, so it can't encode; {_INSTEAD}")


def _key(version: str) -> tuple[int, int, int, int, int] | None:
    """The key that orders versions: 1.3.0.dev1 < 1.3.0rc2 < 1.3.0rc10 < 1.3.0. Local parts do not count."""
    found = _VERSION.match(version)
    if found is None:
        return None
    major, minor, patch, stage, number = found.groups()
    return int(major), int(minor), int(patch or 0), _STAGES.index(stage or ""), int(number or 0)
