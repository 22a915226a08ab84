"""Which weights of a model's folder must be converted before a server can read it.

Looks at names of files only. A `*.pt` or `*.bin` file that no module of the model reads does not count.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from engine.model.detection.needed_files import WITH_WEIGHTS, all_modules
from engine.model.detection.side_heads import PICKLED as PICKLED_HEADS
from engine.model.weights import has_pickles, has_safetensors
from engine.tools.convert.plan import Plan, plan


def needed(folder: Path) -> Plan | None:
    """What has to be converted; None = nothing. Raises ModelError if the folder has something that is not allowed."""
    stems = [str(path / "model") for path in _paths(folder) if _is_pickled(folder / path)]
    stems += [str(PurePosixPath(name).with_suffix("")) for name in PICKLED_HEADS if _is_pickled_head(folder / name)]
    if not stems:
        return None
    planned = plan(folder)
    targets = tuple(target for target in planned.targets if target.stem in stems)
    return dataclasses.replace(planned, targets=targets) if targets else None


def patterns(folder: Path) -> tuple[str, ...]:
    """Of the files that hold, as pickles, weights of which the folder has no safetensors."""
    weighty = dict.fromkeys(module.path for module in all_modules(folder) if module.kind in WITH_WEIGHTS)
    lacking = [path for path in weighty if not has_safetensors(folder / path)]
    heads = PICKLED_HEADS if PurePosixPath() in lacking else ()
    return (*(str(path / "pytorch_model*.bin") for path in lacking), *heads)


def _paths(folder: Path) -> Iterator[PurePosixPath]:
    yield PurePosixPath()
    yield from dict.fromkeys(module.path for module in all_modules(folder) if module.path.parts)


def _is_pickled(folder: Path) -> bool:
    return has_pickles(folder) and not has_safetensors(folder)


def _is_pickled_head(file: Path) -> bool:
    return file.is_file() and not file.with_suffix(".safetensors").is_file()
