"""The gRPC methods: the services Embed, Tokenize, Predict, Rerank and Info of tei.v1, with a decoder and an encoder
for each method.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.dialects.fields.rows import read_dimensions
from server.dialects.fields.texts import PromptFields, read_is_query, read_prompt, read_prompts
from server.dialects.reading.inputs import Inputs, check_num_ids, check_num_items
from server.dialects.route import Call
from server.dialects.row_answers import RAW_FLOATS
from server.dialects.sparse import for_sparse
from server.dialects.tei import for_tokens, prompt_for
from server.features.grpc import tei_pb2
from server.features.grpc.method import Method, Reads, head, metadata, packed, read_text, read_truncation, written
from server.http.routes import info as describe
from server.requests.classify import ClassifyRequest, classify, labels_of
from server.requests.embeddings import embed_tokens
from server.requests.errors import EmptyInput, InvalidRequest
from server.requests.limits import steps
from server.requests.models import ModelsState
from server.requests.pipeline import Pipeline
from server.requests.rerank import Ranked, RerankRequest, rank
from server.requests.work import DecodeRequest, Embedded, EmbedRequest, TokenizeRequest, Trace
from tokenizer_pool.tasks import Token

_Texts = tei_pb2.EmbedRequest | tei_pb2.EmbedSparseRequest | tei_pb2.EmbedAllRequest
_NUMBERS_AN_ENTRY = 16  # what writing a sparse entry costs, counted in plain numbers
_ROW = tei_pb2.EmbedAllResponse.TOKEN_EMBEDDINGS_FIELD_NUMBER
_FLOATS = tei_pb2.TokenEmbedding.EMBEDDINGS_FIELD_NUMBER
_NUMBERS_A_TOKEN = 16  # what writing a token costs, counted in plain numbers
_A_PAIR = 2
_NUMBERS_A_RANK = 16  # what writing one costs, counted in plain numbers
_SHARED = ("truncate", "truncation_direction")  # what the messages of a stream may not differ in
_MODEL_TYPES = {
    "embedding": tei_pb2.MODEL_TYPE_EMBEDDING,
    "classifier": tei_pb2.MODEL_TYPE_CLASSIFIER,
    "reranker": tei_pb2.MODEL_TYPE_RERANKER,
}


def decode_embed(call: Call, message: tei_pb2.EmbedRequest) -> EmbedRequest:
    """Raises RequestError, naming the field, as all decoders here do."""
    request = _embed_request(call, message)
    dimensions = message.dimensions if message.HasField("dimensions") else None
    return replace(
        request,
        dimensions=read_dimensions(dimensions, request.model.dimensions),
        normalize=message.normalize if message.HasField("normalize") else True,
    )


def decode_embed_sparse(call: Call, message: tei_pb2.EmbedSparseRequest) -> EmbedRequest:
    """Decode an EmbedSparse request."""
    request = _embed_request(call, message)
    return for_sparse(request, is_query=_is_query(call, request))


def decode_embed_all(call: Call, message: tei_pb2.EmbedAllRequest) -> EmbedRequest:
    """Decode an EmbedAll request."""
    request = _embed_request(call, message)
    return for_tokens(request, is_query=lambda: _is_query(call, request))


def _embed_request(call: Call, message: _Texts) -> EmbedRequest:
    model = call.models.choose(None, with_prompt=True)
    given = Inputs(texts=[read_text(message.inputs, "inputs")], is_single=True)
    fields = PromptFields(prompt_name=message.prompt_name if message.HasField("prompt_name") else None)
    call.form = RAW_FLOATS
    return EmbedRequest(
        **call.common(model),
        texts=given.texts,
        **read_prompts(fields, model, name=call.models.asked_name(None)),
        truncation=read_truncation(message),
        field="inputs",
        is_single=True,
    )


def _is_query(call: Call, request: EmbedRequest) -> bool:
    return read_is_query(PromptFields(), request.model, name=call.models.asked_name(None))


async def encode_embed(call: Call, request: EmbedRequest, embedded: Embedded) -> bytes:
    """The text's row."""
    rest = tei_pb2.EmbedResponse(metadata=metadata(call.trace))
    return packed(tei_pb2.EmbedResponse.EMBEDDINGS_FIELD_NUMBER, embedded.rows[0]) + written(rest)


async def encode_embed_sparse(call: Call, request: EmbedRequest, embedded: Embedded) -> bytes:
    """Write entries and their weights. Long work is done in slices, so that other requests run in between."""
    parts = []
    async for part in steps(len(embedded.rows), _NUMBERS_AN_ENTRY):
        indices, weights = embedded.rows[part, 0].astype(np.int64).tolist(), embedded.rows[part, 1].tolist()
        entries = [
            tei_pb2.SparseValue(index=index, value=weight) for index, weight in zip(indices, weights, strict=True)
        ]
        parts.append(written(tei_pb2.EmbedSparseResponse(sparse_embeddings=entries)))
    parts.append(written(tei_pb2.EmbedSparseResponse(metadata=metadata(call.trace))))
    return b"".join(parts)


async def encode_embed_all(call: Call, request: EmbedRequest, embedded: Embedded) -> bytes:
    """The rows of the text's tokens, in slices too."""
    parts = []
    async for part in steps(*embedded.rows.shape):
        parts.append(_token_rows(embedded.rows[part]))
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


_EMBED_METHODS = (
    Method(
        service="Embed",
        name="Embed",
        message=tei_pb2.EmbedRequest,
        decode=decode_embed,
        run=Pipeline.embed,
        encode=encode_embed,
    ),
    Method(
        service="Embed",
        name="EmbedSparse",
        message=tei_pb2.EmbedSparseRequest,
        decode=decode_embed_sparse,
        run=Pipeline.embed,
        encode=encode_embed_sparse,
    ),
    Method(
        service="Embed",
        name="EmbedAll",
        message=tei_pb2.EmbedAllRequest,
        decode=decode_embed_all,
        run=embed_tokens,
        encode=encode_embed_all,
        has_token_rows=True,
    ),
)


def decode_tokenize(call: Call, message: tei_pb2.EncodeRequest) -> TokenizeRequest:
    """Raises RequestError, naming the field, as all decoders here do."""
    model = call.models.choose(None)
    given = Inputs(texts=[read_text(message.inputs, "inputs")], is_single=True)
    fields = PromptFields(prompt_name=message.prompt_name if message.HasField("prompt_name") else None)
    return TokenizeRequest(
        **call.common(model),
        texts=given.texts or (),
        prompt=read_prompt(fields, model),
        add_special_tokens=message.add_special_tokens,
        is_single=True,
    )


def decode_decode(call: Call, message: tei_pb2.DecodeRequest) -> DecodeRequest:
    """Decode."""
    if not message.ids:
        raise EmptyInput("ids must not be empty", param="ids")
    check_num_ids(len(message.ids), "ids")
    return DecodeRequest(
        **call.common(call.models.choose(None)),
        token_ids=[list(message.ids)],
        skip_special_tokens=message.skip_special_tokens,
        is_single=True,
    )


async def encode_tokens(call: Call, request: TokenizeRequest, tokens: list[list[Token]]) -> bytes:
    """Long work is done in slices, so that other requests run in between."""
    parts = []
    async for part in steps(len(tokens[0]), _NUMBERS_A_TOKEN):
        simple = [
            tei_pb2.SimpleToken(
                id=token.token_id, text=token.text, special=token.is_special, start=token.start, stop=token.stop
            )
            for token in tokens[0][part]
        ]
        parts.append(written(tei_pb2.EncodeResponse(tokens=simple)))
    return b"".join(parts)


async def encode_text(call: Call, request: DecodeRequest, texts: list[str]) -> bytes:
    """Decode."""
    return written(tei_pb2.DecodeResponse(text=texts[0]))


_TOKEN_METHODS = (
    Method(
        service="Tokenize",
        name="Tokenize",
        message=tei_pb2.EncodeRequest,
        decode=decode_tokenize,
        run=Pipeline.tokenize,
        encode=encode_tokens,
    ),
    Method(
        service="Tokenize",
        name="Decode",
        message=tei_pb2.DecodeRequest,
        decode=decode_decode,
        run=Pipeline.decode,
        encode=encode_text,
    ),
)


def decode_predict(call: Call, message: tei_pb2.PredictRequest) -> ClassifyRequest:
    """A text. As all decoders here raises RequestError, naming the field."""
    return _predict_request(call, message, [read_text(message.inputs, "inputs")])


def decode_predict_pair(call: Call, message: tei_pb2.PredictPairRequest) -> ClassifyRequest:
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
        texts=texts[:1],
        pair_texts=texts[1:],
        prompt=prompt_for(model),
        truncation=read_truncation(message),
        raw_scores=message.raw_scores,
        is_bounded=True,
        field="inputs",
        is_single=True,
    )


async def encode_predict(call: Call, request: ClassifyRequest, scored: Embedded) -> bytes:
    """The highest score first."""
    (scores,) = scored.rows
    labels = labels_of(request.model, len(scores))
    order, numbers = np.argsort(-scores, kind="stable").tolist(), scores.tolist()
    predictions = [tei_pb2.Prediction(score=numbers[at], label=labels[at]) for at in order]
    return written(tei_pb2.PredictResponse(predictions=predictions, metadata=metadata(call.trace)))


_PREDICT_METHODS = (
    Method(
        service="Predict",
        name="Predict",
        message=tei_pb2.PredictRequest,
        decode=decode_predict,
        run=classify,
        encode=encode_predict,
    ),
    Method(
        service="Predict",
        name="PredictPair",
        message=tei_pb2.PredictPairRequest,
        decode=decode_predict_pair,
        run=classify,
        encode=encode_predict,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RerankRequest(RerankRequest):
    """The texts to be ranked, and whether the answer repeats it."""

    has_texts: bool


def decode_rerank(call: Call, message: tei_pb2.RerankRequest) -> _RerankRequest:
    """Raises RequestError, naming the field, as all decoders here do."""
    if not message.texts:
        raise EmptyInput("texts must not be empty", param="texts")
    check_num_items(len(message.texts), "texts", max_items=call.max_items)
    if not message.query and "" in message.texts:
        raise EmptyInput("query must not be an empty string", param="query")
    return _rerank_request(call, message, [message.query], list(message.texts))


def decode_rerank_stream(call: Call, messages: Sequence[tei_pb2.RerankStreamRequest]) -> _RerankRequest:
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


async def encode_rerank(call: Call, request: _RerankRequest, ranked: Ranked) -> bytes:
    """The highest score first. Long work is done in slices, so that other requests run in between."""
    order, scores, parts = ranked.best_first().tolist(), ranked.scores.tolist(), []
    async for part in steps(len(order), _NUMBERS_A_RANK):
        ranks = [
            tei_pb2.Rank(index=at, score=scores[at], text=request.documents[at] if request.has_texts else None)
            for at in order[part]
        ]
        parts.append(written(tei_pb2.RerankResponse(ranks=ranks)))
    parts.append(written(tei_pb2.RerankResponse(metadata=metadata(call.trace))))
    return b"".join(parts)


RERANK = Method(
    service="Rerank",
    name="Rerank",
    message=tei_pb2.RerankRequest,
    decode=decode_rerank,
    run=rank,
    encode=encode_rerank,
)
RERANK_STREAM = Method(
    service="Rerank",
    name="RerankStream",
    message=tei_pb2.RerankStreamRequest,
    reads=Reads.ALL,
    decode=decode_rerank_stream,
    run=rank,
    encode=encode_rerank,
)
_ALSO_AS_STREAMS = (*_EMBED_METHODS, *_PREDICT_METHODS, *_TOKEN_METHODS)


def _as_stream(method: Method) -> Method:
    return replace(method, name=f"{method.name}Stream", reads=Reads.EACH)


METHODS = (*_ALSO_AS_STREAMS, *map(_as_stream, _ALSO_AS_STREAMS), RERANK, RERANK_STREAM)


def info_method(state: ModelsState) -> Method:
    """The method that describes the first model, if there are several."""

    async def run(pipeline: Pipeline, request: None, trace: Trace) -> dict[str, Any]:
        return describe(state)

    return Method(
        service="Info",
        name="Info",
        message=tei_pb2.InfoRequest,
        decode=lambda call, message: None,
        run=run,
        encode=_encode_info,
    )


async def _encode_info(call: Call, request: None, known: dict[str, Any]) -> bytes:
    (kind,) = known["model_type"]
    named = {
        field.name: known[field.name]
        for field in tei_pb2.InfoResponse.DESCRIPTOR.fields
        if field.name != "model_type" and known.get(field.name) is not None
    }
    return written(tei_pb2.InfoResponse(model_type=_MODEL_TYPES[kind], **named))
