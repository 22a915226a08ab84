"""What schemathesis can't know of this server.

It never refuses a header that it does not know. And a body that the schema allows may contradict itself or the model,
which no schema says; such a refusal is right if its message says so.
"""

import re
from typing import Any

import schemathesis
from schemathesis import GenerationMode

_UNKNOWN_HEADER = "x-schemathesis-unknown-property"
_UNJUDGED = re.compile(r"'rank_fields'|'on_error': 'null'")  # also in an instance
_CONTRADICTION = re.compile(
    # two fields
    r"can't be given (with|beside)|can't both be given|Cannot set both|can't be null with|differs? from"
    r"|asks? for (another|different)|names another end|as many as|query. cannot be empty"
    r"|query must not be an empty string|is for texts, not for|late_chunking takes|a document may have"
    r"|must be float, or one type of numbers, with|texts alone are for input_type"
    r"|several adapters can't be given|must be an adapter, and names a model"
    # objects with very many strings count as several items, and instances have items of their own
    r"|has more items than"
    # a field and the model, or the form of the answer
    r"|is longer than|has no tokens|has no room|has ids without|this model does not take|on this route|bits|\.npy"
    r"|must not be bytes here|raw scores or raw bytes|has no chunks for"
    # names that only a template knows
    r"|chat template does not use|which is a field of the body"
    # documents have a text, or what rank_fields names
    r"|text is missing|has none of rank_fields"
    # 1.0 is an integer in a schema
    r"|expected .int.{0,10}, got .float"
)


@schemathesis.hook
def filter_case(context: Any, case: Any) -> bool:
    """Whether to send the request. `rank_fields` is not looked at where documents have no fields, and `on_error`
    forgives what the schema forbids."""
    return _UNKNOWN_HEADER not in (case.headers or {}) and not _UNJUDGED.search(repr(case.body))


@schemathesis.check
def refusals_are_contradictions(context: Any, response: Any, case: Any) -> None:
    """What the schema allows is refused for no other reason."""
    if response.status_code in (400, 422) and case.meta.generation.mode is GenerationMode.POSITIVE:
        assert _CONTRADICTION.search(response.text), response.text
