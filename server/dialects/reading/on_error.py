"""`on_error`: what happens to a request of several inputs if one of them can't be embedded."""

from server.dialects.route import Call
from server.dialects.writing.dtypes import DType
from server.requests.errors import InvalidRequest

_HAVE_NAN = frozenset((DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16))


def read_on_error(wanted: str | None, call: Call, *, are_ragged: bool = False) -> bool:
    """Whether a wrong input has an error of its own and null for its row; NaN in answers of rows alone, and no rows of
    tokens where these `are_ragged`. The call's form must be set. Raises InvalidRequest.
    """
    if wanted is None or wanted == "fail":
        return False
    if wanted != "null":
        raise InvalidRequest("on_error must be fail or null", param="on_error")
    if call.form and call.form.has_rows_alone and call.form.dtype not in _HAVE_NAN and not are_ragged:
        raise InvalidRequest(
            f"on_error can't be null with raw {call.form.dtype.value}, which has no number for a wrong input",
            param="on_error",
        )
    return True
