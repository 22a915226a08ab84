"""The pairs of a reranker that is asked by its chat template, as a CrossEncoder of sentence-transformers is (5.4 and
later): messages of the roles query and document, and an instruction as the system's.

The library renders the template for each pair. Here that is done once, with words in place of the texts: what stands
around them is a `FilledTemplate` then, in which no text of a user becomes a special token. A template that does more
with texts than put them in, or cut the spaces around them off, is refused.
"""

import json
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import NoReturn

import tokenizers

from tokenizer_pool.chat_template import Rendered
from wire.pairs import PLACES, ChatPairs, EncodeEach, FilledTemplate
from wire.tokenizer_files import TokenizerError

_ROLES = {"{instruction}": "system", "{query}": "query", "{document}": "document"}  # in the order of the messages
_WORD = "Embedline{}Place"  # stands where a text will
_AROUND = " \n"
# A template must put each of these in as it is. They are what templates ask for, cut out, quote or shorten.
_PROBES = (
    *("", "a", "x\n\n y", "</think>\n<think>x</think>", '"so" & <b>\\', "{{ x }}{% y %}", "7\n8\n" * 4000, "Ünï 漢字"),
    *("[1, 2]", "{query} {document}", "True", "http://a.b/c.png", "x.", "x?", "x!", "x:", "a\tb\r\nc"),
    *(" x", "x ", "\n x", " \t\n x \t\n "),
)
_MAX_SECONDS = 30.0  # for all texts; usually it takes milliseconds
# sentence-transformers' encode_query and encode_document name theirs to a template
_TASKS: tuple[dict[str, str], ...] = ({"task": "query"}, {"task": "document"})
_SAMPLES = (("Where is it?", "By the Rhine."), (" a\n", "\nb "), ("1", "2"))  # tokenized in one piece and in parts


def filled_pairs(
    folder: Path, chat: ChatPairs, backend: tokenizers.Tokenizer, *, encode_each: EncodeEach
) -> dict[bool, FilledTemplate]:
    """What the folder's chat template makes of a pair, by whether there is an instruction. Raises TokenizerError where
    it can't carry a pair, or is not a `FilledTemplate`."""
    try:
        with _in_time():
            rendered = Rendered(folder)
            asked = {
                has_instruction: _Pairs(rendered, chat, has_instruction=has_instruction)
                for has_instruction in (False, True)
            }
    except Exception as error:  # a template can fail in every way that a program can
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise TokenizerError(
            f"{folder}: its chat template can't be used for pairs of a query and a document: {why}; name another one "
            "by --template"
        ) from None
    return {key: pairs.filled(backend, encode_each) for key, pairs in asked.items()}


def check_texts(folder: Path, chat: ChatPairs, backend: tokenizers.Tokenizer) -> None:
    """Raises TokenizerError where the folder's chat template makes other tokens of a text than the tokenizer alone.

    sentence-transformers puts each text into it as what a user says, with the prompt as the system's message.
    """
    backend.no_truncation()
    try:
        with _in_time():
            _check_texts(Rendered(folder), chat, backend)
    except Exception as error:  # a template can fail in every way that a program can
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise TokenizerError(
            f"{folder}: sentence-transformers puts each text into the chat template ('message' in 'modality_config'), "
            f"which is not supported: {why}; take 'message' out if the model was trained on plain texts"
        ) from None


def _check_texts(rendered: Rendered, chat: ChatPairs, backend: tokenizers.Tokenizer) -> None:
    _check_names(rendered)
    tasks = [{}, *_TASKS] if "task" in rendered.names else [{}]
    for prompt, text, task in product(("", "Find it: "), _PROBES, tasks):
        said = [("system", prompt), ("user", text)] if prompt else [("user", text)]
        found = rendered.text([_message(*each, chat) for each in said], **(task | json.loads(chat.options)))
        if backend.encode(found, add_special_tokens=False).ids != backend.encode(prompt + text).ids:
            raise ValueError("it does not leave them as they are")


@contextmanager
def _in_time() -> Iterator[None]:
    """Raises TimeoutError where what is done takes too long: or the process would be killed as stuck, again and again,
    and no line would name the template. In another thread than the first there is no bound."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _late)
    signal.setitimer(signal.ITIMER_REAL, _MAX_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _late(number: int, frame: object) -> NoReturn:
    raise TimeoutError(f"it has not ended in {_MAX_SECONDS:g} seconds")


def _check_names(rendered: Rendered) -> None:
    """Raises ValueError where it asks for what is not known here."""
    if "strftime_now" in rendered.source:
        raise ValueError("it tells the time")
    if rendered.unnamed:
        raise ValueError(
            f"it writes {', '.join(rendered.unnamed)}, which tokenizer_config.json does not name: the library may take "
            "that of a class; name it there"
        )


def _message(role: str, text: str, chat: ChatPairs) -> dict[str, object]:
    return {"role": role, "content": text if chat.is_flat else [{"type": "text", "text": text}]}


class _Pairs:
    """The text around a query, a document and perhaps an instruction."""

    def __init__(self, rendered: Rendered, chat: ChatPairs, *, has_instruction: bool) -> None:
        """Raises what a program can raise."""
        self._rendered = rendered
        self._chat = chat
        self._words = {
            place: _WORD.format(role.title())
            for place, role in _ROLES.items()
            if has_instruction or place != "{instruction}"
        }
        text = self._text(self._words)
        self._check(text)
        places = {word: place for place, word in self._words.items()}
        self._skeleton = re.sub("|".join(places), lambda found: places[found[0]], text)
        spaced = self._text({place: _AROUND + word + _AROUND for place, word in self._words.items()})
        self._stripped = frozenset(
            place for place, word in self._words.items() if _AROUND + word + _AROUND not in spaced
        )
        self._probe()

    def _text(self, texts: Mapping[str, str]) -> str:
        messages = [_message(_ROLES[place], text, self._chat) for place, text in texts.items()]
        return self._rendered.text(messages, **json.loads(self._chat.options))

    def _check(self, text: str) -> None:
        _check_names(self._rendered)
        if any(place in text for place in PLACES):
            raise ValueError("it writes {query}, {document} or {instruction} itself")
        for place in ("{query}", "{document}"):
            if self._words[place] not in text:
                raise ValueError(f"it passes over messages of the role {_ROLES[place]!r}")

    def _probe(self) -> None:
        """Raises ValueError where a text is not put in as it is."""
        alone = ({place: probe} for probe in _PROBES for place in self._words if probe or place != "{instruction}")
        for given in (*alone, dict.fromkeys(self._words, "x")):
            texts = self._words | given
            if self._text(texts) != self._with(texts):
                raise ValueError("it does more with texts than put them in")

    def _with(self, texts: Mapping[str, str]) -> str:
        stripped = {place: text.strip() if place in self._stripped else text for place, text in texts.items()}
        return re.sub("|".join(map(re.escape, stripped)), lambda found: stripped[found[0]], self._skeleton)

    def filled(self, backend: tokenizers.Tokenizer, encode_each: EncodeEach) -> FilledTemplate:
        """In parts between special tokens; in one where that gives other ids than the whole text has, as with words
        that are marked by a space before them."""
        parts = _between_specials(backend, self._skeleton)
        filled = FilledTemplate(backend, parts, encode_each=encode_each, stripped=self._stripped)
        backend.no_truncation()
        for query, document in _SAMPLES:
            texts = {**self._words, "{query}": query, "{document}": document}
            whole = backend.encode(self._with(texts), add_special_tokens=False).ids
            instruction = texts.get("{instruction}", "")
            (found,) = filled.fill([query], [document], instruction=instruction, keeps_end=False)
            if [token_id for part in found for token_id in part.ids] != whole:
                return FilledTemplate(backend, [self._skeleton], encode_each=encode_each, stripped=self._stripped)
        return filled


def _between_specials(backend: tokenizers.Tokenizer, text: str) -> list[str]:
    """The text cut at special tokens, so that no part has both one of them and a place."""
    specials = [token.content for token in backend.get_added_tokens_decoder().values() if token.special]
    if not specials:
        return [text]
    by_length = sorted(specials, key=len, reverse=True)
    parts = [""]
    for piece in re.split(f"({'|'.join(map(re.escape, by_length))})", text):
        has_place = any(place in piece for place in PLACES)
        if has_place or any(place in parts[-1] for place in PLACES):
            parts.append(piece)
        else:
            parts[-1] += piece
    return [part for part in parts if part]
