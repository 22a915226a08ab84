"""Whether a value of one type may be given where another is asked for, as far as annotations tell."""

import types
import typing
from typing import Any

_NUMBERS = {int: (float, complex), float: (complex,), bool: (int, float, complex)}


def fits(given: Any, wanted: Any) -> bool:
    """Both are resolved annotations. Any fits Any alone: nobody could say what else it is."""
    given, wanted = _plain(given), _plain(wanted)
    if given == wanted:
        return True
    if isinstance(given, typing.NewType):
        return fits(given.__supertype__, wanted)
    if typing.get_origin(given) is typing.Literal:
        return _literal_fits(given, wanted)
    if is_union(given):
        return all(fits(one, wanted) for one in typing.get_args(given))
    if is_union(wanted):
        return any(fits(given, one) for one in typing.get_args(wanted))
    return given is not Any and (wanted is object or _class_fits(given, wanted))


def in_words(kind: Any) -> str:
    """A type as people write it."""
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind).replace("typing.", "")


def is_union(kind: Any) -> bool:
    """`X | Y`, also as `Optional[X]` and `Union[X, Y]`."""
    return typing.get_origin(kind) in (typing.Union, types.UnionType)


def _plain(kind: Any) -> Any:
    """Without Annotated; None is the type of None."""
    if typing.get_origin(kind) is typing.Annotated:
        return typing.get_args(kind)[0]
    return types.NoneType if kind is None else kind


def _literal_fits(given: Any, wanted: Any) -> bool:
    values = typing.get_args(given)
    if typing.get_origin(wanted) is typing.Literal:
        return set(values) <= set(typing.get_args(wanted))
    return all(fits(type(value), wanted) for value in values)


def _class_fits(given: Any, wanted: Any) -> bool:
    own, other = typing.get_origin(given) or given, typing.get_origin(wanted) or wanted
    if not (isinstance(own, type) and isinstance(other, type)):
        return False
    if other in _NUMBERS.get(own, ()):
        return True
    try:
        if not issubclass(own, other):
            return False
    except TypeError:  # a Protocol that can't be asked
        return False
    return _arguments_fit(own, typing.get_args(given), other, typing.get_args(wanted))


def _arguments_fit(own: type, given: tuple[Any, ...], other: type, wanted: tuple[Any, ...]) -> bool:
    if not wanted:
        return True
    if own is tuple and other is not tuple:  # given as a Sequence, say
        inner = [one for one in given if one is not Ellipsis]
        return bool(inner) and all(fits(one, wanted[0]) for one in inner)
    if len(wanted) == 2 and wanted[1] is Ellipsis and Ellipsis not in given:
        return bool(given) and all(fits(one, wanted[0]) for one in given)
    if not given and len(wanted) == 1 and own is str:
        return fits(str, wanted[0])
    return len(given) == len(wanted) and all(
        one is another or another is Any or fits(one, another) for one, another in zip(given, wanted, strict=True)
    )
