"""vLLM's /tokenize and /detokenize: ids of a text or of a chat, and the text of ids. SGLang's bodies are the same."""

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from server.dialects.reading.chats import ChatFields, TextOrChatReader, read_chats
from server.dialects.reading.inputs import ID_LISTS, TEXTS, read_ids, read_texts
from server.dialects.reading.known_fields import FieldsReader
from server.dialects.reading.text_options import PromptFields, read_prompt
from server.dialects.route import Answer, Call, Route, json_answer
from server.dialects.row_answers import as_list
from server.dialects.vllm.shared import vllm_error
from server.requests.models import ServedModel
from server.requests.pipeline import Pipeline
from server.requests.time_slices import TimeSlice
from server.requests.work import DecodeRequest, TokenizeRequest
from tokenizer_pool.tasks import Token


class PromptBody(msgspec.Struct, kw_only=True):
    """The body of POST /tokenize in vLLM's form."""

    prompt: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=TEXTS)]  # a list is SGLang's
    add_special_tokens: bool = True
    return_token_strs: bool | None = None  # None = false
    model: str | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """The body of POST /detokenize."""

    tokens: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=ID_LISTS)]  # a list of lists is SGLang's
    skip_special_tokens: bool = False  # SGLang's
    model: str | None = None


_TOKENIZE = TextOrChatReader(PromptBody, field="prompt")
_DETOKENIZE = FieldsReader(DetokenizeBody)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request(TokenizeRequest):
    has_strings: bool


def decode_tokenize(call: Call, body: bytes) -> _Request:
    """POST /tokenize. Raises RequestError, naming the field or index."""
    fields, chat = _TOKENIZE.read(body)
    model = call.models.choose(fields.model, with_prompt=True)
    if chat is not None:
        return _of_chats(call, model, chat, has_strings=bool(fields.return_token_strs))
    given = read_texts(fields.prompt, "prompt", max_items=call.max_items)
    return _Request(
        **call.common(model),
        texts=given.texts or (),
        prompt=read_prompt(PromptFields(), model, name=call.models.asked_name(fields.model)),
        add_special_tokens=fields.add_special_tokens,
        field="prompt",
        is_single=given.is_single,
        has_strings=bool(fields.return_token_strs),
    )


def _of_chats(call: Call, model: ServedModel, fields: ChatFields, *, has_strings: bool) -> _Request:
    chats = read_chats(fields, max_items=call.max_items, opens_answer=True)
    return _Request(
        **call.common(model),
        texts=chats.conversations,
        chat=chats.chat,
        add_special_tokens=fields.add_special_tokens,
        field="messages",
        is_single=chats.is_single,
        has_strings=has_strings,
    )


def decode_detokenize(call: Call, body: bytes) -> DecodeRequest:
    """POST /detokenize. Raises RequestError, naming the field or index."""
    fields = _DETOKENIZE.read(body)
    model = call.models.choose(fields.model)
    given = read_ids(fields.tokens, "tokens", max_items=call.max_items)
    return DecodeRequest(
        **call.common(model),
        token_ids=given.token_ids or (),
        skip_special_tokens=fields.skip_special_tokens,
        field="tokens",
        is_single=given.is_single,
    )


async def encode_tokens(call: Call, request: _Request, tokens: list[list[Token]]) -> Answer:
    """One list of ids for one text, else a list of lists. Long work is done in slices."""
    ids, strings, time_slice = [], [], TimeSlice()
    for each in tokens:
        ids.append(msgspec.json.encode([token.token_id for token in each]))
        if request.has_strings:
            strings.append(msgspec.json.encode([token.text for token in each]))
        await time_slice.end_if_over()
    counts = [b"%d" % len(each) for each in tokens]
    content = b'{"count":%b,"max_model_len":%d,"tokens":%b,"token_strs":%b}' % (
        counts[0] if request.is_single else as_list(counts),
        request.model.max_seqlen,
        ids[0] if request.is_single else as_list(ids),
        b"null" if not strings else strings[0] if request.is_single else as_list(strings),
    )
    return json_answer(content)


async def encode_text(call: Call, request: DecodeRequest, texts: list[str]) -> Answer:
    """The text under vLLM's name and under SGLang's."""
    text = msgspec.json.encode(texts[0] if request.is_single else texts)
    return json_answer(b'{"prompt":%b,"text":%b}' % (text, text))


class TokenIds(msgspec.Struct):
    """The answer of POST /tokenize; lists of lists if several texts were given."""

    count: int | list[int]
    max_model_len: int
    tokens: list[Any]
    token_strs: list[Any] | None


class DetokenizedText(msgspec.Struct):
    """The answer of POST /detokenize: the text, twice."""

    prompt: str | list[str]
    text: str | list[str]


TOKENIZE = Route(
    path="/tokenize",
    decode=decode_tokenize,
    run=Pipeline.tokenize,
    encode=encode_tokens,
    error_shape=vllm_error,
    summary="Show the token ids of a text or of a chat with vLLM's API",
    body=PromptBody,
    example={"prompt": "The ferry leaves at seven."},
    answers=(TokenIds,),
    more_bodies=(_TOKENIZE.chat_body,),
)
ROUTES = tuple(
    Route(
        path=path,
        decode=decode_detokenize,
        run=Pipeline.decode,
        encode=encode_text,
        error_shape=vllm_error,
        summary="Make a text of token ids with vLLM's API",
        body=DetokenizeBody,
        example={"tokens": [101, 7592, 102]},
        answers=(DetokenizedText,),
    )
    for path in ("/detokenize",)
)
