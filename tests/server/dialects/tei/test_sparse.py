"""POST /embed_sparse, /embed_hybrid and /embed_all of models that give more or other than one row for a text."""

import json
from typing import Any

import numpy as np
import pytest

from engine.model.tasks import LateInteraction
from engine.types import OutputKind
from server.dialects.row_answers import sparse_bytes, sparse_headers
from server.dialects.sparse import sparse_by_item
from server.requests import late_interaction, work
from server.requests.errors import InvalidRequest
from server.requests.work import Embedded
from tests.server.asking import RAW, ask, tei_error
from tests.server.edge import Called, Edge, new_call, one_model, route_of
from tests.server.loop_share import turns_during
from tokenizer_pool.tasks import TokenizedTexts
from wire.parts import QUERY_TOKEN, Part

decode_embed_hybrid = route_of("/embed_hybrid").decode

ALL = OutputKind.POOLED | OutputKind.SPARSE | OutputKind.MULTI_VECTOR
TEXTS = {"inputs": ["ab", "c"]}
ROWS = [[3.0, 4.0], [0.25, 0.0]]


# sparse


def sparse(*lengths: int) -> Embedded:
    offsets = np.cumsum([0, *lengths], dtype=np.int32)
    rows = np.random.default_rng(1).random((offsets[-1], 2), np.float32)
    rows[:, 0] = np.arange(len(rows)) + 250_000  # of a large vocabulary
    return Embedded(rows, 7, np.zeros(len(lengths), np.uint8), offsets)


async def in_full(embedded: Embedded) -> list[bytes]:
    return [item async for item in sparse_by_item(embedded)]


def test_items_may_be_empty_or_long() -> None:
    embedded = sparse(0, 1, 5000, 0)

    found: list[Any] = []

    async def collect() -> None:
        found.extend(map(json.loads, await in_full(embedded)))

    assert turns_during(collect()) >= 2
    assert [len(item) for item in found] == [0, 1, 5000, 0]
    entries = [entry for item in found for entry in item]
    assert [entry["index"] for entry in entries] == embedded.rows[:, 0].astype(int).tolist()
    assert np.array_equal(np.array([entry["value"] for entry in entries], np.float32), embedded.rows[:, 1])


def test_many_small_items_leave_turns() -> None:
    assert turns_during(in_full(sparse(*[1] * 10_000))) >= 1000


@pytest.mark.holds("Labels, sparse and multi-vector embeddings")
def test_raw_bytes_are_offsets_indices_and_values() -> None:
    embedded = sparse(2, 0, 3)
    raw = sparse_bytes(embedded)

    assert np.frombuffer(raw, "<u4", 4).tolist() == [0, 2, 2, 5]
    assert np.frombuffer(raw, "<u4", 5, 16).tolist() == [250_000, 250_001, 250_002, 250_003, 250_004]
    assert np.array_equal(np.frombuffer(raw, "<f4", 5, 36), embedded.rows[:, 1])
    assert len(raw) == 56
    headers = dict(sparse_headers(embedded))
    assert headers[b"x-embedline-shape"] == b"5,2"
    assert (headers[b"x-embedline-offsets"], headers[b"x-embedline-dtype"]) == (b"4", b"uint32,float32")


def test_raw_bytes_over_the_route() -> None:
    called = ask("/embed_sparse", TEXTS, OutputKind.SPARSE, rows=ROWS, headers=RAW)

    assert called.headers["content-type"] == "application/octet-stream"
    assert called.headers["x-embedline-prompt-tokens"] == "3"
    assert np.frombuffer(called.body, "<u4", 5).tolist() == [0, 1, 2, 0, 1]
    assert np.frombuffer(called.body, "<f4", 2, 20).tolist() == [3.0, 0.25]


@pytest.mark.parametrize(("path", "lack"), [("/embed_sparse", "sparse embeddings"), ("/embed_all", "single tokens")])
def test_a_model_without_it_says_what_it_is_for(path: str, lack: str) -> None:
    status, kind, message = tei_error(ask(path, TEXTS, OutputKind.LOGITS, task="classify"))
    assert (status, kind) == (424, "Backend")
    assert lack in message
    assert message.endswith("it is for classify")


@pytest.mark.holds("Labels, sparse and multi-vector embeddings")
@pytest.mark.parametrize("path", ["/embed_sparse", "/embed_hybrid"])
@pytest.mark.parametrize("inputs", [["ab", "c"], [[9, 8], [7]]])
@pytest.mark.parametrize(("input_type", "flag"), [("query", QUERY_TOKEN), ("document", 0), (None, 0)])
def test_queries_that_are_looked_up_are_marked(path: str, inputs: list[Any], input_type: str | None, flag: int) -> None:
    def look(edge: Edge) -> None:
        (submission,) = edge.managers.submitted
        assert submission.seqlens == [2, 1]
        assert bytes(submission.parts.get(Part.MARKS, b"")) == bytes([flag] * 3 if flag else [])

    body = {"inputs": inputs, "input_type": input_type}
    model: dict[str, Any] = {"task": "sparse", "query_table": "query_0", "prompts": {}}
    called = ask(path, body, OutputKind.SPARSE, rows=ROWS, look=look, **model)
    assert called.status == 200


def test_queries_and_documents_alike_have_no_mark() -> None:
    def look(edge: Edge) -> None:
        assert not edge.managers.submitted[0].parts

    body = {**TEXTS, "input_type": "query"}
    assert ask("/embed_sparse", body, OutputKind.SPARSE, rows=ROWS, task="sparse", look=look).status == 200
    status, _, message = tei_error(
        ask("/embed_sparse", {**TEXTS, "input_type": "clustering"}, OutputKind.SPARSE, prompts={})
    )
    assert (status, message) == (422, "input_type must be query or document")


def test_the_types_that_tokens_have_already_stay() -> None:
    tokens = TokenizedTexts(
        np.array([5, 6, 7], np.int32),
        np.array([0, 2, 3], np.int32),
        np.zeros(2, np.uint8),
        {Part.TOKEN_TYPE_IDS: np.array([0, 1, 1], np.int32)},
    )
    marked = late_interaction.marked_queries(tokens, num_queries=1)
    assert marked.parts[Part.MARKS].tolist() == [QUERY_TOKEN, QUERY_TOKEN, 0]
    assert Part.MARKS not in tokens.parts
    assert marked.parts[Part.TOKEN_TYPE_IDS] is tokens.parts[Part.TOKEN_TYPE_IDS]


# all rows


def embed_all(body: dict[str, Any], late: LateInteraction | None = None, **others: Any) -> Called:
    model = {"task": "late-interaction", "late": late and {**LATE, **changed(late)}}
    return ask("/embed_all", body, OutputKind.MULTI_VECTOR, **{**model, **others})


LATE: dict[str, Any] = {"skipped_ids": []}


def changed(late: LateInteraction) -> dict[str, Any]:
    names = ("query_marker_id", "document_marker_id", "skipped_ids", "skips_first")
    return {name: getattr(late, name) for name in names}


def test_rows_for_late_interaction() -> None:
    token_rows = [[1, 2], [3, 4], [5, 6]]

    assert json.loads(embed_all(TEXTS, token_rows=token_rows).body) == [[[1, 2], [3, 4]], [[5, 6]]]


def test_rows_that_do_not_count_are_left_out() -> None:
    late = LateInteraction(skips_first=True)
    assert json.loads(embed_all(TEXTS, late, token_rows=[[1, 2], [3, 4], [5, 6]]).body) == [[[3, 4]], []]


@pytest.mark.parametrize(("input_type", "marker"), [("query", 7), ("search_query", 7), ("document", 8), (None, 8)])
def test_queries_and_documents_have_their_markers(input_type: str | None, marker: int) -> None:
    def look(edge: Edge) -> None:
        (submission,) = edge.managers.submitted
        ids = np.frombuffer(submission.token_ids, np.int32).tolist()
        assert ids == [97, marker, 98, 99, marker]

    late = LateInteraction(query_marker_id=7, document_marker_id=8)
    assert embed_all({**TEXTS, "input_type": input_type}, late, look=look).status == 200


@pytest.mark.holds("Labels, sparse and multi-vector embeddings")
@pytest.mark.parametrize("outputs", [OutputKind.MULTI_VECTOR, OutputKind.TOKENS])
def test_raw_rows_are_ragged(outputs: OutputKind) -> None:
    called = ask("/embed_all", TEXTS, outputs, token_rows=[[1, 2], [3, 4], [5, 6]], headers=RAW)

    assert (called.headers["x-embedline-shape"], called.headers["x-embedline-offsets"]) == ("3,2", "3")
    assert called.headers["content-type"] == "application/octet-stream"
    assert np.frombuffer(called.body, "<u4", 3).tolist() == [0, 2, 3]
    assert np.frombuffer(called.body, "<f4", offset=12).tolist() == [1, 2, 3, 4, 5, 6]


def test_input_type_is_query_or_document() -> None:
    wrong_task = tei_error(ask("/embed_all", {**TEXTS, "input_type": "query"}, OutputKind.LOGITS))
    assert (wrong_task[0], "no rows of single tokens" in wrong_task[2]) == (424, True)
    status, _, message = tei_error(embed_all({**TEXTS, "input_type": "clustering"}, prompts={}))
    assert (status, message) == (422, "input_type must be query or document")


# several kinds


def hybrid(body: dict[str, Any], outputs: OutputKind = ALL, **others: Any) -> Called:
    return ask("/embed_hybrid", body, outputs, rows=ROWS, **others)


@pytest.mark.holds("Labels, sparse and multi-vector embeddings")
def test_three_kinds_from_one_forward() -> None:
    def look(edge: Edge) -> None:
        assert [submission.outputs for submission in edge.managers.submitted] == [ALL]

    called = hybrid(TEXTS, look=look)
    assert json.loads(called.body) == [
        {
            "dense": pytest.approx([0.6, 0.8]),
            "sparse": [{"index": 0, "value": 3.0}],
            "multi_vector": [[3.0, 4.0], [3.0, 4.0]],
        },
        {"dense": [1.0, 0.0], "sparse": [{"index": 1, "value": 0.25}], "multi_vector": [[0.25, 0.0]]},
    ]
    assert called.headers["x-compute-tokens"] == "3"


def test_what_is_wished() -> None:
    first, _ = json.loads(hybrid({**TEXTS, "outputs": ["dense"], "normalize": False}).body)
    assert first == {"dense": [3.0, 4.0]}
    first, _ = json.loads(hybrid({**TEXTS, "outputs": ["sparse", "dense"]}).body)
    assert set(first) == {"dense", "sparse"}
    first, _ = json.loads(hybrid(TEXTS, OutputKind.POOLED | OutputKind.SPARSE | OutputKind.TOKENS).body)
    assert set(first) == {"dense", "sparse"}


def test_what_the_model_lacks() -> None:
    status, kind, message = tei_error(hybrid({**TEXTS, "outputs": ["dense", "sparse"]}, OutputKind.POOLED))
    assert (status, kind) == (424, "Backend")
    assert message.startswith("this model gives no sparse embeddings")
    assert tei_error(hybrid(TEXTS, OutputKind.LOGITS))[0] == 424


@pytest.mark.parametrize("outputs", [[], ["colbert"], "dense", 5, ["dense"] * 1000, [["dense"]]])
def test_outputs_of_another_kind_are_refused(outputs: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode_embed_hybrid(
            new_call(models=one_model(outputs=ALL)), json.dumps({"inputs": "a", "outputs": outputs}).encode()
        )
    assert (refused.value.param or "").startswith("outputs")


def test_no_outputs_are_all() -> None:
    body = b'{"inputs":"a","outputs":null}'
    assert decode_embed_hybrid(new_call(models=one_model(outputs=ALL)), body).outputs == ALL


@pytest.mark.holds("Limits")
def test_more_sparse_rows_than_anybody_could_write_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MAX_SPARSE_ROW_BYTES", 1)
    status, _, message = tei_error(ask("/embed_sparse", TEXTS, OutputKind.SPARSE))
    assert (status, "send fewer inputs" in message) == (422, True)
