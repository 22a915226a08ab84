"""Rows in each container over the routes: JSON, msgpack, raw bytes with vLLM's metadata, numpy's files."""

import asyncio
import base64
import io
import json
import shlex
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from server.dialects.fields.rows import FormFields, read_form
from server.dialects.openai import encode
from server.dialects.row_answers import Container, DType, Endianness, RowForm, packed, rounded
from server.requests.work import Embedded, EmbedRequest, RequestContext
from tests.documents import ROOT
from tests.server.edge import Called, Edge, answered, call, new_call, ready_state, served_model

OPENAI, TEI, TOKENS = "/v1/embeddings", "/embed", "/embed_all"
INPUTS = {OPENAI: "input", TEI: "inputs", TOKENS: "inputs"}
MSGPACK = {"accept": "application/json, application/msgpack"}  # as Baseten's client sends it
RAW = {"accept": "application/octet-stream"}
NPY = {"accept": "application/x-npy"}
TEXTS = ["ab", "a", "abc"]


def some_rows(num_rows: int = 3, width: int = 8) -> NDArray[np.float32]:
    rows: NDArray[np.float32] = np.random.default_rng(3).standard_normal((num_rows, width), np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def ask(path: str, headers: dict[str, str] | None = None, **fields: Any) -> Called:
    def give_rows(edge: Edge) -> None:
        edge.managers.rows, edge.managers.token_rows = some_rows(), some_rows(6)

    called = answered("POST", path, {INPUTS[path]: TEXTS, **fields}, headers, before=give_rows, max_bytes=1 << 20)
    assert called.status == 200, called.body
    return called


def written(path: str, called: Called) -> list[Any]:
    """What stands for each row in JSON or msgpack."""
    is_msgpack = called.headers["content-type"] == "application/msgpack"
    answer = msgspec.msgpack.decode(called.body) if is_msgpack else json.loads(called.body)
    return [item["embedding"] for item in answer["data"]] if path == OPENAI else answer


@pytest.mark.holds("Forms of rows")
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("headers", [{}, MSGPACK])
@pytest.mark.parametrize("path", [OPENAI, TEI])
def test_lists_of_numbers(path: str, headers: dict[str, str], dtype: DType) -> None:
    called = ask(path, headers, embed_dtype=dtype.value)

    assert called.headers["content-type"] == f"application/{'msgpack' if headers else 'json'}"
    values = np.array(written(path, called), np.float32)
    if path == TEI:  # which normalises the rows again
        assert np.allclose(values, rounded(some_rows(), dtype), atol=1e-6)
    else:
        assert np.array_equal(values, rounded(some_rows(), dtype))
    assert called.headers.get("x-embedline-scale") == ("row" if dtype in (DType.INT8, DType.UINT8) else None)


@pytest.mark.holds("Forms of rows")
@pytest.mark.parametrize("headers", [{}, MSGPACK])
def test_base64_is_of_the_type(headers: dict[str, str]) -> None:
    """As Voyage's SDK reads it."""
    called = ask(OPENAI, headers, encoding_format="base64", output_dtype="int8")
    values = [np.frombuffer(base64.b64decode(value), np.int8) for value in written(OPENAI, called)]
    assert np.array_equal(values, packed(some_rows(), DType.INT8))


@pytest.mark.holds("Forms of rows")
def test_msgpack_may_have_bytes() -> None:
    """What batch_post of Baseten's client gives as bytes."""
    called = ask(OPENAI, MSGPACK, encoding_format="bytes", embed_dtype="float16")
    assert b"".join(written(OPENAI, called)) == some_rows().astype("<f2").tobytes()


@pytest.mark.parametrize("num_rows", [1, 15, 16, 300])
@pytest.mark.parametrize("width", [1, 15, 16, 300])
def test_msgpack_of_any_size(num_rows: int, width: int) -> None:
    rows, asked = some_rows(num_rows, width), new_call()
    asked.form = RowForm(container=Container.MSGPACK)
    embedded = Embedded(rows, 7, np.zeros(num_rows, np.uint8))
    answer = asyncio.run(
        encode(asked, EmbedRequest(model=served_model(name="naïve"), items=["a"], context=RequestContext()), embedded)
    )

    decoded = msgspec.msgpack.decode(answer.body)
    assert np.array_equal(np.array([item["embedding"] for item in decoded["data"]], np.float32), rows)
    assert [item["index"] for item in decoded["data"]] == list(range(num_rows))
    assert {item["object"] for item in decoded["data"]} == {"embedding"}
    assert (decoded["object"], decoded["model"]) == ("list", "naïve")
    assert decoded["usage"] == {"prompt_tokens": 7, "total_tokens": 7, "truncated_inputs": 0}


@pytest.mark.holds("Forms of rows")
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("endianness", Endianness)
def test_raw_bytes_say_how_they_are_read(dtype: DType, endianness: Endianness) -> None:
    called = ask(OPENAI, RAW, embed_dtype=dtype.value, endianness=endianness.value)

    values = packed(some_rows(), dtype)
    expected = values.byteswap() if endianness is Endianness.BIG else values
    assert called.body == expected.tobytes()
    assert called.headers["x-embedline-dtype"] == dtype.value
    assert called.headers["x-embedline-shape"] == f"3,{values.shape[1]}"
    assert called.headers.get("x-embedline-endianness") == ("big" if endianness is Endianness.BIG else None)
    assert called.headers["content-length"] == str(len(called.body))
    assert "metadata" not in called.headers


@pytest.mark.holds("Forms of rows")
def test_vllms_metadata_says_where_each_row_stands() -> None:
    called = ask(OPENAI, encoding_format="bytes", embed_dtype="float16")

    metadata = json.loads(called.headers["metadata"])
    assert metadata["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    assert (metadata["model"], metadata["id"][:5], type(metadata["created"])) == ("the-model", "embd-", int)
    rows = []
    for index, row in enumerate(metadata["data"]):
        assert (row["index"], row["embed_dtype"], row["endianness"]) == (index, "float16", "little")
        rows.append(np.frombuffer(called.body[row["start"] : row["end"]], "<f2").reshape(row["shape"]))
    assert np.array_equal(rows, some_rows().astype(np.float16))
    assert "metadata" not in ask(OPENAI, encoding_format="bytes_only").headers


@pytest.mark.holds("Forms of rows")
def test_headers_stay_small_however_many_rows_there_are() -> None:
    asked = new_call()
    asked.form = read_form(FormFields(encoding_format="bytes"))
    for num_rows, is_given in ((1, True), (50, True), (70, False), (2048, False)):
        embedded = Embedded(some_rows(num_rows), 7, np.zeros(num_rows, np.uint8))
        answer = asyncio.run(
            encode(asked, EmbedRequest(model=served_model(name="m"), items=["a"], context=RequestContext()), embedded)
        )
        assert (b"metadata" in dict(answer.headers)) is is_given
        assert sum(map(len, dict(answer.headers).values())) < 6200


@pytest.mark.holds("Forms of rows")
@pytest.mark.parametrize("path", [OPENAI, TEI])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint8", "binary", "ubinary"])
@pytest.mark.parametrize("endianness", ["little", "big"])
def test_numpy_loads_npy(path: str, dtype: str, endianness: str) -> None:
    called = ask(path, NPY, embed_dtype=dtype, endianness=endianness)

    assert called.headers["content-type"] == "application/x-npy"
    loaded = np.load(io.BytesIO(called.body), allow_pickle=False)
    expected = packed(some_rows(), DType(dtype))
    assert loaded.dtype.newbyteorder("=") == expected.dtype
    assert np.allclose(loaded, expected, atol=1e-6)


@pytest.mark.holds("Forms of rows")
@pytest.mark.parametrize("dtype", ["bfloat16", "fp8_e4m3", "fp8_e5m2"])
async def test_npy_refuses_types_that_numpy_has_not(dtype: str) -> None:
    body = json.dumps({"input": "a", "embed_dtype": dtype}).encode()
    called = await call(Edge().app, "POST", OPENAI, body, NPY)
    assert called.status == 400
    assert dtype in called.error()["message"]


@pytest.mark.holds("Forms of rows")
def test_a_list_of_formats_gives_each_row_in_all_of_them() -> None:
    """As Mixedbread has it."""
    called = ask(OPENAI, {**MSGPACK}, encoding_format=["float", "base64", "ubinary"])

    data = json.loads(called.body)["data"]
    assert {item["object"] for item in data} == {"embedding_dict"}
    for item, row in zip(data, some_rows(), strict=True):
        assert set(item["embedding"]) == {"float", "base64", "ubinary"}
        assert np.array_equal(np.array(item["embedding"]["float"], np.float32), row)
        assert base64.b64decode(item["embedding"]["base64"]) == row.tobytes()
        assert item["embedding"]["ubinary"] == np.packbits(row > 0).tolist()
    assert np.array_equal(np.array(written(OPENAI, ask(OPENAI, encoding_format=["float"])), np.float32), some_rows())


@pytest.mark.holds("Forms of rows")
def test_rows_of_tokens_have_types_too() -> None:
    listed = json.loads(ask(TOKENS, embed_dtype="float16").body)
    raw = ask(TOKENS, RAW, embed_dtype="float16", endianness="big")

    expected = some_rows(6).astype(np.float16)
    assert [len(item) for item in listed] == [2, 1, 3]
    assert np.array_equal(np.concatenate([np.array(item, np.float32) for item in listed]), expected.astype(np.float32))
    assert np.array_equal(np.frombuffer(raw.body[:16], "<u4"), [0, 2, 3, 6])
    assert np.array_equal(np.frombuffer(raw.body[16:], ">f2").reshape(6, 8), expected)
    assert (raw.headers["x-embedline-dtype"], raw.headers["x-embedline-shape"]) == ("float16", "6,8")


@pytest.mark.parametrize("path", ["/similarity", "/tokenize", "/embed_all"])
def test_where_there_is_no_msgpack_and_no_npy_the_answer_is_json(path: str) -> None:
    async def run(headers: dict[str, str]) -> Called:
        example = {"source_sentence": "a", "sentences": ["b"]} if path == "/similarity" else "a"
        return await call(Edge().app, "POST", path, json.dumps({"inputs": example}).encode(), headers)

    for headers in (MSGPACK, NPY):
        called = asyncio.run(run(headers))
        assert (called.status, called.headers["content-type"]) == (200, "application/json")


@pytest.mark.holds("Forms of rows")
def test_integers_by_the_models_ranges() -> None:
    ranges = np.stack([np.full(8, -1), np.full(8, 1)]).astype(np.float32)
    state = ready_state()
    numbers = base64.b64encode(ranges.tobytes()).decode()
    state["models"][0]["int8_ranges"] = {"source": "int8_ranges.npy", "numbers": numbers}

    async def run(body: dict[str, Any]) -> Called:
        edge = Edge(loaded=state)
        edge.managers.rows = some_rows()
        return await call(
            edge.app, "POST", OPENAI, json.dumps({"input": TEXTS, "embed_dtype": "int8", **body}).encode()
        )

    whole, cut = asyncio.run(run({})), asyncio.run(run({"dimensions": 4}))
    assert whole.headers["x-embedline-scale"] == "ranges"
    assert np.array_equal(written(OPENAI, whole), packed(some_rows(), DType.INT8, ranges))
    assert cut.headers["x-embedline-scale"] == "row"  # they are of whole rows
    assert np.array_equal(written(OPENAI, cut), packed(some_rows()[:, :4], DType.INT8))
    normalised = asyncio.run(run({"normalize": True}))  # and of rows as long as the model gives them
    lengths = np.linalg.norm(some_rows(), axis=1, keepdims=True)
    assert normalised.headers["x-embedline-scale"] == "row"
    assert np.array_equal(written(OPENAI, normalised), packed(some_rows() / lengths, DType.INT8))
    assert asyncio.run(run({"normalize": False})).headers["x-embedline-scale"] == "ranges"


@pytest.mark.holds("Forms of rows")
def test_the_examples_of_the_page_give_what_they_ask_for() -> None:
    section = (ROOT / "docs" / "api.md").read_text().partition("## Forms of rows")[2].partition("\n## ")[0]
    lines = [shlex.split(line) for line in section.splitlines() if line.startswith("curl ")]
    assert len(lines) >= 6

    async def run(path: str, headers: dict[str, str], body: str) -> Called:
        return await call(Edge().app, "POST", path, body.encode(), headers)

    for words in lines:
        path = words[2].removeprefix("http://localhost:8080")
        headers = dict([words[words.index("-H") + 1].split(": ")]) if "-H" in words else {}
        called = asyncio.run(run(path, headers, words[words.index("-d") + 1]))
        assert (called.status, called.headers["content-type"]) == (200, headers.get("accept", "application/json"))
