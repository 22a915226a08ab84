"""Numbers of bodies stay what they are, and msgpack of too many values is refused before it is decoded."""

import asyncio
import json
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from embedline.pipelines import pipeline, step
from server.dialects.reading.json_body import MAX_LISTS
from server.features.pipelines.bodies import MAX_VALUES, Bodies, _numbers, _pass, check_msgpack
from server.features.pipelines.loading import PipelinesUnusable
from server.requests.errors import InvalidRequest, MalformedBody


@step
async def chosen(kind: Literal["a", "b"]) -> NDArray[np.float32]:
    return np.zeros(len(kind), np.float32)


@pipeline
def chooses(kind: Literal["a", "b"]) -> NDArray[np.float32]:
    return chosen(kind)


@step
async def listed(texts: list[str], flag: np.bool_, options: dict[str, int]) -> list[str]:
    return texts


@pipeline
def odd(__kind: Literal["a", "b"]) -> NDArray[np.float32]:
    return chosen(__kind)


def decoded(kind: Any, given: Any) -> Any:
    return msgspec.json.decode(json.dumps(given), type=kind, dec_hook=_numbers)


@pytest.mark.parametrize(
    ("kind", "given", "found"),
    [
        (np.float32, [1e-300, 16777217], [0.0, 16777216.0]),
        (np.float64, [1, 2], [1.0, 2.0]),
        (np.int32, [2.0, 3], [2, 3]),
        (np.int32, [], []),
        (np.floating, [2.5], [2.5]),
    ],
)
def test_numbers_are_converted(kind: Any, given: list[Any], found: list[Any]) -> None:
    rows = decoded(NDArray[kind], given)
    assert rows.tolist() == found
    assert np.issubdtype(rows.dtype, kind)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (np.float32, [1e300]),
        (np.int32, [3_000_000_000]),
        (np.int32, [2.5]),
        (np.int64, [9007199254740993.0]),  # a float has no room for its last digit
        (np.int64, [2**63]),
        (np.uint8, [-1]),
        (np.bool_, [2]),
        (np.str_, [1]),
    ],
)
def test_nothing_wraps_is_cut_or_becomes_infinite(kind: Any, given: list[Any]) -> None:
    with pytest.raises(msgspec.ValidationError, match=f"Expected.* {kind.__name__}"):
        decoded(NDArray[kind], given)


@pytest.mark.parametrize(
    ("value", "count", "problem"),
    [(b"\x90", MAX_LISTS + 1, "lists and maps"), (b"\x01", MAX_VALUES + 1, "values; send arrays as their bytes")],
    ids=["lists", "values"],
)
def test_msgpack_of_too_many_values_is_refused(value: bytes, count: int, problem: str) -> None:
    with pytest.raises(MalformedBody, match=problem):
        asyncio.run(check_msgpack(b"\xdd" + count.to_bytes(4, "big") + value * count))


@pytest.mark.parametrize(("item", "problem"), [(b'"a":1,', "keys"), (b'"a" \n:1,', "keys"), (b"0,", "16000000 values")])
def test_json_of_too_many_values_is_refused(item: bytes, problem: str) -> None:
    most = MAX_VALUES if problem == "keys" else 16_000_000
    with pytest.raises(MalformedBody, match=problem):
        Bodies(chooses).read(b'{"kind": [' + item * (most + 1) + b"]}", is_msgpack=False)
    with pytest.raises(InvalidRequest, match="kind"):
        Bodies(chooses).read(b'{"kind": ["' + b":" * (MAX_VALUES + 1) + b'"]}', is_msgpack=False)


def test_all_forms_of_msgpack_are_passed() -> None:
    """Each to its last byte: from any other place what follows would be counted wrong."""
    sizes = (1, 20, 40, 300, 70_000)
    numbers = [None, True, 1.5, *(sign * 2**bits for bits in (1, 7, 8, 16, 31, 32, 62) for sign in (1, -1))]
    ext = [msgspec.msgpack.Ext(3, b"a" * size) for size in (1, 2, 4, 8, 16, *sizes)]
    lists: list[Any] = [[1] * size for size in sizes] + [dict.fromkeys(range(size)) for size in sizes]
    value = [numbers, ext, ["a" * size for size in sizes], [b"a" * size for size in sizes], *lists]
    body, at, num_lists = msgspec.msgpack.encode(value) + b"\xca0000", 0, 0
    while at < len(body):
        at, more = _pass(body, at)
        num_lists += more
    assert (at, num_lists) == (len(body), 5 + len(lists))


def test_a_choice_that_is_none_is_refused_without_its_text() -> None:
    with pytest.raises(InvalidRequest) as refused:
        Bodies(chooses).read(b'{"kind": "a secret"}', is_msgpack=False)
    assert str(refused.value) == "kind: invalid enum value"


def test_the_name_of_an_unknown_field_is_cut() -> None:
    with pytest.raises(InvalidRequest, match="unknown field `kkk") as refused:
        Bodies(chooses).read(b'{"kind": "a", "' + b"k" * 100_000 + b'": 1}', is_msgpack=False)
    assert len(str(refused.value)) < 250


@pytest.mark.parametrize(
    "array",
    [
        np.arange(100_000, dtype=np.float32) / 7,
        np.arange(120_000, dtype=np.int64).reshape(3, 40_000, 1),
        np.arange(99_999, dtype=np.float64).reshape(3, -1, 3)[::-1],
        np.full((40_000, 2), np.nan, np.float16),
        np.zeros((50_000, 0), np.float32),
        np.zeros((0, 50_000), np.float32),
        np.array(["a", "b"] * 20_000),
    ],
    ids=lambda array: str(array.shape),
)
def test_a_large_array_is_written_as_a_small_one(array: Any) -> None:
    output = {"first": array, "text": "between", "second": [array[:3], array]}
    parts = asyncio.run(Bodies(chooses).write(output, is_msgpack=False))
    whole = msgspec.json.encode(
        {"first": array.tolist(), "text": "between", "second": [array[:3].tolist(), array.tolist()]}
    )
    assert b"".join(parts) == whole
    assert max(map(len, parts)) < 1 << 19


async def test_others_run_while_a_large_array_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.requests.limits.SLICE_SECONDS", 0.0)
    writing = asyncio.create_task(Bodies(chooses).write(np.zeros(1_000_000, np.float32), is_msgpack=False))
    num_turns = 0
    while not writing.done():
        num_turns += 1
        await asyncio.sleep(0)
    assert num_turns > 50


@pytest.mark.holds("Every bound")
@pytest.mark.parametrize("row", [(), (0,)], ids=["numbers", "empty rows"])
def test_an_array_that_is_too_large_for_json_is_refused_before_it_is_a_list(row: tuple[int, ...]) -> None:
    endless = np.broadcast_to(np.zeros((1, *row), np.float32), (1_000_000_000, *row))  # has one number, or none
    with pytest.raises(ValueError, match="the answer has more than 268435456 bytes"):
        asyncio.run(Bodies(chooses).write(endless, is_msgpack=False))


def test_an_array_of_a_billion_empty_rows_is_none() -> None:
    described = {b"type": "<f4", b"shape": [1_000_000_000, 0], b"data": b""}
    with pytest.raises(ValueError, match="as many bytes of data"):
        _numbers(NDArray[np.float32], described)
    assert _numbers(NDArray[np.float32], {**described, b"shape": [5, 0]}).shape == (5, 0)


def test_a_parameter_whose_name_no_field_can_have_is_refused() -> None:
    with pytest.raises(PipelinesUnusable, match=r"pipeline odd: .*'__kind'"):
        Bodies(odd)


@pipeline
def lists(texts: list[str], flag: np.bool_, options: dict[str, int]) -> list[str]:
    return listed(texts, flag, options)


def test_a_text_that_no_decoder_takes_is_named() -> None:
    body = b'\xef\xbb\xbf{"texts":["a","b\\ud83d"],"flag":true,"options":{}}'
    with pytest.raises(MalformedBody) as refused:
        Bodies(lists).read(body, is_msgpack=False)
    assert refused.value.param == "texts[1]"


@pytest.mark.parametrize("word", ["true", "false"])
def test_other_spellings_are_taken_everywhere(word: str) -> None:
    body = b'{"texts":["true"],"flag":"%b","options":{"a":2.0}}' % word.encode()
    assert Bodies(lists).read(body, is_msgpack=False) == {
        "texts": ["true"],
        "flag": np.bool_(word == "true"),
        "options": {"a": 2},
    }
