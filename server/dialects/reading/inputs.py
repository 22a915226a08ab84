"""The items of a request: texts or token ids, as OpenAI's `input` and TEI's `inputs` give them, and texts in lists of
lists, as TEI's /predict and Baseten's /predict_tokens have them.

A list may mix texts and lists of ids, as with TEI, and texts may be objects with a `text`, as with Jina. Items are
counted before the value is decoded: 64 MB of JSON can be 20 million lists, which take seconds and a gigabyte. Of lists
of lists decoding checks that an inner list has at least one text, so there are never many more lists than quotes.

Chats may stand in the place of texts: as `messages`, or as `input`, as vLLM takes them. The model's own template makes
texts of them. A route has a type for each of these bodies.
"""

import json
import re
from collections.abc import Collection, Sequence
from itertools import chain, islice
from types import new_class
from typing import Annotated, Any, Generic, Protocol, TypeVar, cast

import msgspec
from msgspec import UNSET, UnsetType

from server.dialects.fields.field import SEND_TEXTS, item_field, names_of, option, passed_over, with_default
from server.dialects.fields.texts import ChatSpecialTokensField
from server.dialects.reading.json_body import NOT_GIVEN, FieldsReader, LosslessDecoder, is_given, parse
from server.requests.errors import EmptyInput, InvalidRequest
from server.requests.work import Item
from tokenizer_pool.client import MAX_DETAIL_CHARS
from tokenizer_pool.tasks import Chat
from wire.json_values import values, without_escapes


class TextObject(msgspec.Struct):
    """An object with a text. What else it may have elsewhere is refused: it would change the result."""

    text: str | None = None
    image: msgspec.Raw | UnsetType = UNSET  # Jina's, as the next three
    audio: msgspec.Raw | UnsetType = UNSET
    video: msgspec.Raw | UnsetType = UNSET
    pdf: msgspec.Raw | UnsetType = UNSET
    text_pair: msgspec.Raw | UnsetType = UNSET  # Hugging Face's


class _Object(TextObject):
    """An item with a name for what it is."""

    url: msgspec.Raw | UnsetType = UNSET  # Jina's, of an image


_OBJECT: dict[str, Any] = {
    "type": "object",
    "properties": {name: {"type": "null"} for name in _Object.__struct_fields__} | {"text": {"type": "string"}},
    "required": ["text"],
}
_ID_LIST: dict[str, Any] = {"type": "array", "items": {"type": "integer"}}
# The types that the functions below take, for the OpenAPI page.
TEXT_LIST: dict[str, Any] = {"type": "array", "items": {"anyOf": [{"type": "string"}, _OBJECT]}}
TEXTS = {"anyOf": [{"type": "string"}, TEXT_LIST]}
ID_LISTS = {"anyOf": [_ID_LIST, {"type": "array", "items": _ID_LIST}]}
SCHEMA = {
    "anyOf": [
        {"type": "string"},
        _ID_LIST,
        {"type": "array", "items": {"anyOf": [{"type": "string"}, _ID_LIST, _OBJECT]}},
    ]
}
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
_MARK, _ROLE = b'"messages"', b'"role"'
_BATCH = re.compile(rb"\[\s*\[")
_MARKS_AN_ITEM = 32  # strings, and also lists and objects, that an object may have; for each 32 more it counts twice
_MAX_IDS = 1 << 22  # of one request: 2,048 lists of 2,048. OpenAI takes 300,000 tokens
_FIRST_ITEM = re.compile(rb"\[\s*(.)")

_TEXT = msgspec.json.Decoder(str)
_TEXTS = msgspec.json.Decoder(list[str])
_IDS = LosslessDecoder[list[int]](list[int])
_ID_LISTS = LosslessDecoder[list[list[int]]](list[list[int]])
_MIXED = LosslessDecoder[list[str | list[int] | _Object]](list[str | list[int] | _Object])
_ONES = msgspec.json.Decoder(list[Annotated[list[str], msgspec.Meta(min_length=1, max_length=1)]])
_ONES_OR_PAIRS = msgspec.json.Decoder(list[Annotated[list[str], msgspec.Meta(min_length=1, max_length=2)]])


_Item = TypeVar("_Item", bound=Item, covariant=True)


class Inputs(msgspec.Struct, Generic[_Item], frozen=True):
    """The items of a request, and the field that has them."""

    items: Sequence[_Item]
    field: str
    is_single: bool = False  # one item, not a list

    @property
    def has_ids(self) -> bool:
        """Whether there are token ids among the items."""
        return list in map(type, self.items)


def read_inputs(value: msgspec.Raw, field: str, *, max_items: int, may_be_empty: bool = False) -> Inputs[Item]:
    """The first characters show what it is. `may_be_empty` is about single texts.

    Raises InvalidRequest, EmptyInput and MalformedBody.
    """
    raw = bytes(value)
    if raw.startswith(b'"'):
        texts = [parse(_TEXT, raw, field)]
        return Inputs(texts if may_be_empty else _check_texts(texts, field), field, is_single=True)
    first = _FIRST_ITEM.match(raw)
    if first is None:
        raise InvalidRequest(f"{field} must be a text, or a list of texts, token ids or lists of ids", param=field)
    match first[1]:
        case b"]":
            raise EmptyInput(f"{field} must not be empty", param=field)
        case b'"':
            num_texts = num_strings(raw)
            if num_texts > max_items and b"{" in raw:  # perhaps of objects, each with several
                return _read_mixed(raw, field, max_items=max_items, may_be_empty=may_be_empty)
            check_num_items(num_texts, field, max_items=max_items)
            try:
                texts = parse(_TEXTS, raw, field)
            except InvalidRequest:
                return _read_mixed(raw, field, max_items=max_items, may_be_empty=may_be_empty)
            check_num_items(len(texts), field, max_items=max_items)
            return Inputs(texts if may_be_empty else _check_texts(texts, field + "[{}]"), field)
        case b"{":
            return _read_mixed(raw, field, max_items=max_items, may_be_empty=may_be_empty)
        case b"[" if b'"' in raw:
            return _read_mixed(raw, field, max_items=max_items, may_be_empty=may_be_empty)
        case b"[":
            check_num_items(raw.count(b"[") - 1, field, max_items=max_items)
            check_num_ids(raw.count(b",") + 1, field)
            return Inputs(parse(_ID_LISTS, raw, field), field)
        case digit if digit in b"-0123456789":
            check_num_ids(raw.count(b",") + 1, field)
            return Inputs([parse(_IDS, raw, field)], field, is_single=True)
        case _:
            raise InvalidRequest(f"{field}[0] must be a text, a token id or a list of ids", param=f"{field}[0]")


def _read_mixed(raw: bytes, field: str, *, max_items: int, may_be_empty: bool) -> Inputs[Item]:
    """A list that has more than one kind of items, or objects. An item of none is an empty text."""
    check_num_ids(beside_texts(raw, field, max_items=max_items).count(b",") + 1, field)
    given = parse(_MIXED, raw, field)
    check_num_items(len(given), field, max_items=max_items)
    places = [f"{field}[{index}]" for index in range(len(given))]
    items = [
        text_of(item, place) if isinstance(item, _Object) else item or ""
        for item, place in zip(given, places, strict=True)
    ]
    for item, place in zip(items, places, strict=True):
        if not (item or may_be_empty):
            raise EmptyInput(f"{place} must not be empty", param=place)
    return Inputs(items, field)


def beside_texts(raw: bytes, field: str, *, max_items: int) -> bytes:
    """The JSON without its strings. Raises InvalidRequest for far more strings, lists and objects than items."""
    unescaped = raw.replace(rb"\\", b"").replace(rb"\"", b"")
    check_num_items(unescaped.count(b'"') // 2 // _MARKS_AN_ITEM, field, max_items=max_items)
    rest = b"".join(unescaped.split(b'"')[::2])
    check_num_items((rest.count(b"[") + rest.count(b"{")) // _MARKS_AN_ITEM, field, max_items=max_items)
    return rest


def text_of(item: TextObject, place: str) -> str:
    """The object's text. Raises InvalidRequest for an object without a text, or with more than that."""
    for name in item.__struct_fields__:
        value = getattr(item, name)
        if name != "text" and value is not UNSET and is_given(value):
            raise InvalidRequest(f"{place}.{name} is not supported; send texts", param=f"{place}.{name}")
    if item.text is None:
        raise InvalidRequest(f"{place}.text is missing", param=f"{place}.text")
    return item.text


def read_texts(value: msgspec.Raw, field: str, *, max_items: int, may_be_empty: bool = False) -> Inputs[str]:
    """Reads what read_inputs does, and refuses token ids."""
    given = read_inputs(value, field, max_items=max_items, may_be_empty=may_be_empty)
    if given.has_ids:
        raise InvalidRequest(f"{field} must be a text or a list of texts", param=field)
    return cast(Inputs[str], given)


def read_ids(value: msgspec.Raw, field: str, *, max_items: int) -> Inputs[list[int]]:
    """Reads token ids where no texts are allowed."""
    given = read_inputs(value, field, max_items=max_items)
    if str in map(type, given.items):
        raise InvalidRequest(f"{field} must be a list of token ids, or a list of such lists", param=field)
    return cast(Inputs[list[int]], given)


def num_strings(raw: bytes) -> int:
    """A lower bound, at least half of the true number: each has two quotes, and after a final backslash the closing
    one looks escaped."""
    return (raw.count(b'"') - raw.count(b'\\"')) // 2


def check_num_strings(raw: bytes, field: str, *, max_items: int) -> None:
    """Bounds the strings of items with several each, before they are decoded. Raises InvalidRequest."""
    check_num_items(-(-num_strings(raw) // _MARKS_AN_ITEM), field, max_items=max_items)


def check_num_items(num_items: int, field: str, *, max_items: int) -> None:
    """Raises InvalidRequest."""
    if num_items > max_items:
        raise InvalidRequest(
            f"{field} has more items than the maximum allowed batch size of {max_items} (--max-client-batch-size)",
            param=field,
            reason="batch_size",
        )


def check_num_ids(num_ids: int, field: str) -> None:
    """Raises InvalidRequest."""
    if num_ids > _MAX_IDS:
        raise InvalidRequest(f"{field} has more than {_MAX_IDS} token ids", param=field)


def _check_texts(texts: list[str], name: str) -> list[str]:
    if not all(texts):
        param = name.format(texts.index(""))
        raise EmptyInput(f"{param} must not be an empty string", param=param)
    return texts


class TextLists(msgspec.Struct, frozen=True):
    """Texts, or pairs of them."""

    items: Sequence[str]
    pair_texts: Sequence[str] = ()  # as many second texts; () = no pairs
    alone: frozenset[int] = frozenset()  # indices of the texts without a partner, if others have one
    is_single: bool = False  # one text or one pair, not a list of them


def read_texts_or_pairs(value: msgspec.Raw, field: str, *, max_items: int) -> TextLists:
    """A text, a pair of texts, or a list of lists of one or of two.

    Raises InvalidRequest, EmptyInput and MalformedBody.
    """
    raw = bytes(value)
    wrong = InvalidRequest(
        f"{field} must be a text, a pair of texts, or a list of lists of one text or two each", param=field
    )
    match _kind(raw, field):
        case b"text":
            lists, is_single = [[parse(_TEXT, raw, field)]], True
        case b"texts":
            if num_strings(raw) > 2:
                raise wrong
            lists, is_single = [parse(_TEXTS, raw, field)], True
            if len(lists[0]) > 2:
                raise wrong
        case b"lists":
            check_num_items(-(-num_strings(raw) // 2), field, max_items=max_items)
            lists, is_single = parse(_ONES_OR_PAIRS, raw, field), False
        case _:
            raise wrong
    check_num_items(len(lists), field, max_items=max_items)
    return _texts_or_pairs(lists, field, is_single=is_single)


def read_single_texts(value: msgspec.Raw, field: str, *, max_items: int) -> TextLists:
    """A text, a list of texts, or a list of lists of one text each. Raises what read_texts_or_pairs raises."""
    raw = bytes(value)
    match _kind(raw, field):
        case b"text":
            lists, is_single = [[parse(_TEXT, raw, field)]], True
        case b"texts":
            check_num_items(num_strings(raw), field, max_items=max_items)
            lists, is_single = [[text] for text in parse(_TEXTS, raw, field)], False
        case b"lists":
            check_num_items(num_strings(raw), field, max_items=max_items)
            lists, is_single = parse(_ONES, raw, field), False
        case _:
            raise InvalidRequest(
                f"{field} must be a text, a list of texts, or a list of lists of one text each", param=field
            )
    check_num_items(len(lists), field, max_items=max_items)
    return _texts_or_pairs(lists, field, is_single=is_single)


def _kind(raw: bytes, field: str) -> bytes:
    """The kind of input that the first characters show: text, texts, lists, or "" for anything else. Raises
    EmptyInput."""
    if raw.startswith(b'"'):
        return b"text"
    first = _FIRST_ITEM.match(raw)
    if first is not None and first[1] == b"]":
        raise EmptyInput(f"{field} must not be empty", param=field)
    return {b'"': b"texts", b"[": b"lists"}.get(first[1], b"") if first else b""


def _texts_or_pairs(lists: list[list[str]], field: str, *, is_single: bool) -> TextLists:
    """One side of a pair may be empty, as TEI has it."""
    for index, texts in enumerate(lists):
        if not any(texts):
            name = field if is_single else f"{field}[{index}]"
            raise EmptyInput(f"{name} must not be empty", param=name)
    alone = frozenset(index for index, texts in enumerate(lists) if len(texts) == 1)
    first_texts = [texts[0] for texts in lists]
    if len(alone) == len(lists):
        return TextLists(first_texts, is_single=is_single)
    pair_texts = ["" if index in alone else texts[1] for index, texts in enumerate(lists)]
    return TextLists(first_texts, pair_texts, alone, is_single)


class ChatFields(ChatSpecialTokensField, kw_only=True):
    """How the model's template is used for a chat, or a list of chats."""

    chat_template_kwargs: Annotated[
        msgspec.Raw, option("what the template gets besides", by="vLLM", neutral=({},), schema={"type": "object"})
    ] = NOT_GIVEN
    add_generation_prompt: Annotated[
        bool | None, passed_over("whether the answer is opened", by="vLLM", changes_result=True)
    ] = None
    continue_final_message: Annotated[
        bool | None, passed_over("whether the last message is open", by="vLLM", changes_result=True)
    ] = None


_CHATS = {"anyOf": [_CHAT, {"type": "array", "items": _CHAT, "minItems": 1}]}


class MessagesFields(ChatFields, kw_only=True):
    """A body with chats in a field of their own."""

    messages: Annotated[
        msgspec.Raw, item_field("chats in the place of texts", _CHATS, by="vLLM", neutral=(), hint=SEND_TEXTS)
    ]


class InputChatFields(ChatFields, kw_only=True):
    """A body with chats where others have texts."""

    input: Annotated[msgspec.Raw, item_field("chats in the place of texts", _CHATS)]


class _Part(msgspec.Struct):
    type: str
    text: str | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None
    tool_calls: msgspec.Raw = NOT_GIVEN


class _Role(msgspec.Struct):
    role: str
    text: msgspec.Raw | UnsetType = UNSET


_ROLES = msgspec.json.Decoder(list[_Role])
_ROLE_LISTS = msgspec.json.Decoder(list[list[_Role]])
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OF_THE_BODY = frozenset(("messages", "add_generation_prompt", "continue_final_message"))
_MESSAGES = msgspec.json.Decoder(list[_Message])
_BATCHES = msgspec.json.Decoder(list[list[_Message]])
_Body = TypeVar("_Body", bound=msgspec.Struct)


class TextOrChatReader(Generic[_Body]):
    """Reads the JSON bodies of a route that takes texts, and chats in their place."""

    def __init__(
        self, body: type[_Body], *, field: str, without: Collection[str] = (), takes_chats_as_input: bool = False
    ) -> None:
        """`field` is where the texts are. Chats come without it, and without other fields that say what goes before."""
        self._field = field
        marks = [(name, msgspec.Raw, NOT_GIVEN) for name in ("messages", field)]
        self._marks = msgspec.json.Decoder(msgspec.defstruct("Marks", marks))
        lacks = {field, *without, *names_of(MessagesFields)}
        chat = _with_fields(MessagesFields, f"Chat{body.__name__}", body, lacks)
        #: for the OpenAPI page
        self.chat_bodies: tuple[type[ChatFields], ...] = (chat,)
        self._texts, self._messages = FieldsReader(body), FieldsReader(chat, not_with_chats=without)
        self._input_chat: FieldsReader[ChatFields] | None = None
        if takes_chats_as_input:
            input_chat = _with_fields(InputChatFields, f"InputChat{body.__name__}", body, lacks)
            self.chat_bodies = (chat, input_chat)
            self._input_chat = FieldsReader(input_chat, not_with_chats=without)

    def read(self, body: bytes) -> tuple[_Body, ChatFields | None]:
        """The fields, and the chats if there are any: then the fields lack some. Raises what FieldsReader raises."""
        if _MARK not in body and (self._input_chat is None or _ROLE not in body):
            return self._texts.read(body), None
        messages, given = msgspec.structs.astuple(parse(self._marks, body))
        if is_given(messages):
            if is_given(given):
                raise InvalidRequest(f"messages can't be given with {self._field}", param="messages")
            chat = self._messages.read(body)
        elif self._input_chat is not None and _are_chats(bytes(given)):
            chat = self._input_chat.read(body)
        else:
            return self._texts.read(body), None
        return cast(_Body, chat), chat


def _with_fields(
    chat: type[ChatFields], name: str, body: type[msgspec.Struct], lacks: Collection[str]
) -> type[ChatFields]:
    """A body with the fields of chats, and those of a body of texts that it does not lack."""
    others = [own for own in msgspec.structs.fields(body) if own.name not in lacks]
    extra = [(own.name, own.type, with_default(own)) for own in others]
    bases = (chat, msgspec.defstruct(name, extra, kw_only=True))
    return cast(type[ChatFields], new_class(name, bases, {"kw_only": True}))


def _are_chats(raw: bytes) -> bool:
    """Whether all items are messages, or lists of them. An object with a `text` is a text, whatever else it has.

    Of what is too large for chats only the beginning is looked at.
    """
    if len(raw) > MAX_DETAIL_CHARS:
        first = (0, 0) if _BATCH.match(raw) else (0,)
        names = {value.path[-1] for value in islice(values(without_escapes(raw)), 64) if value.path[:-1] == first}
        return "role" in names and "text" not in names
    try:
        given = chain.from_iterable(_ROLE_LISTS.decode(raw)) if _BATCH.match(raw) else _ROLES.decode(raw)
        found = [item.text is UNSET for item in given]
    except msgspec.DecodeError:
        return False
    return bool(found) and all(found)


def read_chats(fields: ChatFields, *, max_items: int, opens_answer: bool = False) -> Inputs[Chat]:
    """Reads chats; `opens_answer` is what add_generation_prompt is where it is not given. Raises EmptyInput and
    InvalidRequest."""
    opens = opens_answer if fields.add_generation_prompt is None else fields.add_generation_prompt
    continues = bool(fields.continue_final_message)
    if continues and fields.add_generation_prompt:
        raise InvalidRequest(
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True.",  # vLLM's words
            param="continue_final_message",
        )
    field = "input" if isinstance(fields, InputChatFields) else "messages"
    raw, template_kwargs = bytes(getattr(fields, field)), _template_kwargs(fields)
    if len(raw) > MAX_DETAIL_CHARS:
        raise InvalidRequest(f"{field} has more than {MAX_DETAIL_CHARS} bytes", param=field)
    is_single = _BATCH.match(raw) is None
    chats = [parse(_MESSAGES, raw, field)] if is_single else parse(_BATCHES, raw, field)
    check_num_items(len(chats), field, max_items=max_items)
    conversations = (_conversation(chat, field if is_single else f"{field}[{at}]") for at, chat in enumerate(chats))
    items = [Chat(each, opens and not continues, continues, template_kwargs) for each in conversations]
    return Inputs(items, field, is_single)


def _template_kwargs(fields: ChatFields) -> str:
    """What the template gets besides, a JSON object. Raises InvalidRequest."""
    name = "chat_template_kwargs"
    if not is_given(fields.chat_template_kwargs):
        return "{}"
    raw = bytes(fields.chat_template_kwargs)
    if len(raw) > MAX_DETAIL_CHARS:
        raise InvalidRequest(f"{name} has more than {MAX_DETAIL_CHARS} bytes", param=name)
    if given := _OF_THE_BODY.intersection(parse(_MEMBERS, raw, name)):
        raise InvalidRequest(f"{name} can't have {min(given)}, which is a field of the body", param=name)
    try:
        json.loads(raw)
    except ValueError:  # msgspec has found no other fault
        raise InvalidRequest(f"{name} has a number of too many digits", param=name) from None
    return raw.decode()


class _InputFields(Protocol):
    input: msgspec.Raw


def read_items(
    fields: _InputFields, chat: ChatFields | None, *, max_items: int, may_be_empty: bool = False
) -> Inputs[Item]:
    """The chats of a body that has them, else its texts or token ids. Raises InvalidRequest, EmptyInput and
    MalformedBody."""
    if chat is not None:
        return read_chats(chat, max_items=max_items)
    return read_inputs(fields.input, "input", max_items=max_items, may_be_empty=may_be_empty)


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
