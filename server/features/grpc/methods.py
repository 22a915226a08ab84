"""The gRPC methods: the services Embed, Tokenize, Predict, Rerank and Info of tei.v1, with a decoder and an encoder
for each method. Encoders do long work in slices, so that other requests run in between.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.dialects.fields.rows import read_dimensions
from server.dialects.fields.texts import PromptFields, read_is_query, read_prompt, read_prompts
from server.dialects.reading.inputs import check_num_ids, check_num_items
from server.dialects.route import Call
from server.dialects.row_answers import RAW_FLOATS
from server.dialects.sparse import for_sparse
from server.dialects.tei import for_tokens, prompt_for
from server.features.grpc import tei_pb2
from server.features.grpc.method import Method, Reads, head, metadata, packed, read_text, read_truncation, written
from server.http.routes import info as describe
from server.requests.classify import ClassifyRequest, classify, labels_of
from server.requests.embeddings import embed_any
from server.requests.errors import EmptyInput, InvalidRequest
from server.requests.limits import steps
from server.requests.models import ModelsState
from server.requests.pipeline import Pipeline
from server.requests.rerank import Ranked, RerankRequest, rank
from server.requests.work import DecodeRequest, Embedded, EmbedRequest, TokenizeRequest, Trace
from tokenizer_pool.tasks import Token
from wire.records import light_dataclass

_Texts = tei_pb2.EmbedRequest | tei_pb2.EmbedSparseRequest | tei_pb2.EmbedAllRequest
_NUMBERS_AN_ENTRY = 16  # what writing a sparse entry, a token or a rank costs, counted in plain numbers
_ROW = tei_pb2.EmbedAllResponse.TOKEN_EMBEDDINGS_FIELD_NUMBER
_FLOATS = tei_pb2.TokenEmbedding.EMBEDDINGS_FIELD_NUMBER
_A_PAIR = 2
_SHARED = ("truncate", "truncation_direction")  # what the messages of a stream may not differ in
_MODEL_TYPES = {
    "embedding": tei_pb2.MODEL_TYPE_EMBEDDING,
    "classifier": tei_pb2.MODEL_TYPE_CLASSIFIER,
    "reranker": tei_pb2.MODEL_TYPE_RERANKER,
}


def _decode_embed(call: Call, message: tei_pb2.EmbedRequest) -> EmbedRequest:
    request = _embed_request(call, message)
    dimensions = message.dimensions if message.HasField("dimensions") else None
    return replace(
        request,
        dimensions=read_dimensions(dimensions, request.model.dimensions),
        normalize=message.normalize if message.HasField("normalize") else True,
    )


def _decode_embed_sparse(call: Call, message: tei_pb2.EmbedSparseRequest) -> EmbedRequest:
    request = _embed_request(call, message)
    return for_sparse(request, is_query=_is_query(call, request))


def _decode_embed_all(call: Call, message: tei_pb2.EmbedAllRequest) -> EmbedRequest:
    request = _embed_request(call, message)
    return for_tokens(request, is_query=lambda: _is_query(call, request))


def _embed_request(call: Call, message: _Texts) -> EmbedRequest:
    model = call.models.choose(None, with_prompt=True)
    call.form = RAW_FLOATS
    return EmbedRequest(
        **call.common(model),
        items=[read_text(message.inputs, "inputs")],
        **read_prompts(_prompt_fields(message), model, name=call.models.asked_name(None)),
        truncation=read_truncation(message),
        field="inputs",
        is_single=True,
    )


def _prompt_fields(message: _Texts | tei_pb2.EncodeRequest) -> PromptFields:
    return PromptFields(prompt_name=message.prompt_name if message.HasField("prompt_name") else None)


def _is_query(call: Call, request: EmbedRequest) -> bool:
    return read_is_query(PromptFields(), request.model, name=call.models.asked_name(None))


async def _encode_embed(call: Call, request: EmbedRequest, embedded: Embedded) -> bytes:
    rest = tei_pb2.EmbedResponse(metadata=metadata(call.trace))
    return packed(tei_pb2.EmbedResponse.EMBEDDINGS_FIELD_NUMBER, embedded.rows[0]) + written(rest)


async def _encode_embed_sparse(call: Call, request: EmbedRequest, embedded: Embedded) -> bytes:
    parts = []
    async for part in steps(len(embedded.rows), _NUMBERS_AN_ENTRY):
        indices, weights = embedded.rows[part, 0].astype(np.int64).tolist(), embedded.rows[part, 1].tolist()
        entries = [
            tei_pb2.SparseValue(index=index, value=weight) for index, weight in zip(indices, weights, strict=True)
        ]
        parts.append(written(tei_pb2.EmbedSparseResponse(sparse_embeddings=entries)))
    parts.append(written(tei_pb2.EmbedSparseResponse(metadata=metadata(call.trace))))
    return b"".join(parts)


async def _encode_embed_all(call: Call, request: EmbedRequest, embedded: Embedded) -> bytes:
    parts = [_token_rows(embedded.rows[part]) async for part in steps(*embedded.rows.shape)]
    parts.append(written(tei_pb2.EmbedAllResponse(metadata=metadata(call.trace))))
    return b"".join(parts)


def _token_rows(rows: NDArray[np.float32]) -> bytes:
    """Writes each row as a message; all have the same length, and so the same bytes before their numbers."""
    num_bytes = 4 * rows.shape[1]
    inner = head(_FLOATS, num_bytes)
    before = head(_ROW, len(inner) + num_bytes) + inner
    messages = np.empty((len(rows), len(before) + num_bytes), np.uint8)
    messages[:, : len(before)] = np.frombuffer(before, np.uint8)
    messages[:, len(before) :] = np.ascontiguousarray(rows, "<f4").view(np.uint8)
    return messages.tobytes()


def _decode_tokenize(call: Call, message: tei_pb2.EncodeRequest) -> TokenizeRequest:
    model = call.models.choose(None)
    return TokenizeRequest(
        **call.common(model),
        items=[read_text(message.inputs, "inputs")],
        prompt=read_prompt(_prompt_fields(message), model),
        add_special_tokens=message.add_special_tokens,
        is_single=True,
    )


def _decode_decode(call: Call, message: tei_pb2.DecodeRequest) -> DecodeRequest:
    if not message.ids:
        raise EmptyInput("ids must not be empty", param="ids")
    check_num_ids(len(message.ids), "ids")
    return DecodeRequest(
        **call.common(call.models.choose(None)),
        items=[list(message.ids)],
        skip_special_tokens=message.skip_special_tokens,
        is_single=True,
    )


async def _encode_tokens(call: Call, request: TokenizeRequest, tokens: list[list[Token]]) -> bytes:
    parts = []
    async for part in steps(len(tokens[0]), _NUMBERS_AN_ENTRY):
        simple = [
            tei_pb2.SimpleToken(
                id=token.token_id, text=token.text, special=token.is_special, start=token.start, stop=token.stop
            )
            for token in tokens[0][part]
        ]
        parts.append(written(tei_pb2.EncodeResponse(tokens=simple)))
    return b"".join(parts)


async def _encode_text(call: Call, request: DecodeRequest, texts: list[str]) -> bytes:
    return written(tei_pb2.DecodeResponse(text=texts[0]))


def _decode_predict(call: Call, message: tei_pb2.PredictRequest) -> ClassifyRequest:
    return _predict_request(call, message, [read_text(message.inputs, "inputs")])


def _decode_predict_pair(call: Call, message: tei_pb2.PredictPairRequest) -> ClassifyRequest:
    """Two texts, of which one may be empty."""
    if len(message.inputs) != _A_PAIR:
        raise InvalidRequest("inputs must have two texts", param="inputs")
    if not any(message.inputs):
        raise EmptyInput("inputs must not be empty strings", param="inputs")
    return _predict_request(call, message, message.inputs)


def _predict_request(
    call: Call, message: tei_pb2.PredictRequest | tei_pb2.PredictPairRequest, texts: Sequence[str]
) -> ClassifyRequest:
    model = call.models.choose(None)
    return ClassifyRequest(
        **call.common(model),
        items=texts[:1],
        pair_texts=texts[1:],
        prompt=prompt_for(model),
        truncation=read_truncation(message),
        raw_scores=message.raw_scores,
        is_bounded=True,
        field="inputs",
        is_single=True,
    )


async def _encode_predict(call: Call, request: ClassifyRequest, scored: Embedded) -> bytes:
    """The highest score first."""
    (scores,) = scored.rows
    labels = labels_of(request.model, len(scores))
    order, numbers = np.argsort(-scores, kind="stable").tolist(), scores.tolist()
    predictions = [tei_pb2.Prediction(score=numbers[at], label=labels[at]) for at in order]
    return written(tei_pb2.PredictResponse(predictions=predictions, metadata=metadata(call.trace)))


@light_dataclass(frozen=True, slots=True, kw_only=True)
class _RerankRequest(RerankRequest):
    """The texts to be ranked, and whether the answer repeats it."""

    has_texts: bool


def _decode_rerank(call: Call, message: tei_pb2.RerankRequest) -> _RerankRequest:
    if not message.texts:
        raise EmptyInput("texts must not be empty", param="texts")
    check_num_items(len(message.texts), "texts", max_items=call.max_items)
    if not message.query and "" in message.texts:
        raise EmptyInput("query must not be an empty string", param="query")
    return _rerank_request(call, message, [message.query], list(message.texts))


def _decode_rerank_stream(call: Call, messages: Sequence[tei_pb2.RerankStreamRequest]) -> _RerankRequest:
    """A query and a text in each message."""
    first = messages[0]
    for index, message in enumerate(messages):
        for field in _SHARED:
            if getattr(message, field) != getattr(first, field):
                raise InvalidRequest(f"{field} must be the same in all messages of a stream", param=field)
        if not message.query and not message.text:
            raise EmptyInput(f"query and text of message {index} must not both be empty", param="query")
    queries = [message.query for message in messages]
    if len(set(queries)) == 1:
        queries = queries[:1]
    return _rerank_request(call, first, queries, [message.text for message in messages])


def _rerank_request(
    call: Call,
    message: tei_pb2.RerankRequest | tei_pb2.RerankStreamRequest,
    queries: Sequence[str],
    texts: Sequence[str],
) -> _RerankRequest:
    return _RerankRequest(
        **call.common(call.models.choose(None)),
        queries=queries,
        documents=texts,
        raw_scores=message.raw_scores,
        is_bounded=True,
        truncation=read_truncation(message),
        field="texts",
        has_texts=message.return_text,
    )


async def _encode_rerank(call: Call, request: _RerankRequest, ranked: Ranked) -> bytes:
    """The highest score first."""
    order, scores, parts = ranked.best_first().tolist(), ranked.scores.tolist(), []
    async for part in steps(len(order), _NUMBERS_AN_ENTRY):
        ranks = [
            tei_pb2.Rank(index=at, score=scores[at], text=request.documents[at] if request.has_texts else None)
            for at in order[part]
        ]
        parts.append(written(tei_pb2.RerankResponse(ranks=ranks)))
    parts.append(written(tei_pb2.RerankResponse(metadata=metadata(call.trace))))
    return b"".join(parts)


_ALSO_AS_STREAMS = (
    Method("Embed/Embed", tei_pb2.EmbedRequest, _decode_embed, Pipeline.embed, _encode_embed),
    Method("Embed/EmbedSparse", tei_pb2.EmbedSparseRequest, _decode_embed_sparse, Pipeline.embed, _encode_embed_sparse),
    Method(
        "Embed/EmbedAll", tei_pb2.EmbedAllRequest, _decode_embed_all, embed_any, _encode_embed_all, has_token_rows=True
    ),
    Method("Predict/Predict", tei_pb2.PredictRequest, _decode_predict, classify, _encode_predict),
    Method("Predict/PredictPair", tei_pb2.PredictPairRequest, _decode_predict_pair, classify, _encode_predict),
    Method("Tokenize/Tokenize", tei_pb2.EncodeRequest, _decode_tokenize, Pipeline.tokenize, _encode_tokens),
    Method("Tokenize/Decode", tei_pb2.DecodeRequest, _decode_decode, Pipeline.decode, _encode_text),
)
METHODS = (
    *_ALSO_AS_STREAMS,
    *(replace(method, name=f"{method.name}Stream", reads=Reads.EACH) for method in _ALSO_AS_STREAMS),
    Method("Rerank/Rerank", tei_pb2.RerankRequest, _decode_rerank, rank, _encode_rerank),
    Method(
        "Rerank/RerankStream", tei_pb2.RerankStreamRequest, _decode_rerank_stream, rank, _encode_rerank, reads=Reads.ALL
    ),
)


def info_method(state: ModelsState) -> Method:
    """The method that describes the first model, if there are several."""

    async def run(pipeline: Pipeline, request: None, trace: Trace) -> dict[str, Any]:
        return describe(state)

    return Method("Info/Info", tei_pb2.InfoRequest, lambda call, message: None, run, _encode_info)


async def _encode_info(call: Call, request: None, known: dict[str, Any]) -> bytes:
    (kind,) = known["model_type"]
    named = {
        field.name: known[field.name]
        for field in tei_pb2.InfoResponse.DESCRIPTOR.fields
        if field.name != "model_type" and known.get(field.name) is not None
    }
    return written(tei_pb2.InfoResponse(model_type=_MODEL_TYPES[kind], **named))
