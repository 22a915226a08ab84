"""What a start does with weights that are pickles: it converts them into its cache, or says that it would.

The first start that needs a copy of a model's folder without pickles makes it, others find it: see
server.features.made_copies.
"""

import dataclasses
import logging
import shlex
from importlib.util import find_spec
from pathlib import Path

from embedline.progress import Progress, Report
from engine.convert.conversion import fill
from engine.convert.plan import ConversionPlan, needed
from engine.store.model_source import ResolvedModel
from engine.types import ModelError
from server.features.made_copies import NewCopy, cache_for, copy_of, name_of
from server.settings.settings import Settings
from server.supervisor.model_files import NotConvertedError

logger = logging.getLogger("embedline.engine")

_FOLDER = "converted"  # in the folder that was given
_FORMAT = 1  # of a copy. Raise it when the same pickles would become other files
_SHARD_BYTES = 512 << 20  # a shard is in memory before it is written, and progress is seen by whole shards
_MIB = 1 << 20


def without_pickles(found: ResolvedModel, settings: Settings, *, progress: Progress | None) -> ResolvedModel:
    """The copy in the cache where the folder has pickles. Raises ModelError as server.supervisor.model_files says."""
    folder, planned = found.path, needed(found.path)
    if planned is None:
        return found
    names = ", ".join(name for target in planned.targets for name in target.sources)
    cache_dir = cache_for(settings, f"{folder} has weights that are pickles ({names})", command(folder))
    path = converted(folder, planned, cache_dir=cache_dir, progress=progress)
    if path is None:
        lacks = "" if find_spec("torch") else "; that needs torch: pip install 'embedline[server]'"
        raise NotConvertedError(
            f"{folder} has weights that are pickles ({names}, {planned.num_source_bytes / _MIB:,.0f} MiB): a start "
            f"converts them into its cache first, and so does {command(folder)}{lacks}"
        )
    return dataclasses.replace(found, path=path, source=f"{found.source}, {names} converted to safetensors")


def converted(folder: Path, planned: ConversionPlan, *, cache_dir: str, progress: Progress | None) -> Path | None:
    """The copy of this folder, as `copy_of` gives it. Raises ModelError as that does."""
    names = ", ".join(name for target in planned.targets for name in target.sources)
    size = f"{planned.num_source_bytes / _MIB:,.0f} MiB"
    sources = {name: path for target in planned.targets for name, path in target.sources.items()}

    def filled(new: Path, report: Report) -> None:
        _fill(new, planned, folder, report)

    return copy_of(
        NewCopy(
            folder=folder,
            root=_FOLDER,
            format=_FORMAT,
            sources=sources | planned.copied,
            num_bytes=planned.num_source_bytes + planned.num_copied_bytes,
            fill=filled,
            title=f"converting {name_of(folder)}",
            what=f"the converted weights of {folder}",
            begins=f"converting {names} of {folder} ({size}) to safetensors",
            ended=f"converted {folder}",
            instead=f"convert it yourself: {command(folder)}",
        ),
        cache_dir=cache_dir,
        progress=progress,
    )


def _fill(new: Path, planned: ConversionPlan, folder: Path, report: Report) -> None:
    try:
        answer = fill(new, planned, max_shard_bytes=_SHARD_BYTES, report=report)
    except ModelError as error:
        raise ModelError(f"{folder} can't be converted: {error}") from error
    if not answer.without_network:
        logger.warning(
            "the weights of %s were read in a process that could reach the network: this kernel or container permits "
            "no network namespace", folder
        )  # fmt: skip


def command(folder: Path) -> str:
    """The command that converts this folder."""
    return f"embedline convert {shlex.quote(str(folder))} OUT"
