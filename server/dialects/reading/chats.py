"""Chats in the place of texts: `messages`, as vLLM takes them. The model's own template makes texts of them.

A body has either `input` or `messages`, so a route that takes both has a type for each.
"""

import re
from collections.abc import Collection, Sequence
from typing import Annotated, Generic, Protocol, TypedDict, TypeVar, cast

import msgspec

from server.dialects.reading.inputs import check_num_items, read_inputs
from server.dialects.reading.json_body import NOT_GIVEN, is_given, parse
from server.dialects.reading.known_fields import FieldsReader
from server.requests.errors import EmptyInput, InvalidRequest
from tokenizer_pool.client import MAX_DETAIL_CHARS
from tokenizer_pool.tasks import Chat

_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_CONTENT = {"anyOf": [{"type": "string"}, {"type": "array", "items": _PART}, {"type": "null"}]}
_MESSAGE = {
    "type": "object",
    "properties": {"role": {"type": "string"}, "content": _CONTENT, "tool_calls": {"type": "null"}},
    "required": ["role"],
}
_CHAT = {"type": "array", "items": _MESSAGE, "minItems": 1}
_MARK = b'"messages"'
_BATCH = re.compile(rb"\[\s*\[")


class ChatFields(msgspec.Struct, kw_only=True):
    """The fields of a request for a chat, or a list of chats."""

    messages: Annotated[
        msgspec.Raw,
        msgspec.Meta(extra_json_schema={"anyOf": [_CHAT, {"type": "array", "items": _CHAT, "minItems": 1}]}),
    ]
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool = False  # templates write them


class Chats(msgspec.Struct, frozen=True):
    """Conversations in JSON, as tokenizer_pool.tasks has them, and how the template is used."""

    conversations: Sequence[str]
    chat: Chat
    is_single: bool


class _Part(msgspec.Struct):
    type: str
    text: str | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None
    tool_calls: msgspec.Raw = NOT_GIVEN


_MESSAGES = msgspec.json.Decoder(list[_Message])
_BATCHES = msgspec.json.Decoder(list[list[_Message]])
_Body = TypeVar("_Body", bound=msgspec.Struct)


class TextOrChatReader(Generic[_Body]):
    """Reads the JSON bodies of a route that takes texts, and chats in their place."""

    def __init__(self, body: type[_Body], *, field: str, without: Collection[str] = ()) -> None:
        """`field` is where the texts are. Chats come without it, and without other fields that say what goes before."""
        self._field = field
        marks = [(name, msgspec.Raw, NOT_GIVEN) for name in ("messages", field)]
        self._marks = msgspec.json.Decoder(msgspec.defstruct("Marks", marks))
        names = {field, *without, *(own.name for own in msgspec.structs.fields(ChatFields))}
        others = [own for own in msgspec.structs.fields(body) if own.name not in names]
        extra = [(own.name, own.type, own.default) for own in others]  # none has a default that is made
        #: for the OpenAPI page
        name = f"Chat{body.__name__}"
        self.chat_body = cast(type[ChatFields], msgspec.defstruct(name, extra, bases=(ChatFields,), kw_only=True))
        self._texts, self._chat = FieldsReader(body), FieldsReader(self.chat_body)

    def read(self, body: bytes) -> tuple[_Body, ChatFields | None]:
        """The fields, and the chats if there are any: then the fields lack some. Raises what FieldsReader raises."""
        if _MARK not in body:
            return self._texts.read(body), None
        has_messages, has_texts = map(is_given, msgspec.structs.astuple(parse(self._marks, body)))
        if not has_messages:
            return self._texts.read(body), None
        if has_texts:
            raise InvalidRequest(f"messages can't be given with {self._field}", param="messages")
        chat = self._chat.read(body)
        return cast(_Body, chat), chat


def read_chats(fields: ChatFields, *, max_items: int, opens_answer: bool = False) -> Chats:
    """Reads chats; `opens_answer` is what add_generation_prompt is where it is not given. Raises EmptyInput and
    InvalidRequest."""
    opens = opens_answer if fields.add_generation_prompt is None else fields.add_generation_prompt
    continues = bool(fields.continue_final_message)
    if continues and fields.add_generation_prompt:
        raise InvalidRequest(
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True.",  # vLLM's words
            param="continue_final_message",
        )
    raw = bytes(fields.messages)
    if len(raw) > MAX_DETAIL_CHARS:
        raise InvalidRequest(f"messages has more than {MAX_DETAIL_CHARS} bytes", param="messages")
    is_single = _BATCH.match(raw) is None
    chats = [parse(_MESSAGES, raw, "messages")] if is_single else parse(_BATCHES, raw, "messages")
    check_num_items(len(chats), "messages", max_items=max_items)
    conversations = [
        _conversation(chat, "messages" if is_single else f"messages[{at}]") for at, chat in enumerate(chats)
    ]
    return Chats(conversations, Chat(opens and not continues, continues), is_single)


class Items(TypedDict):
    """The fields of a Work that say of what it is."""

    texts: Sequence[str] | None
    token_ids: Sequence[Sequence[int]] | None
    chat: Chat | None
    add_special_tokens: bool
    field: str
    is_single: bool


class _InputFields(Protocol):
    input: msgspec.Raw
    add_special_tokens: bool


def read_items(fields: _InputFields, chat: ChatFields | None, *, max_items: int, may_be_empty: bool = False) -> Items:
    """The chats of a body that has them, else its texts or token ids. Raises InvalidRequest, EmptyInput and
    MalformedBody."""
    if chat is not None:
        chats = read_chats(chat, max_items=max_items)
        return {
            "texts": chats.conversations,
            "token_ids": None,
            "chat": chats.chat,
            "add_special_tokens": chat.add_special_tokens,
            "field": "messages",
            "is_single": chats.is_single,
        }
    given = read_inputs(fields.input, "input", max_items=max_items, may_be_empty=may_be_empty)
    return {
        "texts": given.texts,
        "token_ids": given.token_ids,
        "chat": None,
        "add_special_tokens": fields.add_special_tokens,
        "field": "input",
        "is_single": given.is_single,
    }


def _conversation(messages: list[_Message], name: str) -> str:
    if not messages:
        raise EmptyInput(f"{name} must not be empty", param=name)
    plain = [
        {"role": message.role, "content": _content(message, f"{name}[{at}]")} for at, message in enumerate(messages)
    ]
    return msgspec.json.encode(plain).decode()


def _content(message: _Message, name: str) -> str:
    """The message's text; the texts of several parts are lines."""
    if is_given(message.tool_calls):
        raise InvalidRequest(f"{name}.tool_calls is not supported", param=f"{name}.tool_calls")
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    for at, part in enumerate(message.content):
        if part.type != "text" or part.text is None:
            param = f"{name}.content[{at}]"
            raise InvalidRequest(f"{param} must be a part of type text: this server embeds texts", param=param)
    return "\n".join(part.text or "" for part in message.content)
