"""Safetensors files of our own making, against the library's reader, and what is no such file."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from engine.store.tensor_file import byte_ranges, write

TENSORS = {
    "scales": torch.randn(1, 6),
    "weight": torch.randn(6, 5).to(torch.float8_e4m3fn),
    "bias": torch.randn(6, dtype=torch.bfloat16),
    "half": torch.randn(3, dtype=torch.float16),
    "number": torch.tensor(3.5, dtype=torch.float64),
    "empty": torch.empty(0, 4),
    "flags": torch.tensor([True, False]),
}


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    write(tmp_path / "file", TENSORS)
    found = load_file(tmp_path / "file")
    assert set(found) == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name].double(), tensor.double())


def test_a_mapped_file_is_not_copied(tmp_path: Path) -> None:
    """Each tensor lies at a multiple of its numbers' size."""
    write(tmp_path / "file", TENSORS)
    assert all(place.begin % place.dtype.itemsize == 0 for place in byte_ranges(tmp_path / "file").values())
    with safe_open(tmp_path / "file", framework="pt") as opened:
        for name in TENSORS:
            assert opened.get_tensor(name).data_ptr() % TENSORS[name].element_size() == 0


def test_what_is_not_contiguous_is_written_in_order(tmp_path: Path) -> None:
    matrix = torch.randn(4, 6)
    write(tmp_path / "file", {"turned": matrix.t(), "part": matrix[1:3, 2:4]})
    found = load_file(tmp_path / "file")
    assert torch.equal(found["turned"], matrix.t())
    assert torch.equal(found["part"], matrix[1:3, 2:4])


def test_a_file_is_never_written_over(tmp_path: Path) -> None:
    write(tmp_path / "file", TENSORS)
    with pytest.raises(FileExistsError):
        write(tmp_path / "file", TENSORS)


def test_places_in_a_file_of_the_library(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "file", metadata={"format": "pt"})
    content, found = (tmp_path / "file").read_bytes(), byte_ranges(tmp_path / "file")
    assert set(found) == set(TENSORS)
    for name, tensor in TENSORS.items():
        place = found[name]
        assert (place.dtype, place.shape) == (tensor.dtype, tuple(tensor.shape))
        expected = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        assert content[place.begin : place.begin + place.num_bytes] == expected


@pytest.mark.parametrize(
    "header",
    [
        [1],
        {"a": 1},
        {"a": {}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 3]}},
        {"a": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}},
        {"a": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [10**30], "data_offsets": [0, 4 * 10**30]}},
    ],
)
def test_what_is_no_such_file(header: Any, tmp_path: Path) -> None:
    encoded = json.dumps(header).encode()
    (tmp_path / "file").write_bytes(len(encoded).to_bytes(8, "little") + encoded + b"1234")
    with pytest.raises((ValueError, TypeError)):
        byte_ranges(tmp_path / "file")


def test_a_dtype_that_nobody_knows_is_left_out(tmp_path: Path) -> None:
    known = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    encoded = json.dumps({"a": known, "b": {**known, "dtype": "F4"}}).encode()
    (tmp_path / "file").write_bytes(len(encoded).to_bytes(8, "little") + encoded + b"1234")
    assert byte_ranges(tmp_path / "file").keys() == {"a"}
