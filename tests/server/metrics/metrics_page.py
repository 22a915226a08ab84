"""docs/metrics.md, made from the declarations by `make docs`."""

from collections.abc import Iterable, Iterator

from server.metrics.declared import BATCHES, REQUESTS, TOKENIZING, Declared
from server.metrics.gauges import GAUGES, PROCESS_GAUGES
from server.metrics.registry import OF_FEATURES, PROCESSES
from server.metrics.tei import TEI

_TOP = """\
# Metrics

`/metrics` is one page for the whole server, in Prometheus's text format, on the HTTP port and on `--prometheus-port`,
where the supervisor answers even when everything else is stuck.
`make docs` makes this page from the source.

Processes send their counts and histograms to the supervisor with each heartbeat, so these may be half a second old.
Gauges are read as the page is made, which is done at most ten times a second, after thirty at once: who asks more often
gets the last page again. The supervisor keeps the sums, so they outlive a process that dies. Label values are our own
words and the names of served models, never what a client sent: clients can't add series. Each bucket of a duration is
1.5 times as wide as the one before; buckets of tokens and sequences are powers of two.
"""
_TEI = """\
## As text-embeddings-inference names them

TEI's dashboards work as they are: same names, labels and buckets, no `_total`, all models together. These metrics are
made of the counts above, with some differences:

- Histograms have one value for each request, where TEI has one for each input (except `te_request_input_length`).
- Histograms without a stage cover answered requests only.
- `te_embed_count` and `te_predict_count` count inputs when they have been answered.
- Of the stages there is only `te_embed_*`, which covers all requests.
"""


def page() -> str:
    """The whole document, in Markdown."""
    sections = (
        ("Requests", REQUESTS),
        ("The state of the server", GAUGES),
        ("Batches", BATCHES),
        ("Tokenizers", TOKENIZING),
        *((name.capitalize(), declared) for name, declared in OF_FEATURES.items()),
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
