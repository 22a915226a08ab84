"""vLLM's /score and /v1/score: scores of pairs, by any model that can rank.

One query goes with every document, or each of several with a document of its own.
"""

from typing import Annotated, Literal

import msgspec

from server.dialects.reading.inputs import TEXTS, read_texts
from server.dialects.reading.json_body import NOT_GIVEN, is_given
from server.dialects.reading.known_fields import FieldsReader
from server.dialects.reading.text_options import read_cut
from server.dialects.route import Answer, Call, Route, forms_of
from server.dialects.row_answers import ROWS, as_list, headers, rows_alone
from server.dialects.row_forms import numbers_as_json
from server.dialects.vllm.shared import CommonFields, UsageWithCompletion, end_of_list, start_of_list, vllm_error
from server.requests.errors import InvalidRequest
from server.requests.rerank import Ranked, RerankRequest, rank
from server.requests.time_slices import TimeSlice
from server.requests.work import Embedded

_NAMES = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))


_Side = Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=TEXTS)]


class ScoreBody(CommonFields, kw_only=True):
    """The body of POST /score: queries with documents or items, data_1 with data_2, or text_1 with text_2."""

    queries: _Side = NOT_GIVEN
    documents: _Side = NOT_GIVEN
    items: _Side = NOT_GIVEN
    data_1: _Side = NOT_GIVEN
    data_2: _Side = NOT_GIVEN
    text_1: _Side = NOT_GIVEN
    text_2: _Side = NOT_GIVEN
    use_activation: bool | None = None  # None = true
    instruction: str | None = None


_BODY = FieldsReader(ScoreBody)
BODIES = forms_of(ScoreBody, *_NAMES)


def decode(call: Call, body: bytes) -> RerankRequest:
    """The request of a body. Raises RequestError, naming the field or index."""
    fields = _BODY.read(body)
    model = call.models.choose(fields.model)
    queries_field, documents_field = _fields(fields)
    queries, documents = (
        read_texts(getattr(fields, name), name, max_items=call.max_items).texts or ()
        for name in (queries_field, documents_field)
    )
    if len(queries) not in (1, len(documents)):
        raise InvalidRequest(
            f"{queries_field} must be one text, or as many as {documents_field} has", param=queries_field
        )
    call.set_form()
    return RerankRequest(
        **call.common(model),
        queries=queries,
        documents=documents,
        raw_scores=fields.use_activation is False,
        instruction=fields.instruction,
        **read_cut(fields, model),
        first_field=queries_field,
        field=documents_field,
    )


def _fields(fields: ScoreBody) -> tuple[str, str]:
    """The names of the two fields that hold the texts. Raises InvalidRequest."""
    given = {name for pair in _NAMES for name in pair if is_given(getattr(fields, name))}
    for pair in _NAMES:
        if given == set(pair):
            return pair
    names = ", or ".join(f"{first} and {second}" for first, second in _NAMES)
    wrong = next((pair[1] for pair in _NAMES if pair[0] in given), "queries") if len(given) < 2 else min(given)
    raise InvalidRequest(f"the body must have {names}, and nothing of another pair", param=wrong)


async def encode(call: Call, request: RerankRequest, ranked: Ranked) -> Answer:
    """Scores in the request's order. Long work is done in slices, so that other requests run in between."""
    scores = Embedded(ranked.scores[:, None], ranked.num_tokens, ranked.truncated)
    if call.form.has_rows_alone:
        return await rows_alone(scores, call.form)
    items, time_slice = [], TimeSlice()
    for index, number in enumerate(numbers_as_json(ranked.scores)[1:-1].split(b",")):
        items.append(b'{"index":%d,"object":"score","score":%b}' % (index, number))
        await time_slice.end_if_over()
    end = end_of_list(num_tokens=ranked.num_tokens, num_truncated=ranked.num_truncated)
    return Answer(200, headers(scores), b"".join((start_of_list(call, request.model, b"score-"), as_list(items), end)))


class _Score(msgspec.Struct):
    index: int
    object: Literal["score"]
    score: float


class ScoresAnswer(msgspec.Struct):
    """The answer of POST /score."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[_Score]
    usage: UsageWithCompletion


ROUTES = tuple(
    Route(
        path=path,
        decode=decode,
        run=rank,
        encode=encode,
        error_shape=vllm_error,
        summary="Score pairs of texts with vLLM's API",
        body=BODIES[0],
        more_bodies=BODIES[1:],
        example={"queries": "When does the boat go?", "documents": ["The ferry leaves at seven."]},
        answers=(ScoresAnswer,),
        raw_answer=ROWS,
    )
    for path in ("/score", "/v1/score")
)
