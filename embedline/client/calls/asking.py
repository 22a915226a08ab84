"""Which way to ask a server comes next, when one was refused. A way that has worked is kept for the base URL.

Servers say in many words that they don't know a route or a form; often the same status says that an input is wrong. So
every 400 or 422 is asked again in the other forms until one has worked, and the error that is shown in the end is the
first one that does not look like a wrong guess of ours.
"""

import re
from typing import Any

from embedline.client.calls.job import Job
from embedline.client.tasks.task import UNSAID, Part, Task, Way
from embedline.client.transport.failure import Failure

_NO_SUCH_ROUTE = (404, 405)
_NOT_IN_THIS_FORM = (400, 406, 415, 422)
_FIELD = b"encoding_format"
_ABOUT_THE_FORM = re.compile(rb"encoding_format|unknown variant|[`'\"](bytes|base64)[`'\"]")
_TOO_MANY_ITEMS = re.compile(
    rb"batch.?size|too many|at most [\d,]+ (items|inputs|texts)|array is too long|"
    rb"max\w{0,20} .{0,40}(items|inputs|texts|batch|array|tokens per request)",
    re.IGNORECASE,
)


def has_too_many_items(failure: Failure) -> bool:
    """Whether a server says that a request with fewer inputs would do."""
    if failure.status in _NOT_IN_THIS_FORM:
        return _TOO_MANY_ITEMS.search(failure.body) is not None
    return failure.status == 413


def next_way(task: Task[Any], job: Job, failure: Failure) -> int | None:
    """The way to ask that is tried after this one; None if it is not to blame, or was the last."""
    assert job.endpoint is not None
    known, is_sure = job.endpoint.way(task.name)
    if failure.status is None or (is_sure and job.way == known and _FIELD not in failure.body):
        return None
    if is_sure and job.way < known and failure.status in (*_NO_SUCH_ROUTE, *_NOT_IN_THIS_FORM):
        return known  # found out by another request meanwhile
    tried = task.ways[job.way]
    later = range(job.way + 1, len(task.ways))
    if failure.status in _NO_SUCH_ROUTE:
        return next((at for at in later if task.ways[at].path != tried.path), None)
    if failure.status in _NOT_IN_THIS_FORM and not has_too_many_items(failure):
        job.refused_forms.add(tried.form)
        if _FIELD not in failure.body:
            job.refused_forms.add(UNSAID)  # that would change nothing
        return next((at for at in later if task.ways[at].form not in job.refused_forms), None)
    return None


def most_telling(first: Failure | None, failure: Failure) -> Failure:
    """Of the refusals of two ways to ask, the one to show."""
    if first is None or failure.status not in (*_NO_SUCH_ROUTE, *_NOT_IN_THIS_FORM):
        return failure
    return failure if _is_wrong_guess(first) and not _is_wrong_guess(failure) else first


def _is_wrong_guess(failure: Failure) -> bool:
    return failure.status in _NO_SUCH_ROUTE or _ABOUT_THE_FORM.search(failure.body) is not None


def learn(task: Task[Any], job: Job, part: Part) -> None:
    """An answer came. Servers that pass over what they don't know answer in a form of their own choice. A better one
    may still be had by asking for it, so each in between is tried once."""
    assert job.endpoint is not None
    asked = task.ways[job.way]
    best = _number(task.ways, asked.path, part.form)
    if best is None or best <= job.way + 1:
        job.endpoint.learn(task.name, job.way if best is None else max(best, job.way), is_sure=True)
    else:
        job.endpoint.learn(task.name, job.way + 1, is_sure=False)


def _number(ways: tuple[Way, ...], path: str, form: str | None) -> int | None:
    return next((at for at, way in enumerate(ways) if (way.path, way.form) == (path, form)), None)
