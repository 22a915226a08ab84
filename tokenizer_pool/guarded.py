"""Calls of the tokenizers library on many texts, guarded against its panics. Knows nothing of what is called."""

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from tokenizer_pool.messages import TextRefusal, TextRefused

Item = TypeVar("Item")
Result = TypeVar("Result")

logger = logging.getLogger("embedline.tokenizer_pool")


def of_each(function: Callable[[Sequence[Item]], list[Result]], items: Sequence[Item]) -> list[Result]:
    """Call a function of the library with all items. Raises TextRefused (FAILED) where it can't take one."""
    try:
        return function(items)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library panics with a BaseException; the worker goes on
        logger.error("the tokenizer failed on a text: %s", type(error).__name__)
    raise TextRefused(TextRefusal.FAILED, _first_failing(function, items))


def of_each_once(function: Callable[[Sequence[Item]], list[Result]], items: Sequence[Item]) -> list[Result]:
    """Call as `of_each` does, but what is the same for all, as the query of many documents is, is made once."""
    if items.count(items[0]) == len(items):
        return of_each(function, items[:1]) * len(items)
    return of_each(function, items)


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
