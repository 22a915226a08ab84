"""The language of chat templates: jinja2 in its sandbox, with what transformers adds and takes away.

Only chats need the library, and most servers never get one, so nothing imports this file at the start.
"""

import json
from datetime import datetime
from typing import Any

from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


class _Generation(Extension):
    """`{% generation %}` marks what an assistant writes, for training. Here it stands for what is in it."""

    tags = {"generation"}  # noqa: RUF012 - the name and the type are jinja2's

    def parse(self, parser: Parser) -> CallBlock:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # a block that is called, as in transformers, so what is set in it is not known after it
        block = CallBlock(self.call_method("_body"), [], [], body)
        block.set_lineno(line)
        return block

    def _body(self, caller: Macro) -> str:
        return caller()


class _Namespace(Namespace):
    """Has no attributes that Python itself uses."""

    def __init__(*args: Any, **attributes: Any) -> None:  # one of them may be called self
        own, *given = args
        values = dict(*given, **attributes)
        for name in values:
            _check_name(name)
        Namespace.__init__(own, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


class _Dict:
    """`dict` without the rest of the class."""

    def __call__(self, *args: Any, **values: Any) -> dict[Any, Any]:
        return dict(*args, **values)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def environment() -> ImmutableSandboxedEnvironment:
    """For templates of any model."""
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    made.filters["tojson"] = _to_json
    made.globals["raise_exception"] = _raise
    made.globals["strftime_now"] = _now
    made.globals["dict"] = _Dict()
    made.globals["namespace"] = _Namespace
    return made


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError("a namespace has no attributes that begin with an underscore")


def _to_json(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise TemplateError(message)


def _now(format: str) -> str:  # templates may name it
    return datetime.now().strftime(format)
