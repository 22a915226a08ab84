"""Several names of one option, as different dialects have them. They may be given together if they agree."""

from typing import TypeVar

from server.requests.errors import InvalidRequest

_Value = TypeVar("_Value")


def read_one(**values: _Value | None) -> _Value | None:
    """The value that is given by one or more of the names; None if by none. Raises InvalidRequest."""
    given = {name: value for name, value in values.items() if value is not None}
    if not given:
        return None
    (first, wanted), *others = given.items()
    for name, value in others:
        if value != wanted:
            raise InvalidRequest(f"{name} differs from {first}", param=name)
    return wanted
