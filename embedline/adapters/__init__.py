"""The client behind the interfaces of other libraries, one file each. No other file imports these."""

from collections.abc import Mapping
from typing import Any

_SAY_WHAT_FOR = ("input_type", "task", "prompt_name", "prompt")


def fields_of_side(side: str, given: Mapping[str, Any] | None, *, send_input_type: bool) -> dict[str, Any]:
    """The fields of requests for one side of a search, query or document: those given, and the side itself where none
    of these says what the texts are for."""
    fields = dict(given or {})
    if send_input_type and not any(name in fields for name in _SAY_WHAT_FOR):
        fields["input_type"] = side
    return fields
