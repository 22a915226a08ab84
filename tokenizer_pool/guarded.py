"""Calls of the tokenizers library on many texts, guarded against its panics. Knows nothing of what is called.

`TextQuarantine` is for processes that hold more than tokenizers: there a text that ends the process is remembered.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from tokenizer_pool.messages import TextRefusal, TextRefused
from wire.page import Page

Item = TypeVar("Item")
Result = TypeVar("Result")

REFUSED_SECONDS = 600.0  # for which a text in which a process died is refused

logger = logging.getLogger("embedline.tokenizer_pool")


class QuarantinedText(Exception):
    """A process died in this text."""


class TextQuarantine:
    """The texts in which a frontend died that has the tokenizer of a model in its own process.

    The client of a tokenizer's process sees which piece keeps ending it. A frontend dies with its tokenizer. So the
    hash of the text that the library works on stands in the shared page, and the frontend that is started next refuses
    this text for ten minutes, in every request and every pair.
    """

    def __init__(self, page: Page, *, frontend: int, model: int) -> None:
        self._page = page
        self._frontend = frontend
        self._tokenizing, self._refused = page.tokenizing.data, page.refused.data
        self._of_model = hashlib.blake2b(model.to_bytes(4, "little"), digest_size=8)
        self._has_begun = False

    def begin(self, now: float) -> None:
        """From now on remember which text is in the library. One in which the process before this one died is refused.

        What is tokenized before is not users' text.
        """
        page, died_in = self._page, self._tokenizing[self._frontend]
        if died_in:
            with page.locked():
                known = page.refused == died_in
                place = known.argmax() if known.any() else page.refused_until.argmin()
                page.refused[place], page.refused_until[place] = died_in, now + REFUSED_SECONDS
            logger.error("the process before this one died in a text: it is refused for %d s", REFUSED_SECONDS)
            self._tokenizing[self._frontend] = 0
        self._has_begun = True

    def one_by_one(self, function: Callable[[Sequence[Item]], list[Result]], items: Sequence[Item]) -> list[Result]:
        """Call a function with one item after the other. Raises what it raises, and QuarantinedText."""
        if not self._has_begun:
            return function(items)
        tokenizing, place = self._tokenizing, self._frontend
        results: list[Result] = []
        try:
            for item in items:
                tokenizing[place] = key = self._hash(item)
                if self._refused[0] and self._is_refused(key):
                    raise QuarantinedText
                results += function([item])
        finally:
            tokenizing[place] = 0
        return results

    def _hash(self, item: object) -> int:
        """The same in every process; copying what was begun is faster than a new one."""
        digest = self._of_model.copy()
        digest.update(str(item).encode())
        return int.from_bytes(digest.digest(), "little", signed=True)

    def _is_refused(self, key: int) -> bool:
        page = self._page
        return bool(((page.refused == key) & (page.refused_until > time.monotonic())).any())


def of_each(
    function: Callable[[Sequence[Item]], list[Result]],
    items: Sequence[Item],
    quarantine: TextQuarantine | None = None,
) -> list[Result]:
    """Call a function of the library with all items. Raises TextRefused (FAILED) where it can't take one, or one is in
    quarantine."""
    if quarantine is not None:
        function = partial(quarantine.one_by_one, function)
    try:
        return function(items)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library panics with a BaseException; the worker goes on
        logger.error("the tokenizer failed on a text: %s", type(error).__name__)
    raise TextRefused(TextRefusal.FAILED, _first_failing(function, items))


def of_each_once(
    function: Callable[[Sequence[Item]], list[Result]],
    items: Sequence[Item],
    quarantine: TextQuarantine | None = None,
) -> list[Result]:
    """Call as `of_each` does, but what is the same for all, as the query of many documents is, is made once."""
    if items.count(items[0]) == len(items):
        return of_each(function, items[:1], quarantine) * len(items)
    return of_each(function, items, quarantine)


def _first_failing(function: Callable[[Sequence[Item]], object], items: Sequence[Item]) -> int:
    """Index of the first item that the library can't take, -1 where it takes each alone."""
    for index, item in enumerate(items):
        try:
            function([item])
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:
            return index
    return -1
