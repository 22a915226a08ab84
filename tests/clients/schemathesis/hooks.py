"""What schemathesis can't know of this server.

It never refuses a header that it does not know. And a body that the schema allows may contradict itself or the model,
which no schema says; such a refusal is right if its message says so.
"""

import re
from typing import Any

import schemathesis
from schemathesis import GenerationMode

_UNKNOWN_HEADER = "x-schemathesis-unknown-property"
_CONTRADICTION = re.compile(
    r"names of one option|can't (both )?be given with|can't both be given|differs? from|must be given"
    r"|asks? for (another|different)|names another end|has none of rank_fields|has no tokens"
    r"|is missing \(or texts, or input\)|token ids|property must have a text|must be true, false, NONE"
    r"|this model does not take|is longer than|text is missing|expected .int.{0,10}, got .float"  # 1.0 is an integer
    r"|on this route|\.npy|bits|must be from 1 to|has no text|is not one that this model"
)


@schemathesis.hook
def filter_case(context: Any, case: Any) -> bool:
    """Whether to send the request. `rank_fields` is not looked at where documents have no fields."""
    body = case.body if isinstance(case.body, dict) else {}
    lists = {"texts", "documents", "input"} & body.keys()  # /rerank reads one of them, whatever the others are
    return _UNKNOWN_HEADER not in (case.headers or {}) and "rank_fields" not in body and len(lists) < 2


@schemathesis.check
def refusals_are_contradictions(context: Any, response: Any, case: Any) -> None:
    """What the schema allows is refused for no other reason."""
    if response.status_code in (400, 422) and case.meta.generation.mode is GenerationMode.POSITIVE:
        assert _CONTRADICTION.search(response.text), response.text
