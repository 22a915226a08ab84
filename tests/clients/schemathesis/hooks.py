"""What schemathesis must not hold against a server of HTTP: headers that it does not know, which are never refused."""

from typing import Any

import schemathesis

_UNKNOWN = "x-schemathesis-unknown-property"


@schemathesis.hook
def filter_case(context: Any, case: Any) -> bool:
    """Whether to send the request."""
    return _UNKNOWN not in (case.headers or {})
