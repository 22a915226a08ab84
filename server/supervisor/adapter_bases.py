"""Whether an adapter of --lora is of the model that it is given to, by the name of its base.

Two models of one architecture have layers of the same names and sizes, so only that name tells them apart.
"""

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from engine.model import model_folder
from engine.model.identity import Identity, identify
from engine.model.json_files import read_optional
from engine.model.lora import CONFIG
from engine.model.model_folder import ModelFolder
from engine.types import ModelError
from server.settings.model import ModelSettings

_KEY = "base_model_name_or_path"
_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_SNAPSHOT = re.compile(r"(?:.*/)?models--([^/]+)/snapshots/[^/]+/?")  # in the hub's cache
_OF_CONFIG = "_name_or_path"  # in config.json, where older versions wrote what was loaded


def check_base(adapter: Path, model: ModelSettings, folder: ModelFolder, identity: Identity | None) -> str:
    """A note where nothing here tells whether the adapter is of the model, else "". adapter: its folder. folder and
    identity: the model's, None where no weights are read. Raises ModelError for another's adapter."""
    named = read_optional(adapter / CONFIG).get(_KEY)
    if not isinstance(named, str) or not named.strip():  # read_adapter refuses what is no text
        return ""
    if _last(named) in {_last(name) for name in _names(model, folder)} - {""}:
        return ""
    base = _folder_of(named, adapter)
    is_same = base is not None and (base.samefile(folder.path) or _has_weights(base, identity))
    if is_same:
        return ""
    where = f"{_KEY!r} in {adapter / CONFIG} is {named!r}"
    are_named = _is_of_hub(named, is_here=base is not None) and _is_of_hub(model.model_id, is_here=_is_here(model))
    if are_named or (base is not None and is_same is False):
        raise ModelError(
            f"{where}, and the model is {model.model_id!r}: it is an adapter of another model. If it is meant for this "
            f"one, name this one there, or give it that name with --served-model-name {_last(named)}"
        )
    return f"{where}, which can't be compared with {model.model_id!r} here: make sure that it is the same model"


def _names(model: ModelSettings, folder: ModelFolder) -> Iterator[str]:
    """What the model is called."""
    yield from (model.model_id, model.name, str(folder.path))
    if isinstance(given := folder.config.get(_OF_CONFIG), str) and given:
        yield given


def _name(text: str) -> str:
    """The repository's name in place of its folder in the hub's cache."""
    path = text.strip().replace("\\", "/")
    found = _SNAPSHOT.fullmatch(path)
    return found[1].replace("--", "/") if found else path


def _last(text: str) -> str:
    """The last part, which a copy of a repository mostly keeps."""
    return PurePosixPath(_name(text)).name.lower()


def _is_of_hub(text: str, *, is_here: bool) -> bool:
    """Whether it names a repository, and no folder of this machine or another."""
    return bool(_SNAPSHOT.fullmatch(text) or (_HUB_NAME.fullmatch(text.strip()) and not is_here))


def _is_here(model: ModelSettings) -> bool:
    return Path(model.model_id).expanduser().is_dir()


def _folder_of(named: str, adapter: Path) -> Path | None:
    """Absolute, beside the adapter, or from the working folder; None where none is there."""
    path = Path(named)
    try:
        places = (adapter / path.expanduser(), path.expanduser())
        return next((place for place in places if place.is_dir()), None)
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, no such user: none of a file's names
        return None


def _has_weights(base: Path, identity: Identity | None) -> bool | None:
    """Whether a folder has the model's weights; None where it can't be read as a model."""
    if identity is None:
        return None
    try:
        return identify(model_folder.read(base), flags={}).weights == identity.weights
    except ModelError:
        return None
