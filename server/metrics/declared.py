"""The metrics that processes count and send: name, labels, help and when to look. One declaration each.

What is read only when Prometheus asks is declared where it is read: gauges.py. What the process of a feature counts is
declared by the feature.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from wire.metrics import POWERS, RATIOS, SECONDS, Edges

Kind = Literal["counter", "gauge", "histogram"]
Labels = tuple[str, ...]  # values, in the order of the declaration

# Only the stages of a request are worth showing below half a millisecond.
FROM_HALF_A_MILLISECOND = SECONDS[9:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """One metric. `name` has Prometheus's suffixes: a counter's ends in _total, a unit stands before that."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    alert: str = ""  # when somebody should look, in words
    # A counter's series that are there, at 0, before anything happened: what its last label says, for each served model
    # if that is a label too. An alert on increase() does not see the first event of a series that begins with it.
    zeros: tuple[str, ...] = ()
    cells: Edges = ()  # upper edges of a histogram's cells, as it is sent
    edges: Edges = ()  # the edges of its buckets, as it is shown


def counter(name: str, labels: tuple[str, ...], help: str, alert: str = "", zeros: tuple[str, ...] = ()) -> Declared:
    """A number that only rises."""
    return Declared(name=name, kind="counter", labels=labels, help=help, alert=alert, zeros=zeros)


def histogram(name: str, labels: tuple[str, ...], help: str, cells: Edges, edges: Edges = ()) -> Declared:
    """Numbers by how large they are."""
    return Declared(name=name, kind="histogram", labels=labels, help=help, cells=cells, edges=edges or cells)


def gauge(name: str, labels: tuple[str, ...], help: str, alert: str = "") -> Declared:
    """A value that is read when Prometheus asks."""
    return Declared(name=name, kind="gauge", labels=labels, help=help, alert=alert)


# fmt: off
REQUESTS = (
    counter("embedline_requests_total", ("route", "class", "code"),
        "Finished requests, by route, class and status; 499 = the client left. Other paths are `other`. The class is "
        "`none` if the request ended before it was known.",
        "the share of 5xx rises"),
    histogram("embedline_request_duration_seconds", ("route",),
        "From a request's head to its answer's last byte, all statuses.", SECONDS, FROM_HALF_A_MILLISECOND),
    histogram("embedline_stage_duration_seconds", ("stage",),
        "Time of each stage, of the requests that completed it: `read` the body; `tokenize`, with the wait for a "
        "tokenizer; `queue`, the longest wait of a sequence for its batch; `compute`, of the batches it was in; "
        "`respond`, from the rows to the answer's last byte.", SECONDS),
    counter("embedline_rejected_total", ("reason",),
        "Requests that were answered with an error, by reason. Of load: `wait` over the class's budget, `key_share` "
        "the same for a key that has more than its share waiting, `deadline_wait` over the request's own deadline, "
        "`key_limit` over its key's tokens a minute, `concurrency` too many open; `deadline_dispatch` it waited and "
        "the next batch would have been too late, `deadline` it passed.",
        "`wait`, `deadline_wait` or `concurrency` over 5 % of the requests for 10 minutes: the server is too small "
        "for the load",
        zeros=("wait", "key_share", "deadline_wait", "key_limit", "concurrency", "deadline_dispatch", "deadline")),
    counter("embedline_cancelled_total", ("stage",),
        "Requests whose client left before the answer, by the stage they had reached; `queue` includes the engines.",
        "it rises in `queue`: clients time out sooner than the server refuses them"),
    counter("embedline_inputs_total", ("model",), "Texts, or lists of token ids, of answered requests."),
    counter("embedline_input_tokens_total", ("model",), "Tokens of answered requests, after truncation."),
    histogram("embedline_input_length_tokens", ("model",),
        "Tokens of each input of answered requests, after truncation.", POWERS),
    counter("embedline_truncated_inputs_total", ("model",),
        "Inputs of answered requests that lost tokens to the model's limit.",
        "it is more than you expect: a vector knows nothing of what was cut off"),
    counter("embedline_request_bytes_total", (), "Bytes of bodies that were read."),
    counter("embedline_response_bytes_total", ("format",),
        "Bytes of answers' bodies, by the form of the rows: `float`, `base64`, `bytes`, `msgpack`, `npy`; `other` has "
        "no rows."),
    counter("embedline_log_lines_dropped_total", (),
        "Lines of the request log or the log that were lost: their reader was too slow, or the disk full.",
        "it is not 0"),
)
TOKENIZING = (
    counter("embedline_tokenized_texts_total", ("model",), "Texts tokenized."),
    counter("embedline_tokenized_tokens_total", ("model",), "Tokens made of these texts."),
    counter("embedline_tokenize_seconds_total", ("model",),
        "Time spent on tokenizing, over all tokenizers.",
        "its rate comes close to --tokenization-workers: they are the bottleneck"),
)
BATCHES = (
    counter("embedline_batch_release_total", ("model", "reason"),
        "Batches sent to an engine, by why they were not larger: `full` the budget was used up, `bucket` cut at an "
        "edge that the engine computes well, `class` kept short because queries and bulk work share the engine, "
        "`share` other idle streams got a part, `drained` nothing more waited, `kind` what else waited can't share a "
        "batch, `retry` a part of a batch that failed, `elsewhere` a batch that had failed on another engine, "
        "`suspect` with few others or alone after its engine had died.",
        "`drained` is rare while clients wait: the engines are the bottleneck"),
    counter("embedline_computed_tokens_total", ("model",),
        "Tokens of finished batches. Equal texts of one request count once, and so does what its texts begin with "
        "alike, where the model computes that once; `embedline_input_tokens_total` counts what was sent."),
    histogram("embedline_batch_tokens", ("model",), "Tokens of finished batches, counted like these.", POWERS),
    histogram("embedline_batch_sequences", ("model",), "Sequences of finished batches.", POWERS, POWERS[:13]),
    histogram("embedline_batch_fill_ratio", ("model",),
        "Tokens of finished batches, as a share of the budget they were packed under; above 1 is a single sequence "
        "that is longer, or documents behind one query.", RATIOS),
    histogram("embedline_queue_duration_seconds", ("model", "class"),
        "The longest wait of a request's sequences for a batch.", SECONDS, FROM_HALF_A_MILLISECOND),
    histogram("embedline_engine_duration_seconds", ("model",),
        "Time a batch computed. The rate of its sum is how many streams are busy.", SECONDS, FROM_HALF_A_MILLISECOND),
    counter("embedline_batch_failures_total", ("model", "kind"),
        "Batches that failed, by what failed; `lost` = their engine died.", "it is not 0",
        zeros=("failed", "out_of_memory", "non_finite", "fatal", "lost")),
    counter("embedline_retried_sequences_total", ("model", "reason"),
        "Sequences computed again: `elsewhere` on another engine after their batch had failed, `failed` in smaller "
        "batches after that, `suspect` with few others or alone after their engine had died.", "it is not 0"),
    counter("embedline_nonfinite_rows_total", ("model",),
        "Sequences that failed because the model gives numbers that are not finite.", "it is not 0"),
    counter("embedline_wasted_tokens_total", ("model",),
        "Tokens computed for requests that had already ended.", "its rate nears that of embedline_input_tokens_total"),
    counter("embedline_joined_requests_total", ("model",),
        "Requests that got the rows of another, which had asked for the same and was not answered yet. Nothing was "
        "computed for them."),
    counter("embedline_refused_total", ("reason",), "Requests that a batch manager refused, by reason."),
    counter("embedline_quarantined_total", ("model",),
        "Requests that were refused without being computed, because one of their inputs took engines down within the "
        "last ten minutes.", "it is not 0: a client sends an input again and again that engines die of"),
    counter("embedline_canaries_total", ("model", "outcome"),
        "Batches with known rows that engines computed to show that they are sound: `passed` or `failed`.",
        "`failed` is not 0", zeros=("passed", "failed")),
    counter("embedline_engine_losses_total", ("model", "reason"),
        "Engines that were restarted although their process ran: `canary` the rows of a canary were wrong or missing, "
        "`refuted` batch after batch failed that other engines computed.",
        "it is not 0: the device may be broken", zeros=("canary", "refuted")),
    gauge("embedline_engines_suspected", ("process",),
        "Ready engines of a batch manager that failed batch after batch. They get no work while another one serves, "
        "up to half a second ago.", "it is not 0 for a minute"),
)
# server/metrics/tei.py shows them.
FOR_TEI = (
    counter("te_requests", ("method", "outcome"), "What te_request_count and te_request_success are made of."),
    counter("te_inputs", ("task",), "What te_embed_count and te_predict_count are made of."),
    histogram("te_duration", ("task",), "What te_request_duration is made of.", SECONDS),
)


def processes(roles: Iterable[str]) -> tuple[Declared, ...]:
    """The metrics of each process; the server may have some of these roles."""
    return (
        counter("embedline_process_restarts_total", ("role",),
            "Processes restarted after they died, by role; what is inside a frontend counts with it.",
            "more than 3 within 15 minutes", zeros=tuple(roles)),
        histogram("embedline_event_loop_lag_seconds", ("role",),
            "Delay of an event loop's heartbeat.", SECONDS, FROM_HALF_A_MILLISECOND),
        gauge("embedline_queue_sequences", ("process",),
            "Sequences without rows that a batch manager holds, waiting or in an engine, up to half a second ago."),
        gauge("embedline_open_requests", ("process",), "HTTP requests that a frontend holds."),
        gauge("embedline_open_connections", ("process",), "HTTP connections that a frontend holds."),
    )
# fmt: on


def scalars(declared: Declared, samples: Iterable[tuple[Labels, float]]) -> str:
    """A counter or a gauge in Prometheus's text format, with these numbers.

    https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
    """
    return _family(declared, ((declared.name, labels, "", value) for labels, value in samples))


def histograms(declared: Declared, samples: Iterable[tuple[Labels, Sequence[float]]]) -> str:
    """A histogram in the same format; the numbers are cells as `cumulative` has them."""
    return _family(declared, _parts(declared, samples))


def _parts(
    declared: Declared, samples: Iterable[tuple[Labels, Sequence[float]]]
) -> Iterator[tuple[str, Labels, str, float]]:
    name = declared.name
    for labels, cells in samples:
        buckets = cumulative(cells, declared.cells, shown=declared.edges)
        yield from ((f"{name}_bucket", labels, edge, count) for edge, count in buckets)
        yield f"{name}_count", labels, "", buckets[-1][1]
        yield f"{name}_sum", labels, "", cells[-1]


def _family(declared: Declared, samples: Iterable[tuple[str, Labels, str, float]]) -> str:
    """Of each sample: its name, the labels, the edge of its bucket if it is one, and the number."""
    lines = [f"# HELP {declared.name} {declared.help}", f"# TYPE {declared.name} {declared.kind}"]
    for name, labels, edge, value in samples:
        named = dict(zip(declared.labels, labels, strict=True)) | ({"le": edge} if edge else {})
        inner = ",".join(f'{label}="{_escaped(text)}"' for label, text in sorted(named.items()))
        lines.append(f"{name}{{{inner}}} {_number(value)}" if inner else f"{name} {_number(value)}")
    return "\n".join([*lines, ""])


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    """As Go writes it, which takes an exponent from a million on."""
    text = repr(float(value))
    point = text.find(".")
    if point <= 6 or value < 0:
        return text
    return f"{text[0]}.{text[1:point]}{text[point + 1 :]}".rstrip("0.") + f"e+{point - 1:02d}"


def cumulative(cells: Sequence[float], edges: Edges, *, shown: Edges) -> list[tuple[str, float]]:
    """(upper edge, how many values are at or below it) for each edge that is shown, and +Inf.

    cells  a count for each edge, one for what is above all of them, and the sum of all values
    """
    wanted = set(shown)
    buckets, total = [], 0.0
    for edge, count in zip(edges, cells, strict=False):
        total += count
        if edge in wanted:
            buckets.append((f"{edge:g}" if edge < 1e6 else str(edge), total))
    return [*buckets, ("+Inf", total + cells[len(edges)])]
