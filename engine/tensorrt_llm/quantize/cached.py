"""A block-FP8 copy of a model's folder in the cache. The first start that wants one makes it, later starts find it.

engine.store.copies says what its folder holds, and how processes wait for each other.
"""

import logging
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from engine.machine.failures import one_line
from engine.store import copies, fingerprint
from engine.tensorrt_llm.quantize import job
from engine.tensorrt_llm.quantize.plan import BLOCK, QuantizePlan, plan
from engine.types import ModelError
from wire.files import remedy

logger = logging.getLogger("embedline.engine")

_FOLDER = "block-fp8"  # in the folder that was given
_MAX_OTHERS = 3  # copies of other models, of some GB each
_FORMAT = 1  # of a copy. Raise it when the same model would become other files
_RESERVE = 1 << 30  # bytes that stay free on the disk
_MAX_ERROR = 0.03  # relative RMS of a tensor; what rounding to e4m3 costs arbitrary weights is 0.026
_LINE_SECONDS = 10.0
_MIB, _GIB = 1 << 20, 1 << 30


def block_fp8(folder: Path, *, cache_dir: str | None) -> Path:
    """A folder with the files of `folder`, its linear layers in FP8 with a float32 scale for each 128 by 128 numbers.

    The copy is not removed while this process lives. Takes minutes for a large model the first time.

    Raises ModelError with one line: the weights are FP8 already or do not divide into blocks, there is no cache, or no
    room in it.
    """
    if cache_dir is None:
        raise ModelError(
            "--quantization fp8 keeps an FP8 copy of the model, and there is no folder for it: give one by "
            "--compiled-cache, or serve what `embedline quantize MODEL OUT` makes"
        )
    planned, root = _plan(folder), Path(cache_dir, _FOLDER)
    copy = root / _key(folder, planned)
    try:
        copies.made_once(
            copy,
            "the FP8 copy",
            check=partial(_check, copy, planned),
            make=partial(_make, folder, planned, copy),
            most_others=_MAX_OTHERS,
        )
    except OSError as error:
        raise ModelError(
            f"--quantization fp8 can't keep an FP8 copy of the model in {root}: {one_line(error)}{remedy(error)}; "
            "give another folder by --compiled-cache, or serve what `embedline quantize MODEL OUT` makes"
        ) from error
    return copy


def _plan(folder: Path) -> QuantizePlan:
    planned = plan(folder)
    if planned.left_plain:
        raise ModelError(
            f"--quantization fp8 needs layers whose sizes are multiples of {BLOCK}, and {planned.left_plain[0]!r} "
            "has others, or belongs to one that has: serve the model with --quantization none"
        )
    return planned


def _key(folder: Path, planned: QuantizePlan) -> str:
    others = [folder / name for name in planned.copied]
    try:
        return fingerprint.key(folder, format_number=_FORMAT, packages=(), choices={}, others=others)
    except OSError as error:
        raise ModelError(f"{folder} can't be read: {one_line(error)}") from error


def _check(copy: Path, planned: QuantizePlan) -> None:
    """Raises ValueError or OSError for a file that differs from the plan."""
    for name, layout in planned.layouts.items():
        header = layout.header
        with (copy / name).open("rb") as opened:
            if opened.read(len(header.content)) != header.content or opened.seek(0, os.SEEK_END) != header.num_bytes:
                raise ValueError(f"{name!r} has changed since it was written")
    for name, text in planned.written.items():
        if (copy / name).read_text(encoding="utf-8") != text:
            raise ValueError(f"{name!r} has changed since it was written")
    for name, path in planned.copied.items():
        if fingerprint.sampled(copy / name) != fingerprint.sampled(path):
            raise ValueError(f"{name!r} is not what the model has")


def _make(folder: Path, planned: QuantizePlan, copy: Path) -> None:
    _check_room(planned, copy.parent)
    num_mib = sum(source.file.stat().st_size for source in planned.sources.values()) / _MIB
    logger.info("quantizing %s to block FP8, %.1f MiB, in %s; later starts find it there", folder, num_mib, copy)
    began = time.monotonic()
    done = job.quantize(folder, copy, report=_lines(folder, time.monotonic))
    worst = max(done.errors, key=lambda name: done.errors[name])
    logger.log(
        logging.INFO if done.errors[worst] <= _MAX_ERROR else logging.WARNING,
        "quantized %s in %.0f s; the largest relative RMS error of a tensor is %.2f %%, of %s",
        folder,
        time.monotonic() - began,
        100 * done.errors[worst],
        worst,
    )


def _check_room(planned: QuantizePlan, root: Path) -> None:
    """Raises ModelError where the disk has too little of it."""
    needed = sum(layout.header.num_bytes for layout in planned.layouts.values()) + _RESERVE
    needed += sum(path.stat().st_size for path in planned.copied.values())
    free = shutil.disk_usage(root).free
    if needed > free:
        raise ModelError(
            f"--quantization fp8 needs {needed / _GIB:.1f} GiB in {root}, where {free / _GIB:.1f} GiB are free: "
            "make room, or give another folder by --compiled-cache"
        )


def _lines(folder: Path, clock: Callable[[], float]) -> job.Report:
    """A line every ten seconds of `clock`, none of them in the first ten."""
    last = clock()

    def report(num_done: int, total: int) -> None:
        nonlocal last
        if clock() - last >= _LINE_SECONDS:
            last = clock()
            logger.info("quantizing %s: %d %%", folder, 100 * num_done // max(total, 1))

    return report
