"""What every script here and in frameworks/ shares: the task from stdin, its cases, their results to stdout.

The task is {"url", "key", "texts", "query", "documents", "only"}. A result is {"rows": [[...]]}, {"ranked": [[index,
score], ...]}, {"value": anything} or {"error": class, "message": text}. Nothing but the client is needed to run one.
"""

import json
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Result = dict[str, Any]


def rows(vectors: Iterable[Sequence[float]]) -> Result:
    """One row a text, in their order."""
    return {"rows": [[float(number) for number in vector] for vector in vectors]}


def ranked(pairs: Iterable[tuple[int, float]]) -> Result:
    """Documents in the order of the answer."""
    return {"ranked": [[int(index), float(score)] for index, score in pairs]}


def run(*cases: Callable[[Any], Result]) -> None:
    """Each case by its function's name; those that `only` names, if it names some."""
    task = types.SimpleNamespace(**json.load(sys.stdin))
    results = {}
    for case in cases:
        if task.only and case.__name__ not in task.only:
            continue
        try:
            results[case.__name__] = case(task)
        except Exception as error:
            results[case.__name__] = {"error": type(error).__name__, "message": str(error)}
    json.dump(results, sys.stdout)
