"""Which types fit which."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NewType

import numpy as np
import pytest
from numpy.typing import NDArray

from embedline.pipelines.graph import fits

Name = NewType("Name", str)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (int, int),
        (int, float),
        (bool, int),
        (list[str], Sequence[str]),
        (list[bool], Iterable[int]),
        (dict[str, int], Mapping[str, int]),
        (tuple[int, ...], Sequence[int]),
        (tuple[int, int], tuple[int, ...]),
        (tuple[int, str], Sequence[int | str]),
        (str, Sequence[str]),
        (str, str | None),
        (str | None, int | str | None),
        (None, str | None),
        (Literal["a", "b"], str),
        (Literal["a"], Literal["a", "b"]),
        (Name, str),
        (list[int], list),
        (list[int], list[Any]),
        (Annotated[str, "a name"], str),
        (NDArray[np.float32], NDArray[np.float32]),
        (NDArray[np.float32], np.ndarray),
        (str, object),
        (Any, Any),
    ],
    ids=str,
)
def test_fits(given: Any, wanted: Any) -> None:
    assert fits(given, wanted)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (float, int),
        (str, int),
        (list[str], list[int]),
        (list, list[int]),
        (Sequence[str], list[str]),
        (str | None, str),
        (tuple[int, str], Sequence[int]),
        (tuple[int, ...], tuple[int, int]),
        (str, Name),
        (str, Literal["a"]),
        (Literal["a", "c"], Literal["a", "b"]),
        (NDArray[np.float32], NDArray[np.int32]),
        (np.ndarray, NDArray[np.float32]),
        (Any, str),
        (str, Sequence[int]),
    ],
    ids=str,
)
def test_does_not_fit(given: Any, wanted: Any) -> None:
    assert not fits(given, wanted)
