"""How a query and documents are scored by each kind of model: what is asked for, and what is made of the answers."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from batch_manager.messages import RequestRefusal, RequestRefused
from engine.model.tasks import Activation, LateInteraction, Task
from engine.types import OutputKind
from server.requests.errors import EmptyInput, InvalidRequest, RequestError, UnsupportedTask
from server.requests.rerank import Ranked, RerankRequest, rank
from server.requests.work import MAX_COMPARISONS, RequestContext, Trace
from tests.server.edge import DIMENSIONS, Edge, Tokenizers, served_model
from tokenizer_pool.messages import TextRefusal, TextRefused, Truncation
from tokenizer_pool.tasks import TokenizedTexts
from wire.parts import EXPANSION_TOKEN, Part

PAIRS = {"outputs": OutputKind.LOGITS, "task": Task.RERANK, "activation": Activation.SIGMOID, "labels": ("yes",)}
LATE = {"outputs": OutputKind.MULTI_VECTOR, "task": Task.LATE_INTERACTION, "late": LateInteraction()}
PROMPTS = {"facts": {"prompts": {"query": "Q: ", "passage": "P: ", "other": "O: "}}}


def a_request(model: dict[str, Any], **fields: Any) -> RerankRequest:
    given: dict[str, Any] = {
        "queries": ["who"],
        "documents": ["a", "bcdef", "gh"],
        "context": RequestContext(),
        **fields,
    }
    return RerankRequest(model=served_model(**model), **given)


def ranked(request: RerankRequest, prepare: Callable[[Edge], object] = lambda edge: None) -> tuple[Ranked, Edge, Trace]:
    async def run() -> tuple[Ranked, Edge, Trace]:
        edge, trace = Edge(), Trace()
        prepare(edge)
        return await rank(edge.pipeline, request, trace), edge, trace

    return asyncio.run(run())


def error_of(request: RerankRequest, prepare: Callable[[Edge], object] = lambda edge: None) -> RequestError:
    with pytest.raises(RequestError) as refused:
        ranked(request, prepare)
    return refused.value


# by pairs


def test_pairs_are_asked_for_and_their_scores_activated() -> None:
    found, edge, trace = ranked(a_request(PAIRS))

    ((texts, how),) = edge.tokenizers.asked
    assert (list(texts), list(how["pair_texts"])) == (["who"] * 3, ["a", "bcdef", "gh"])
    (submission,) = edge.managers.submitted
    assert submission.outputs is OutputKind.LOGITS
    types = np.frombuffer(submission.parts[Part.TOKEN_TYPE_IDS], np.int32)
    assert types.tolist() == [*[0, 0, 0], 1, *[0, 0, 0], 1, 1, 1, 1, 1, *[0, 0, 0], 1, 1]
    expected = 1 / (1 + np.exp(-np.array([4.0, 8.0, 5.0])))  # the stand-in's scores are lengths
    assert found.scores.dtype == np.float32
    assert np.allclose(found.scores, expected, rtol=1e-6)
    assert found.best_first().tolist() == [1, 2, 0]
    assert (found.num_tokens, trace.num_tokens, trace.num_items) == (17, 17, 3)


@pytest.mark.parametrize(
    ("activation", "wanted", "expected"),
    [
        (Activation.SIGMOID, {}, [0.0, 0.5, 1.0]),
        (Activation.SOFTMAX, {}, [0.0, 0.5, 1.0]),  # of one score it would be 1, whatever the score
        (Activation.IDENTITY, {}, [-1000.0, 0.0, 1000.0]),
        (Activation.IDENTITY, {"is_bounded": True}, [0.0, 0.5, 1.0]),
        (Activation.SIGMOID, {"raw_scores": True}, [-1000.0, 0.0, 1000.0]),
        (Activation.SIGMOID, {"raw_scores": True, "is_bounded": True}, [-1000.0, 0.0, 1000.0]),
    ],
)
def test_activations(activation: Activation, wanted: dict[str, bool], expected: list[float]) -> None:
    def prepare(edge: Edge) -> None:
        edge.managers.rows = np.array([[-1000], [0], [1000]], np.float32)

    found, _, _ = ranked(a_request({**PAIRS, "activation": activation}, **wanted), prepare)
    assert found.scores.tolist() == expected


@pytest.mark.parametrize(("given", "asked"), [(None, "be strict"), ("be kind", "be kind"), ("", "")])
def test_the_instruction_of_a_generative_reranker(given: str | None, asked: str) -> None:
    _, edge, _ = ranked(a_request({**PAIRS, "labels": (), "instruction": "be strict"}, instruction=given))
    assert edge.tokenizers.asked[0][1]["prompt"] == asked


@pytest.mark.parametrize("model", [PAIRS, LATE, {}])
def test_an_instruction_for_a_model_that_takes_none_is_refused(model: dict[str, Any]) -> None:
    error = error_of(a_request(model, instruction="be kind", instruction_field="instruct"))
    assert (type(error), error.param) == (InvalidRequest, "instruct")


@pytest.mark.parametrize("limits", [{}, {"max_document_tokens": 2}])
@pytest.mark.parametrize("field", ["instruct", "chat_template_kwargs"])
def test_an_instruction_without_a_place_is_refused_by_its_field(field: str, limits: dict[str, int]) -> None:
    def prepare(edge: Edge) -> None:
        edge.tokenizers.error = TextRefused(TextRefusal.UNUSED, -1)

    model = {**PAIRS, "instruction": ""}
    error = error_of(a_request(model, instruction="be kind", instruction_field=field, **limits), prepare)
    assert (type(error), error.param) == (InvalidRequest, field)
    assert error.message == f"this model does not take {field}: its template has no place for it"


@pytest.mark.holds("Limits")
@pytest.mark.parametrize("truncation", Truncation)
def test_an_instruction_of_far_too_many_characters_is_refused_by_name(truncation: Truncation) -> None:
    model, most = {**PAIRS, "instruction": "be strict"}, 250 * served_model().max_seqlen
    error = error_of(
        a_request(model, instruction="x" * (most + 1), instruction_field="instruct", truncation=truncation)
    )

    assert (type(error), error.param) == (InvalidRequest, "instruct")
    assert f"{most} characters" in error.message
    ranked(a_request(model, instruction="x" * most))


@pytest.mark.holds("Reranking")
def test_equal_scores_keep_the_order_of_the_request() -> None:
    scores = np.array([1, 2, 1, 2, 1, 3] * 10, np.float32)
    order = Ranked(scores, 0, np.zeros(60, np.uint8)).best_first().tolist()
    assert order == sorted(range(60), key=lambda index: -scores[index])


@pytest.mark.holds("What a model is for")
@pytest.mark.parametrize(
    ("outputs", "labels", "task", "message"),
    [
        (OutputKind.LOGITS, ("a", "b"), Task.CLASSIFY, "it is for classify"),
        (OutputKind.TOKEN_LOGITS, ("a", "b"), Task.TOKEN_CLASSIFY, "it is for token-classify"),
        (OutputKind.SPARSE, (), Task.SPARSE, "it is for sparse"),
    ],
)
def test_a_model_that_can_not_says_what_it_can(
    outputs: OutputKind, labels: tuple[str, ...], task: Task, message: str
) -> None:
    error = error_of(a_request({"outputs": outputs, "labels": labels, "task": task}))
    assert type(error) is UnsupportedTask
    assert message in error.message


# by embeddings

ROWS = np.array([[3, 4], [6, 8], [-4, 3], [0, 0], [-3, -4]], np.float32)


def test_cosines_of_embeddings() -> None:
    def prepare(edge: Edge) -> None:
        edge.managers.rows = ROWS

    found, edge, trace = ranked(a_request({}, documents=["a", "b", "c", "d"]), prepare)

    assert np.allclose(found.scores, [1, 0, 0, -1], atol=1e-6)
    assert found.scores[2] == 0  # of a row of zeros, and no NaN
    ((texts, _),) = edge.tokenizers.asked
    assert list(texts) == ["who", "a", "b", "c", "d"]
    assert (found.num_tokens, trace.num_tokens, trace.num_items) == (7, 7, 5)
    assert edge.managers.submitted[0].outputs is OutputKind.POOLED


def test_cosines_are_of_rows_cut_to_the_models_default() -> None:
    def prepare(edge: Edge) -> None:
        edge.managers.rows = np.array([[1, 0, 5], [1, 0, -5], [0, 1, 5]], np.float32)

    found, _, _ = ranked(a_request({"truncate_dim": 2}, documents=["a", "b"]), prepare)
    assert np.allclose(found.scores, [1, 0], atol=1e-6)


def test_cosines_of_many_rows_are_those_of_each() -> None:
    rows = np.random.default_rng(3).standard_normal((2000, 300), np.float32)

    def prepare(edge: Edge) -> None:
        edge.managers.rows = rows

    found, _, _ = ranked(a_request({}, documents=list(map(str, range(1999)))), prepare)
    units = rows.astype(np.float64) / np.linalg.norm(rows, axis=1, keepdims=True)
    assert np.allclose(found.scores, units[1:] @ units[0], atol=1e-6)


def test_queries_and_documents_get_prompts_of_their_own() -> None:
    found, edge, _ = ranked(a_request({**PROMPTS, "default_prompt": "D: "}))

    assert [(list(texts), how["prompt"]) for texts, how in edge.tokenizers.asked] == [
        (["who"], "Q: "),
        (["a", "bcdef", "gh"], "P: "),
    ]
    assert list(edge.managers.submitted[0].seqlens) == [3, 1, 5, 2]  # one batch for both
    assert len(found.scores) == 3


def test_the_default_prompt_is_for_both_where_there_is_no_other() -> None:
    _, edge, _ = ranked(a_request({"default_prompt": "D: "}))
    assert [how["prompt"] for _, how in edge.tokenizers.asked] == ["D: "]


@pytest.mark.holds("Reranking")
def test_a_model_that_gives_embeddings_and_token_rows_is_asked_for_embeddings() -> None:
    _, edge, _ = ranked(a_request({**LATE, "outputs": OutputKind.POOLED | OutputKind.MULTI_VECTOR}))
    assert edge.managers.submitted[0].outputs is OutputKind.POOLED


# by late interaction


def test_max_sim_of_token_rows() -> None:
    rows = np.random.default_rng(5).standard_normal((3 + 1 + 5 + 2, 4), np.float32)

    def prepare(edge: Edge) -> None:
        edge.managers.token_rows = rows

    found, edge, _ = ranked(a_request(LATE), prepare)

    query, *documents = np.split(rows, [3, 4, 9])
    expected = [(document @ query.T).max(axis=0).sum() for document in documents]
    assert np.allclose(found.scores, expected, rtol=1e-5)
    assert edge.managers.submitted[0].outputs is OutputKind.MULTI_VECTOR


def test_markers_lengths_and_rows_that_do_not_count() -> None:
    late = LateInteraction(
        query_marker_id=1, document_marker_id=2, query_length=6, expansion_id=9, skipped_ids=(ord("d") % 100,)
    )
    rows = np.random.default_rng(5).standard_normal((6 + 2 + 6 + 3, 4), np.float32)

    def prepare(edge: Edge) -> None:
        edge.managers.token_rows = rows

    found, edge, _ = ranked(a_request({**LATE, "late": late}), prepare)

    (submission,) = edge.managers.submitted
    assert list(submission.seqlens) == [6, 2, 6, 3]
    ids = np.frombuffer(bytes(submission.token_ids), np.int32)
    assert ids[:6].tolist() == [ord("w") % 100, 1, ord("h") % 100, ord("o") % 100, 9, 9]
    assert ids[6:8].tolist() == [ord("a") % 100, 2]
    marks = np.frombuffer(submission.parts[Part.MARKS], np.uint8)
    assert marks.tolist() == [0] * 4 + [EXPANSION_TOKEN] * 2 + [0] * 11
    query, *documents = np.split(rows, [6, 8, 14])
    documents[1] = np.delete(documents[1], 3, axis=0)  # b, its marker, c, d
    expected = [(document @ query.T).max(axis=0).sum() for document in documents]
    assert np.allclose(found.scores, expected, rtol=1e-5)


@pytest.mark.holds("Reranking")
def test_too_many_comparisons_are_refused_before_they_are_computed() -> None:
    class Long(Tokenizers):
        async def tokenize(self, texts: Any, **how: Any) -> TokenizedTexts:
            length = int((MAX_COMPARISONS // DIMENSIONS) ** 0.5) + 1
            offsets = np.array([0, length, 2 * length], np.int32)
            return TokenizedTexts(np.zeros(2 * length, np.int32), offsets, np.zeros(2, np.uint8))

    def prepare(edge: Edge) -> None:
        edge.pipeline._tokenizers = Long()  # type: ignore[assignment]

    error = error_of(a_request({**LATE, "max_seqlen": 10**6}, documents=["a"]), prepare)
    assert (type(error), "fewer" in error.message) == (InvalidRequest, True)


# what goes wrong on the way


@pytest.mark.parametrize(
    ("model", "index", "param"),
    [
        (PAIRS, 2, "texts[2]"),
        (PAIRS, -1, "texts"),
        ({}, 0, "query"),
        ({}, 3, "texts[2]"),
        (LATE, 0, "query"),
        (LATE, 1, "texts[0]"),
    ],
)
def test_who_is_to_blame_is_named(model: dict[str, Any], index: int, param: str) -> None:
    def refuse_text(edge: Edge) -> None:
        edge.tokenizers.error = TextRefused(TextRefusal.TOO_LONG, index, num_tokens=20, max_tokens=16)

    def refuse_rows(edge: Edge) -> None:
        edge.managers.error = RequestRefused(RequestRefusal.NON_FINITE, index)

    request = a_request(model, field="texts", truncation=Truncation.NONE)
    error = error_of(request, refuse_text)
    assert error.param == param
    assert ("paired" in error.message) is (model is PAIRS)
    assert error_of(request, refuse_rows).param == (param if index >= 0 else None)


def test_a_document_is_named_also_where_the_query_was_tokenized_apart() -> None:
    class Picky(Tokenizers):
        async def tokenize(self, texts: Any, **how: Any) -> TokenizedTexts:
            if how["prompt"] == "P: ":
                raise TextRefused(TextRefusal.EMPTY, 1)
            return await super().tokenize(texts, **how)

    def prepare(edge: Edge) -> None:
        edge.pipeline._tokenizers = Picky()  # type: ignore[assignment]

    assert error_of(a_request(PROMPTS), prepare).param == "documents[1]"


def test_what_was_cut_is_counted() -> None:
    found, _, trace = ranked(a_request(PAIRS, documents=["a" * 20, "b", "c" * 14]))
    assert (found.num_truncated, trace.num_truncated) == (2, 2)


class WithoutSpecialTokens(Tokenizers):
    """Has no tokens for blank texts, as static embeddings have it."""

    async def tokenize(self, texts: Sequence[str], **how: Any) -> TokenizedTexts:
        for index, text in enumerate(texts):
            if not text.strip():
                raise TextRefused(TextRefusal.EMPTY, index)
        return await super().tokenize(texts, **how)


def set_tokenizers(edge: Edge) -> None:
    edge.tokenizers = edge.pipeline._tokenizers = WithoutSpecialTokens()  # type: ignore[assignment]


def test_a_blank_document_that_has_no_tokens_gets_0() -> None:
    def prepare(edge: Edge) -> None:
        set_tokenizers(edge)
        edge.managers.rows = np.array(
            [[1, 0], [1, 1], [2, 0]], np.float32
        )  # what stands for a blank one is there already

    found, _, _ = ranked(a_request({}, documents=["a", "", "b", " \n"]), prepare)
    assert np.allclose(found.scores, [0.5**0.5, 0, 1, 0])
    assert found.best_first().tolist() == [2, 0, 1, 3]


def test_a_blank_query_that_has_no_tokens_is_refused_by_name() -> None:
    error = error_of(a_request({}, queries=[" "], documents=["a", ""]), set_tokenizers)
    assert (type(error), error.param) == (EmptyInput, "query")


@pytest.mark.parametrize(
    ("adapter", "part"), [("query", "documents: this model has no adapter for 'document'"), ("passage", "query: this")]
)
def test_embeddings_of_a_model_with_adapters_need_both_sides(adapter: str, part: str) -> None:
    refused = error_of(a_request({"adapters": (adapter,)}))
    assert isinstance(refused, InvalidRequest)
    assert part in str(refused)
