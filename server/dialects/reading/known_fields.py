"""Fields of any dialect that change a result: a route honours each of them, or refuses it by its name.

A route's body declares what the route honours. Every other field of the table is refused, unless its value changes
nothing. Fields that are in no body and not in the table (user, metadata) are passed over.
"""

from typing import Any, Generic, TypeVar, cast

import msgspec
from msgspec import UNSET, UnsetType

from server.dialects.reading.json_body import LARGE_BYTES, LosslessDecoder, check_nesting, parse, plain
from server.requests.errors import InvalidRequest

_Body = TypeVar("_Body", bound=msgspec.Struct)

# The values that change nothing on a route without the field. null never does.
KNOWN_FIELDS: dict[str, tuple[Any, ...]] = {
    # how rows are written
    "encoding_format": ("float", ["float"]),
    "embedding_type": ("float",),
    "embedding_types": (["float"],),
    "output_dtype": ("float",),
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    # which numbers they have
    "dimensions": (0,),
    "output_dimension": (),
    "outputDimensionality": (),
    "normalize": (),
    "normalized": (),
    "long_text": ("truncate",),
    "late_chunking": (False,),
    "late_chunking_params": (),
    "return_multivector": (False,),
    "lora_path": (),
    # what goes before a text
    "prompt_name": (),
    "prompt": (),
    "input_type": (),
    "task": (),
    "task_type": (),
    "instruction": (),
    "instruct": (),
    "chat_template": (),
    "chat_template_kwargs": (),
    "add_special_tokens": (True,),
    "padding": (True, False, "do_not_pad", "longest"),
    # what is cut off
    "truncate": (False, "NONE"),
    "truncation": (False,),
    "truncation_direction": ("right", "Right"),
    "truncation_side": ("right",),
    "truncation_strategy": (),
    "autoTruncate": (),
    "truncate_prompt_tokens": (),
    "max_tokens": (),
    "max_tokens_per_doc": (),
    "max_tokens_per_query": (),
    "max_chunks_per_doc": (1,),
    # what is scored, and how
    "raw_scores": (False,),
    "use_activation": (True,),
    "function_to_apply": (),
    "aggregation_strategy": ("none",),
    "candidate_labels": ([],),
    "labels": ([],),
    "classifier_id": (),
    "rank_fields": ([],),
    "relevant_spans": (False,),
    "rewrite_query": (False,),
    "top_n": (),
    "top_k": (),
    "return_text": (False,),
    "return_documents": (False,),
    "return_input": (False,),
    "on_error": ("fail",),
    # inputs that are no text
    "modality": ("text",),
    "messages": (),
    "images": ([],),
    "image": (),
}
_HINTS = {
    **dict.fromkeys(("messages", "images", "image"), "send texts instead"),
    "outputDimensionality": "its name here is dimensions",  # Vertex AI's, as the next two
    "autoTruncate": "its name here is truncate",
    "task_type": "its name here is task",
}
_NEUTRAL = {name: frozenset(map(msgspec.json.encode, (None, *values))) for name, values in KNOWN_FIELDS.items()}
_PLAIN = msgspec.inspect.type_info(bool | int)
_LONGEST = 1 + max(len(value) for values in _NEUTRAL.values() for value in values)


class FieldsReader(Generic[_Body]):
    """Reads the JSON bodies of one route, or objects in them."""

    def __init__(self, body: type[_Body]) -> None:
        own = {field.encode_name for field in msgspec.structs.fields(body)}
        self._foreign_names = [name for name in KNOWN_FIELDS if name not in own]
        foreign = [(name, msgspec.Raw | UnsetType, UNSET) for name in self._foreign_names]
        # Most bodies have only fields that the route declares. They are decoded once and need no other look.
        strict = msgspec.defstruct(body.__name__, [], bases=(body,), forbid_unknown_fields=True)
        self._strict = msgspec.json.Decoder(cast(type[_Body], strict))
        self._lenient = LosslessDecoder[_Body](body)
        self._foreign = msgspec.json.Decoder(msgspec.defstruct("Foreign", foreign))

    def read(self, body: bytes | msgspec.Raw, field: str | None = None) -> _Body:
        """The fields of a body. `field` is the name of the object, None for the whole body. Raises MalformedBody and
        InvalidRequest.

        A large body has been through `check_large` before.
        """
        try:
            fields = self._strict.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._refuse_foreign(body, field)
            fields = parse(self._lenient, body, field)
        if field is None and len(whole := bytes(body)) <= LARGE_BYTES:
            check_nesting(whole)
        return fields

    def _refuse_foreign(self, body: bytes | msgspec.Raw, field: str | None) -> None:
        """Raises InvalidRequest for a known field that the route does not honour, and what `parse` raises."""
        values = msgspec.structs.astuple(parse(self._foreign, body, field))
        for name, value in zip(self._foreign_names, values, strict=True):
            if value is not UNSET and not _is_neutral(bytes(memoryview(value)[:_LONGEST]), name):
                raise _refusal(name, param=f"{field}.{name}" if field else name)


def _is_neutral(value: bytes, name: str) -> bool:
    """Whether a value changes nothing; of a longer one only its beginning is given."""
    neutral = _NEUTRAL[name]
    return value in neutral or (len(value) < _LONGEST and plain(value, _PLAIN) in neutral)


def _refusal(name: str, *, param: str) -> InvalidRequest:
    values = " or ".join(msgspec.json.encode(value).decode() for value in KNOWN_FIELDS[name])
    problem = f"must be {values} on this route, or be left out" if values else "is not supported on this route"
    hint = f"; {_HINTS[name]}" if name in _HINTS else ""
    return InvalidRequest(f"{param} {problem}{hint}", param=param)
