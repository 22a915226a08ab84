"""The size of weights, from headers alone."""

import errno
import json
from pathlib import Path

import pytest

from engine.model import weights
from engine.model.weights import WeightSizes, check_weights, weights_of
from engine.types import ModelError


def write(file: Path, **tensors: tuple[str, list[int], int, int]) -> None:
    """A safetensors file: dtype and shape of each tensor, and its first byte and that behind it."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    for name, (dtype, shape, *offsets) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
    encoded = json.dumps(header).encode()
    file.write_bytes(len(encoded).to_bytes(8, "little") + encoded + bytes(max(end for *_, end in tensors.values())))


def write_bytes(file: Path, **offsets: tuple[int, int]) -> None:
    write(file, **{name: ("U8", [end - begin], begin, end) for name, (begin, end) in offsets.items()})


def test_one_file(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", a=("F32", [2, 3], 0, 24), b=("BF16", [5], 24, 34), c=("F32", [], 34, 38))

    assert weights_of(tmp_path) == WeightSizes(38, {"F32": 7, "BF16": 5})


def test_several_files(tmp_path: Path) -> None:
    write(tmp_path / "one.safetensors", a=("F16", [4], 0, 8))
    write(tmp_path / "two.safetensors", b=("F16", [6], 0, 12))
    write(tmp_path / "other.safetensors", c=("F16", [100], 0, 200))
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors", "b2": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))

    assert weights_of(tmp_path) == WeightSizes(20, {"F16": 10})


def test_the_packaged_minilm(minilm_folder: Path) -> None:
    weights = weights_of(minilm_folder)

    assert weights.num_parameters["F32"] == 22_713_216
    assert 0 < (minilm_folder / "model.safetensors").stat().st_size - weights.num_bytes < 100_000


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        (1 << 62).to_bytes(8, "little"),
        (3).to_bytes(8, "little") + b"[1]",
        (8).to_bytes(8, "little") + b'{"a": 1}',
        (9).to_bytes(8, "little") + b'{"a": {}}',
    ],
)
def test_what_is_no_such_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match="is not a safetensors file"):
        weights_of(tmp_path)


def test_a_file_that_is_not_for_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests may run as root, who is refused nothing."""

    def refuse(file: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(file))

    monkeypatch.setattr(weights, "header_of", refuse)
    with pytest.raises(ModelError, match=r"model\.safetensors can't be read: Permission denied$"):
        weights.weights_of(tmp_path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not a safetensors file"):
        weights_of(tmp_path)


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ({"b": (4, 8), "a": (0, 4), "c": (6, 10)}, "the tensors 'b' and 'c' lie in the same bytes"),
        ({"a": (0, 4), "b": (0, 4)}, "the tensors 'a' and 'b' lie in the same bytes"),
        ({"a": (0, 4), "b": (6, 8)}, "2 bytes before the tensor 'b' belong to none"),
        ({"a": (3, 4)}, "3 bytes before the tensor 'a' belong to none"),
    ],
)
def test_tensors_that_overlap_or_leave_a_gap(tmp_path: Path, offsets: dict[str, tuple[int, int]], message: str) -> None:
    """The library refuses them too."""
    write_bytes(tmp_path / "model.safetensors", **offsets)
    with pytest.raises(ModelError, match=f"model.safetensors is damaged: {message}$"):
        check_weights(tmp_path)


def test_a_tensor_without_numbers_has_no_bytes(tmp_path: Path) -> None:
    write_bytes(tmp_path / "model.safetensors", a=(0, 4), none=(4, 4), b=(4, 6))
    check_weights(tmp_path)
