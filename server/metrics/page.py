"""docs/metrics.md, made from the declarations by `make docs`."""

from collections.abc import Iterable, Iterator

from server.metrics.declared import BATCHES, PROCESSES, REQUESTS, TOKENIZING, Declared
from server.metrics.gauges import GAUGES
from server.metrics.processes import PROCESS_GAUGES
from server.metrics.tei import TEI

_TOP = """\
# Metrics

`/metrics` is one page for the whole server, in Prometheus's text format, on the HTTP port and on `--prometheus-port`,
where the supervisor answers by itself when anything else is stuck.
`make docs` makes this page from the source.

Counts and distributions travel to the supervisor with each process's heartbeat, so those of other processes may be
half a second old; levels are read as the page is made. A process's counts outlive it: the sums are the supervisor's.
Label values are our own words and the names of served models, never what a client sent, so the number of series does
not grow with what clients do. The buckets of all durations are 1.5 times as wide as the one before; those of tokens
and sequences are powers of two.
"""
_TEI = """\
## As text-embeddings-inference names them

Its dashboards work as they are: same names, labels and buckets, no `_total`, all models together. They are written
from what is counted above, with these differences: a histogram has one value for each request where it has one for
each input (but for `te_request_input_length`); those without a stage are of answered requests alone; `te_embed_count`
counts inputs when they have been answered, and so does `te_predict_count`; of stages there is only `te_embed_*`, which
is of all requests.
"""


def page() -> str:
    """The whole document, in Markdown."""
    sections = (
        ("Requests", REQUESTS),
        ("The state of the server", GAUGES),
        ("Batches", BATCHES),
        ("Tokenizers", TOKENIZING),
        ("Processes", (*PROCESSES, *PROCESS_GAUGES)),
    )
    parts = [_TOP]
    for title, declared in sections:
        parts.append(f"## {title}\n\n{_table(declared)}")
    return "\n".join([*parts, f"{_TEI}\n{_table(TEI)}"])


def _table(declared: Iterable[Declared]) -> str:
    return "\n".join(["| name | type | labels | what it is |", "|---|---|---|---|", *_rows(declared), ""])


def _rows(declared: Iterable[Declared]) -> Iterator[str]:
    for one in declared:
        alert = f" **Look when** {one.alert}." if one.alert else ""
        labels = ", ".join(f"`{label}`" for label in one.labels)
        yield f"| `{one.name}` | {one.kind} | {labels} | {one.help}{alert} |"
