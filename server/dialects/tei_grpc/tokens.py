"""The methods of tei.v1.Tokenize: texts to tokens, and token ids to texts."""

from server.dialects.reading.inputs import Inputs, check_num_ids
from server.dialects.reading.prompts import PromptFields, read_prompt
from server.dialects.route import Call
from server.dialects.tei_grpc import tei_pb2
from server.dialects.tei_grpc.method import Method, read_text, written
from server.requests.errors import EmptyInput
from server.requests.pipeline import Pipeline
from server.requests.time_slices import steps
from server.requests.work import DecodeRequest, TokenizeRequest
from tokenizer_pool.details import Token

_NUMBERS_A_TOKEN = 16  # what writing a token costs, counted in plain numbers


def decode_tokenize(call: Call, message: tei_pb2.EncodeRequest) -> TokenizeRequest:
    """As all decoders here raises RequestError, naming the field."""
    model = call.models.choose(None)
    given = Inputs(texts=[read_text(message.inputs, "inputs")], is_single=True)
    fields = PromptFields(prompt_name=message.prompt_name if message.HasField("prompt_name") else None)
    return TokenizeRequest(
        model=model,
        texts=given.texts or (),
        prompt=read_prompt(fields, given, model),
        add_special_tokens=message.add_special_tokens,
        request_class=call.options.request_class,
        deadline=call.options.deadline,
        is_single=True,
    )


def decode_decode(call: Call, message: tei_pb2.DecodeRequest) -> DecodeRequest:
    """Decode."""
    if not message.ids:
        raise EmptyInput("ids must not be empty", param="ids")
    check_num_ids(len(message.ids), "ids")
    return DecodeRequest(
        model=call.models.choose(None),
        token_ids=[list(message.ids)],
        skip_special_tokens=message.skip_special_tokens,
        request_class=call.options.request_class,
        deadline=call.options.deadline,
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


METHODS = (
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
