"""A model's chat template, rendered as transformers renders it: conversations in, texts out.

A template comes with the model's folder and is a small program. jinja2's sandbox keeps it from everything but the
conversation, and the worker that runs it ends if it does not.
"""

import json
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from tokenizer_pool.chat import Chat, RenderedPiece
from tokenizer_pool.loading import NAMED_TOKENS, read_config
from tokenizer_pool.messages import Refusal, TextRefused

Message = dict[str, str]


class ChatTemplate:
    """The template of one model."""

    def __init__(self, folder: Path) -> None:
        """Raises TextRefused (NO_TEMPLATE) if the folder has none, or one that is no template."""
        # Only chats need the library, and most servers never get one.
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _now
        try:
            config = read_config(folder / "special_tokens_map.json") | read_config(folder / "tokenizer_config.json")
            self._template = environment.from_string(_source(folder, config))
            self._tokens = {name: _text(config[name]) for name in NAMED_TOKENS if config.get(name)}
        except Exception as error:  # a folder's files can be wrong in every way, and none may end the worker
            raise TextRefused(Refusal.NO_TEMPLATE, -1) from error

    def render(self, conversations: Sequence[str], chat: Chat) -> RenderedPiece:
        """The text of each conversation, which is a JSON list of messages.

        Raises TextRefused (FAILED) for one that the template does not take.
        """
        start = time.perf_counter()
        texts = []
        for index, conversation in enumerate(conversations):
            try:
                texts.append(self._render(json.loads(conversation), chat))
            except Exception as error:  # a template can fail in every way that a program can
                raise TextRefused(Refusal.FAILED, index) from error
        return RenderedPiece(texts, time.perf_counter() - start)

    def _render(self, messages: list[Message], chat: Chat) -> str:
        text = self._template.render(
            messages=messages,
            tools=None,
            documents=None,
            add_generation_prompt=chat.add_generation_prompt,
            **self._tokens,
        )
        return _cut_after(messages[-1]["content"], text) if chat.continue_final_message else text


def _source(folder: Path, config: dict[str, Any]) -> str:
    """Raises ValueError if there is none."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several with names
        template = {each["name"]: each["template"] for each in template if isinstance(each, dict)}.get("default")
    if not isinstance(template, str):
        raise ValueError("the model has no chat template")
    return template


def _cut_after(final: str, text: str) -> str:
    """Without what comes after the last message, as transformers does it. Raises ValueError if that is not there."""
    start = text.rindex(final.strip())
    whole = start + len(final.lstrip())
    return text[:whole] if text[start:whole] == final.lstrip() else text[: start + len(final.strip())]


def _text(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> None:
    raise ValueError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
