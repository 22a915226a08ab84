"""The methods of tei.v1.Predict: labels and scores of texts or of pairs."""

from collections.abc import Sequence

import numpy as np

from server.dialects.route import Call
from server.dialects.tei.predict import prompt_for
from server.dialects.tei_grpc import tei_pb2
from server.dialects.tei_grpc.method import Method, metadata, read_text, read_truncation, written
from server.requests.classify import ClassifyRequest, classify, labels_of
from server.requests.errors import EmptyInput, InvalidRequest
from server.requests.work import Embedded

_A_PAIR = 2


def decode(call: Call, message: tei_pb2.PredictRequest) -> ClassifyRequest:
    """A text. As all decoders here raises RequestError, naming the field."""
    return _request(call, message, [read_text(message.inputs, "inputs")])


def decode_pair(call: Call, message: tei_pb2.PredictPairRequest) -> ClassifyRequest:
    """Two texts, of which one may be empty."""
    if len(message.inputs) != _A_PAIR:
        raise InvalidRequest("inputs must have two texts", param="inputs")
    if not any(message.inputs):
        raise EmptyInput("inputs must not be empty strings", param="inputs")
    return _request(call, message, message.inputs)


def _request(
    call: Call, message: tei_pb2.PredictRequest | tei_pb2.PredictPairRequest, texts: Sequence[str]
) -> ClassifyRequest:
    model = call.models.choose(None)
    return ClassifyRequest(
        model=model,
        texts=texts[:1],
        pair_texts=texts[1:],
        prompt=prompt_for(model),
        truncation=read_truncation(message),
        raw_scores=message.raw_scores,
        is_bounded=True,
        request_class=call.options.request_class,
        deadline=call.options.deadline,
        field="inputs",
        is_single=True,
    )


async def encode(call: Call, request: ClassifyRequest, scored: Embedded) -> bytes:
    """The highest score first."""
    (scores,) = scored.rows
    labels = labels_of(request.model, len(scores))
    order, numbers = np.argsort(-scores, kind="stable").tolist(), scores.tolist()
    predictions = [tei_pb2.Prediction(score=numbers[at], label=labels[at]) for at in order]
    return written(tei_pb2.PredictResponse(predictions=predictions, metadata=metadata(call.trace)))


METHODS = (
    Method(
        service="Predict",
        name="Predict",
        message=tei_pb2.PredictRequest,
        decode=decode,
        run=classify,
        encode=encode,
    ),
    Method(
        service="Predict",
        name="PredictPair",
        message=tei_pb2.PredictPairRequest,
        decode=decode_pair,
        run=classify,
        encode=encode,
    ),
)
