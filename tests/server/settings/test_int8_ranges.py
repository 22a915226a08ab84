"""The ranges for rows as int8: found, checked, and used."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.types import ModelError
from server.settings.flag import SettingsError
from server.supervisor.model_files import find_int8_ranges

RANGES = np.array([[-1, -2, -3], [1, 2, 3]], np.float32)
WIDTH = 3


def written(path: Path, numbers: Any = RANGES) -> Path:
    if path.suffix == ".npy":
        np.save(path, numbers)
    else:
        path.write_text(json.dumps(np.asarray(numbers).tolist()))
    return path


@pytest.mark.holds("Forms of rows")
@pytest.mark.parametrize("name", ["ranges.npy", "ranges.json"])
def test_the_flag_names_a_file(tmp_path: Path, name: str) -> None:
    written(tmp_path / "int8_ranges.npy", RANGES * 2)  # the flag outranks the model's own
    found = find_int8_ranges(str(written(tmp_path / name)), tmp_path, WIDTH)
    assert found is not None
    assert found.source == "--int8-ranges"
    assert found.numbers == RANGES.tobytes()


@pytest.mark.holds("Forms of rows")
@pytest.mark.parametrize("name", ["int8_ranges.npy", "int8_ranges.json"])
def test_the_models_folder_may_have_one(tmp_path: Path, name: str) -> None:
    assert find_int8_ranges(None, tmp_path, WIDTH) is None
    written(tmp_path / name)
    found = find_int8_ranges(None, tmp_path, WIDTH)
    assert found is not None
    assert (found.source, found.numbers) == (name, RANGES.tobytes())


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "can't be read"),
        (RANGES[:1], "2 rows of 3"),
        (RANGES[:, :2], "2 rows of 3"),
        (RANGES[None], "2 rows of 3"),
        (RANGES[::-1], "the lowest numbers in the first row"),
        (RANGES * np.float32(np.inf), "the lowest numbers in the first row"),
        (np.array(["a", "b"]), "must be an array"),
        (b"", "must be an array"),
        (b"nonsense", "must be an array"),
        (b"\x93NUMPY\x01\x00", "must be an array"),
        (bytes(5 << 20), "must be an array"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, content: Any, problem: str) -> None:
    file = tmp_path / "int8_ranges.npy"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        written(file, content)
    with pytest.raises(SettingsError, match=f"^--int8-ranges: .*{problem}"):
        find_int8_ranges(str(file), tmp_path, WIDTH)
    if content is not None:
        with pytest.raises(ModelError, match=rf"^int8_ranges\.npy: .*{problem}"):
            find_int8_ranges(None, tmp_path, WIDTH)


@pytest.mark.parametrize("content", ["[[1,2,3],[4,5]]", "[[1,2,3]]", '{"a":1}', "[1,2]", "", "[[1,2,null],[1,2,3]]"])
def test_wrong_json_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "int8_ranges.json").write_text(content)
    with pytest.raises(ModelError, match=r"^int8_ranges\.json: must "):
        find_int8_ranges(None, tmp_path, WIDTH)


def test_no_pickle_is_read(tmp_path: Path) -> None:
    np.save(tmp_path / "int8_ranges.npy", np.array([print, print], object), allow_pickle=True)
    with pytest.raises(ModelError):
        find_int8_ranges(None, tmp_path, WIDTH)
