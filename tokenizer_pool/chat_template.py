"""A model's chat template, rendered as transformers renders it: conversations in, texts out.

A template comes with the model's folder and is a small program. jinja2's sandbox, with what transformers adds and takes
away, keeps it from everything but the conversation, and the worker that runs it ends if it does not.

Only chats need the library, and most servers never get one, so nothing imports this file at the start.
"""

import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Template
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.nodes import CallBlock
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from tokenizer_pool.guarded import TextQuarantine
from tokenizer_pool.loading import NAMED_TOKENS
from tokenizer_pool.messages import TextRefusal, TextRefused
from tokenizer_pool.tasks import Chat, TextsPiece
from wire.files import read_whole
from wire.tokenizer_files import CHAT_TEMPLATE, chat_template, read_config

Message = dict[str, str]

_END = "CONTINUE_FINAL_MESSAGE_TAG "  # stands after the last message to find its end; transformers' word for it


class Rendered:
    """The chat template of a folder."""

    def __init__(self, folder: Path) -> None:
        """Raises what files and templates that are wrong raise; ValueError if there is none."""
        config = read_config(folder / "special_tokens_map.json") | read_config(folder / "tokenizer_config.json")
        self.source, environment = _source(folder, config), _environment()
        self.names = find_undeclared_variables(environment.parse(self.source)) - environment.globals.keys()
        self._template: Template = environment.from_string(self.source)
        # transformers takes these of the class, if that has any
        self.unnamed = sorted((self.names & set(NAMED_TOKENS)) - config.keys())
        self._tokens = {name: _text(config[name]) for name in NAMED_TOKENS if config.get(name)}

    def text(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """Raises what a program can raise."""
        given = {"tools": None, "documents": None, "add_generation_prompt": False, **self._tokens, **options}
        return self._template.render(given | {"messages": messages})


class ChatTemplate:
    """The template of one model."""

    def __init__(self, folder: Path, quarantine: TextQuarantine | None = None) -> None:
        """Raises TextRefused (NO_TEMPLATE) if the folder has none, or one that is no template."""
        self._texts_of_each = partial(quarantine.one_by_one, self._texts) if quarantine else self._texts
        try:
            self._rendered = Rendered(folder)
        except Exception as error:  # a folder's files can be wrong in every way, and none may end the worker
            raise TextRefused(TextRefusal.NO_TEMPLATE, -1) from error

    def render(self, chats: Sequence[Chat]) -> TextsPiece:
        """The text of each conversation. Raises TextRefused: FAILED for one that the template does not take, UNUSED for
        one with a name that would change nothing.
        """
        start = time.perf_counter()
        texts = []
        for index, chat in enumerate(chats):
            if not self._rendered.names.issuperset(json.loads(chat.template_kwargs)):
                raise TextRefused(TextRefusal.UNUSED, index)
            try:
                texts += self._texts_of_each([chat])
            except Exception as error:  # a template can fail in every way that a program can
                raise TextRefused(TextRefusal.FAILED, index) from error
        return TextsPiece(texts, time.perf_counter() - start)

    def _texts(self, chats: Sequence[Chat]) -> list[str]:
        return [self._text(chat) for chat in chats]

    def _text(self, chat: Chat) -> str:
        messages: list[Message] = json.loads(chat.messages)
        last = messages[-1]["content"]
        if chat.continue_final_message:
            if "content" not in self._rendered.source:
                raise ValueError("the template does not show what messages say")
            messages[-1]["content"] = last + _END
        options = json.loads(chat.template_kwargs) | {"add_generation_prompt": chat.add_generation_prompt}
        text = self._rendered.text(messages, **options)
        return _cut_after(last, text) if chat.continue_final_message else text


def _source(folder: Path, config: dict[str, Any]) -> str:
    """Raises ValueError if there is none."""
    path = folder / CHAT_TEMPLATE
    if path.is_file():
        return read_whole(path).decode()
    template = chat_template(config)
    if template is None:
        raise ValueError("the model has no chat template")
    return template


def _cut_after(last: str, text: str) -> str:
    """The text without that after the last message, as transformers does it. Raises ValueError if that is not there."""
    if last.strip() not in text:
        raise ValueError("the last message is not in the text")
    end = text.rindex(_END.strip())
    return text[:end] if text.startswith(_END, end) else text[:end].rstrip()  # the template has cut spaces off


def _text(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


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


def _environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    made.filters["tojson"] = _to_json
    made.globals["raise_exception"] = _raise
    made.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
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
