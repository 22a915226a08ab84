"""Makes a new folder with FP8 weights from a model's folder. It gets its name when it is whole.

The new folder has the old one's files, names and shards. Each new file of weights is made from an old one, a strip of
rows at a time, with a scale for each block of FP8 (e4m3). Nothing is mapped or read whole, so memory is that of a
strip, however large a tensor is. Tensors that stay plain are copied byte by byte. Blocks are quantized as transformers'
Fp8Quantize does it. plan.py has decided what becomes of each tensor.

Shapes: N rows and K columns, in what is quantized multiples of the block's size b; n = N / b, k = K / b.
"""

import contextlib
import fcntl
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.store import copies
from engine.store.output_folder import new_folder
from engine.store.tensor_file import bytes_of
from engine.tensorrt_llm.quantize.plan import BLOCK, CONFIG, Layout, PlannedTensor, QuantizePlan, plan
from engine.types import ModelError

_MAX = torch.finfo(torch.float8_e4m3fn).max  # 448
# A block of smaller numbers gets the scale 1, so it becomes zeros: 448 divided by them overflows float32.
_SMALLEST = 2.0**-100
_FLOAT16_BITS = 7  # e4m3's exponent and mantissa, shifted left by so much, are a float16 number …
_CLEARED = ~(1 << 14)  # … without this bit, into which the shift copies the sign …
_BIAS = 2.0**8  # … and times this, as float16's exponent counts from 15 and e4m3's from 7
_STRIP_NUMBERS = 1 << 20
_COPIED_BYTES = 4 << 20


Report = Callable[[int, int], None]  # bytes of the model's weights that are done, and of all of them


@dataclass(frozen=True, slots=True)
class Done:
    """The new folder, and what quantizing lost."""

    folder: Path  # the new one
    errors: dict[str, float]  # relative RMS of each quantized tensor
    num_plain: int  # tensors that were copied
    num_bytes_before: int  # of the files of weights
    num_bytes: int  # of the new ones
    num_copied: int  # other files


def quantize(folder: Path, out: Path, *, report: Report) -> Done:
    """Make `out` from `folder`. Whatever goes wrong or ends this process, `out` is whole or is not there.

    Unfinished work is in OUT.partial. If this process is killed, the next call removes that and starts again.
    Raises ModelError with one line.
    """
    out, planned = new_folder(out), plan(folder)
    try:
        with _unfinished(copies.unfinished(out), planned.written[CONFIG]) as model, _one_thread():
            new_folder(out)  # another process may have made it since
            errors = _write_files(planned, model, report)
            for path in (*model.rglob("*"), model):  # so that a folder with its final name is whole after a power cut
                _sync(path)
            model.rename(out)
            _sync(out.parent)
    except OSError as error:
        raise ModelError(f"{out} can't be written: {error.strerror or error}") from error
    return Done(
        folder=out,
        errors={name: errors[name] for name in sorted(errors, key=_by_layer)},
        num_plain=sum(piece.scales_begin is None for each in planned.layouts.values() for piece in each.pieces),
        num_bytes_before=sum(source.file.stat().st_size for source in planned.sources.values()),
        num_bytes=sum(layout.header.num_bytes for layout in planned.layouts.values()),
        num_copied=len(planned.copied),
    )


@contextlib.contextmanager
def _unfinished(folder: Path, config: str) -> Iterator[Path]:
    """`folder` with nothing but a config.json, locked by this process. Removed if an exception comes.

    config.json is the lock, and shows whose folder it is. So nothing else is to be removed once the folder has its
    final name. Raises ModelError where `folder` holds something else, or another process has locked it; OSError.
    """
    lock, content = folder / CONFIG, config.encode()
    in_the_way = ModelError(f"{folder} is in the way: it is not unfinished work on this model; remove it")
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not lock.is_file())):
        raise in_the_way
    folder.mkdir(exist_ok=True)
    with lock.open("a+b") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel's: a process that ends holds it no more
        except BlockingIOError as error:
            raise ModelError(f"another process is at work in {folder}") from error
        if not os.path.samestat(os.fstat(opened.fileno()), lock.stat()):  # another process has just finished with it
            raise ModelError(f"another process is at work in {folder}")
        opened.seek(0)
        if not content.startswith(opened.read(len(content) + 1)):
            raise in_the_way
        try:
            _remove_others(folder)  # from a run that was killed
            opened.truncate(0)
            opened.write(content)
            opened.flush()
            yield folder
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def _remove_others(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != CONFIG:
            path.unlink()


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Strips are small: one thread is faster than several that wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _write_files(planned: QuantizePlan, target: Path, report: Report) -> dict[str, float]:
    """All files of the new folder but config.json; the relative RMS of each quantized tensor."""
    total = sum(piece.source.num_bytes for layout in planned.layouts.values() for piece in layout.pieces)
    num_done = 0

    def advance(num_bytes: int) -> None:
        nonlocal num_done
        num_done += num_bytes
        report(num_done, total)

    errors: dict[str, float] = {}
    for name, layout in planned.layouts.items():
        errors |= write_shard(planned.sources[name].file, target / name, layout, advance=advance)
    for name, path in planned.copied.items():
        new = target / name
        new.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, new)
    for name, text in planned.written.items():
        if name != CONFIG:
            (target / name).write_text(text, encoding="utf-8")
    return errors


def _sync(path: Path) -> None:
    """Wait until it is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():  # some network file systems can't sync folders
            raise
    finally:
        os.close(descriptor)


def _by_layer(name: str) -> list[tuple[int, str]]:
    """Layer 10 comes after layer 9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"\.", name)]


def write_shard(source: Path, target: Path, layout: Layout, *, advance: Callable[[int], None]) -> dict[str, float]:
    """Make the new file; the relative RMS of what each quantized tensor lost. `advance` gets the bytes of the old file
    as they are done. Raises OSError, and ModelError where the old file is cut short or a weight is not finite."""
    errors = {}
    with source.open("rb", buffering=0) as old, target.open("xb", buffering=0) as new:
        shard = _Shard(target.name, old.fileno(), new.fileno())
        os.ftruncate(new.fileno(), layout.header.num_bytes)
        _write(new.fileno(), layout.header.content, 0)
        for piece in layout.pieces:
            if piece.scales_begin is None:
                shard.copy(piece, advance)
            else:
                errors[piece.name] = shard.quantize(piece, piece.scales_begin, advance)
    return errors


class _Shard:
    """Both files, open."""

    def __init__(self, name: str, old: int, new: int) -> None:
        self._name, self._old, self._new = name, old, new

    def copy(self, piece: PlannedTensor, advance: Callable[[int], None]) -> None:
        for begin in range(0, piece.source.num_bytes, _COPIED_BYTES):
            content = self._read(piece, begin, min(_COPIED_BYTES, piece.source.num_bytes - begin))
            _write(self._new, content, piece.begin + begin)
            advance(len(content))

    def quantize(self, piece: PlannedTensor, scales_begin: int, advance: Callable[[int], None]) -> float:
        """The relative RMS error."""
        num_rows, num_columns = piece.source.shape
        rows_a_strip = max(_STRIP_NUMBERS // num_columns // BLOCK, 1) * BLOCK
        row_bytes = num_columns * piece.source.dtype.itemsize
        scales, squared_error, squared_sum = [], 0.0, 0.0
        for begin in range(0, num_rows, rows_a_strip):
            content = self._read(piece, begin * row_bytes, min(rows_a_strip, num_rows - begin) * row_bytes)
            rows_NK = torch.frombuffer(content, dtype=piece.source.dtype).view(-1, num_columns)
            quantized = quantize_rows(rows_NK)
            _write(self._new, bytes_of(quantized.values).numpy(), piece.begin + begin * num_columns)
            scales.append(quantized.scales)
            squared_error += quantized.squared_error
            squared_sum += quantized.squared_sum
            advance(len(content))
        if not math.isfinite(squared_sum):
            raise ModelError(f"the tensor {piece.name!r} has numbers that are not finite")
        _write(self._new, bytes_of(torch.cat(scales)).numpy(), scales_begin)
        return math.sqrt(squared_error / squared_sum) if squared_sum else 0.0

    def _read(self, piece: PlannedTensor, begin: int, size: int) -> bytearray:
        content = bytearray(size)
        rest, offset = memoryview(content), piece.source.begin + begin
        while rest:
            num_bytes = os.preadv(self._old, [rest], offset)
            if not num_bytes:
                raise ModelError(f"{self._name} became shorter while it was read")
            rest, offset = rest[num_bytes:], offset + num_bytes
        return content


def _write(fd: int, content: Any, offset: int) -> None:
    """The system may take less than all of it at a time."""
    rest = memoryview(content)
    while rest:
        num_bytes = os.pwrite(fd, rest, offset)
        rest, offset = rest[num_bytes:], offset + num_bytes


@dataclass(frozen=True, slots=True)
class Quantized:
    """Some rows, quantized."""

    values: Tensor  # [N, K] float8_e4m3fn
    scales: Tensor  # [n, k] float32: values times these are the numbers
    squared_error: float  # the sum over all numbers of what was lost
    squared_sum: float  # the same of the numbers themselves; not finite where one of them is not


def quantize_rows(rows_NK: Tensor) -> Quantized:
    """`rows_NK` in any floating-point dtype."""
    num_rows, num_columns = rows_NK.shape
    blocks_nbkb = rows_NK.float().view(num_rows // BLOCK, BLOCK, num_columns // BLOCK, BLOCK)
    largest_nk = blocks_nbkb.abs().amax(dim=(1, 3))
    factors_nk = torch.where(largest_nk > _SMALLEST, _MAX / largest_nk, torch.ones_like(largest_nk))
    scales_nk = 1.0 / factors_nk
    scaled_nbkb = blocks_nbkb * factors_nk[:, None, :, None]
    values_nbkb = scaled_nbkb.clamp_(-_MAX, _MAX).to(torch.float8_e4m3fn)
    error_nbkb = _float32(values_nbkb).mul_(scales_nk[:, None, :, None]).sub_(blocks_nbkb)
    return Quantized(
        values_nbkb.view(num_rows, num_columns), scales_nk, _squared_sum(error_nbkb), _squared_sum(blocks_nbkb)
    )


def _float32(values: Tensor) -> Tensor:
    """Convert as torch itself does, ten times as fast."""
    bits = values.view(torch.int8).to(torch.int16)
    return ((bits << _FLOAT16_BITS) & _CLEARED).view(torch.float16).float().mul_(_BIAS)


def _squared_sum(blocks_nbkb: Tensor) -> float:
    return float(blocks_nbkb.square().sum(dim=(1, 3)).sum(dtype=torch.float64))
