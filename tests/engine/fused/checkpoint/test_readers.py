"""Files into a device's memory by two buffers: every byte in its place, no buffer written to before it is free."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.fused.readers import CudaTransfer, MappedReader, StagedReader, Staging
from engine.store.tensor_file import byte_ranges
from engine.types import ModelError
from tests.engine.fused.model.models import CPU

BUFFER, SLICE = 64, 16  # bytes


class LazyTransfer(CudaTransfer):
    """Copies as late as it may: what is written to a buffer before it is waited for shows in the target."""

    def __init__(self) -> None:
        self.num_buffers = 0
        self.events: list[str] = []
        self._pending: list[Callable[[], None]] = []
        self.fails = False

    def buffer(self, num_bytes: int) -> Tensor:
        self.num_buffers += 1
        return torch.zeros(num_bytes, dtype=torch.uint8)

    def start(self, source: Tensor, target: Tensor) -> Callable[[], None]:
        if self.fails:
            raise RuntimeError("no device")
        number = len(self._pending)
        self.events.append(f"start {number}")
        is_done = False

        def copy() -> None:
            nonlocal is_done
            if not is_done:
                self.events.append(f"done {number}")
                target.copy_(source)
            is_done = True

        self._pending.append(copy)
        return copy

    def finish(self) -> None:
        for copy in self._pending:
            copy()


def file_of(num_bytes: int, folder: Path) -> tuple[Path, bytes]:
    content = np.random.default_rng(seed=num_bytes).bytes(num_bytes)
    (folder / "file").write_bytes(content)
    return folder / "file", content


def small(transfer: LazyTransfer, *, num_threads: int = 3) -> Staging:
    return Staging(transfer, buffer_bytes=BUFFER, slice_bytes=SLICE, num_threads=num_threads)


@pytest.mark.parametrize("num_bytes", [0, 1, 15, 16, 17, 63, 64, 65, 128, 129, 1000])
@pytest.mark.parametrize("begin", [0, 7])
def test_every_byte_is_in_its_place(num_bytes: int, begin: int, tmp_path: Path) -> None:
    transfer = LazyTransfer()
    file, content = file_of(begin + num_bytes + 5, tmp_path)
    target = torch.zeros(num_bytes, dtype=torch.uint8)
    small(transfer).copy(file, begin, target)
    transfer.finish()
    assert target.numpy().tobytes() == content[begin : begin + num_bytes]


@pytest.mark.holds("A staging buffer is reused only after its copy finished")
def test_many_tensors_share_two_buffers(tmp_path: Path) -> None:
    transfer = LazyTransfer()
    staging = small(transfer)
    file, content = file_of(2000, tmp_path)
    sizes = (3, 70, 200, 1, 64, 500, 2, 90)
    targets = [torch.zeros(size, dtype=torch.uint8) for size in sizes]
    begin = 0
    for target in targets:
        staging.copy(file, begin, target)
        begin += len(target)
    transfer.finish()
    assert transfer.num_buffers == 2
    assert torch.cat(targets).numpy().tobytes() == content[:begin]


def test_a_buffer_is_filled_while_the_other_is_on_its_way(tmp_path: Path) -> None:
    transfer = LazyTransfer()
    file, _ = file_of(4 * BUFFER, tmp_path)
    small(transfer).copy(file, 0, torch.zeros(4 * BUFFER, dtype=torch.uint8))
    assert transfer.events == ["start 0", "start 1", "done 0", "start 2", "done 1", "start 3"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_targets_of_any_dtype_and_shape(dtype: torch.dtype, tmp_path: Path) -> None:
    transfer = LazyTransfer()
    values = torch.randn(9, 11).to(dtype)
    (tmp_path / "file").write_bytes(values.view(torch.uint8).numpy().tobytes())
    target = torch.zeros(9, 11).to(dtype)
    small(transfer).copy(tmp_path / "file", 0, target)
    transfer.finish()
    assert torch.equal(target.view(torch.uint8), values.view(torch.uint8))


@pytest.mark.parametrize("num_bytes", [10, 60, 300])
def test_a_file_that_ends_early(num_bytes: int, tmp_path: Path) -> None:
    transfer = LazyTransfer()
    staging = small(transfer)
    file, content = file_of(num_bytes, tmp_path)
    with pytest.raises(OSError, match="ends early"):
        staging.copy(file, 0, torch.zeros(num_bytes + 1, dtype=torch.uint8))
    target = torch.zeros(num_bytes, dtype=torch.uint8)
    staging.copy(file, 0, target)  # it can be used again
    transfer.finish()
    assert target.numpy().tobytes() == content


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        small(LazyTransfer()).copy(tmp_path / "file", 0, torch.zeros(1, dtype=torch.uint8))


def test_a_device_that_fails(tmp_path: Path) -> None:
    transfer = LazyTransfer()
    staging = small(transfer)
    file, content = file_of(10, tmp_path)
    target = torch.zeros(10, dtype=torch.uint8)
    transfer.fails = True
    with pytest.raises(RuntimeError, match="no device"):
        staging.copy(file, 0, target)
    transfer.fails = False
    staging.copy(file, 0, target)
    transfer.finish()
    assert target.numpy().tobytes() == content


# --- tensors by name


TENSORS = {
    "a": torch.randn(3, 5, dtype=torch.float16),
    "b": torch.randn(7).to(torch.float8_e4m3fn),
    "c": torch.tensor(2.5),
    "d": torch.arange(4),
    "e": torch.empty(0, 3),
}


class EagerTransfer(LazyTransfer):
    """Done at once."""

    def start(self, source: Tensor, target: Tensor) -> Callable[[], None]:
        target.copy_(source)
        return lambda: None


def test_a_staged_reader_reads_what_a_mapped_one_does(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file(TENSORS, file, metadata={"format": "pt"})
    staged, mapped = StagedReader(CPU, EagerTransfer()), MappedReader()
    assert set(staged.names(file)) == set(mapped.names(file)) == set(TENSORS)
    for name, tensor in TENSORS.items():
        for reader in (staged, mapped):
            found = reader.read(file, name)
            assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(found.float(), tensor.float())


@pytest.mark.parametrize("kind", ["staged", "mapped"])
def test_what_readers_refuse(kind: str, tmp_path: Path) -> None:
    reader = StagedReader(CPU, EagerTransfer()) if kind == "staged" else MappedReader()
    file = tmp_path / "model.safetensors"
    with pytest.raises(ModelError, match=r"model\.safetensors can't be read as a safetensors file$"):
        reader.names(file)
    file.write_bytes(b"\xff" * 64)
    with pytest.raises(ModelError, match=r"model\.safetensors can't be read as a safetensors file$"):
        reader.names(file)
    save_file(TENSORS, file)
    with pytest.raises(ModelError, match="lacks the tensor 'z'"):
        reader.read(file, "z")
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ModelError, match=r"cut\.safetensors can't be read as a safetensors file$"):
        reader.read(cut, "a")


def test_a_file_that_shrinks_once_its_header_was_read(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file(TENSORS, file)
    reader = StagedReader(CPU, EagerTransfer())
    found = byte_ranges(file)
    last = max(found, key=lambda name: found[name].begin + found[name].num_bytes)
    reader.names(file)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ModelError, match=r"can't be read: the file ends early"):
        reader.read(file, last)
