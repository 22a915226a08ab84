"""The metrics of text-embeddings-inference under its own names, made of our own counts.

Names, labels and buckets are those of its router/src/prometheus.rs, so its dashboards work: counters have no `_total`,
and there is no label for the model. prometheus-client would add the suffix, so the few lines are written here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from server.metrics.declared import BATCHES, FOR_TEI, REQUESTS, TOKENIZING, Declared, Kind, cumulative
from wire.metrics import POWERS, SECONDS, Edges

_DURATIONS = SECONDS[:35]
# TEI's reasons of failures, with ours. Errors before a request is decoded have none.
_FAILURES = {
    "overloaded": ("wait", "concurrency", "open_payload", "deadline"),
    "validation": ("invalid", "empty", "malformed", "payload"),
    "batch_size": ("batch_size",),
    "tokenization": ("not_tokenizable",),
    "model_type": ("unsupported_task",),
    "inference": ("engine", "not_ready"),
}
_CELLS = {declared.name: declared.cells for declared in (*REQUESTS, *TOKENIZING, *BATCHES, *FOR_TEI)}


@dataclass(frozen=True, slots=True)
class Counted:
    """The numbers that the registry holds: by metric, then by label values."""

    sums: Mapping[str, Mapping[tuple[str, ...], float]]
    cells: Mapping[str, Mapping[tuple[str, ...], Sequence[float]]]
    num_waiting: float


_Samples = Iterator[tuple[str, float]]  # what follows the metric's name, value


@dataclass(frozen=True, slots=True)
class _Shown:
    declared: Declared
    samples: Callable[[Counted], _Samples]


def tei_text(counted: Counted) -> str:
    """The page in Prometheus's text format."""
    return "".join(_lines(counted))


def _lines(counted: Counted) -> Iterator[str]:
    for shown in _ALL_SHOWN:
        name = shown.declared.name
        yield f"# HELP {name} {shown.declared.help}\n# TYPE {name} {shown.declared.kind}\n"
        for rest, value in shown.samples(counted):
            yield f"{name}{rest} {value!r}\n"


def _requests(counted: Counted, *, outcomes: Sequence[str] = ("ok", "error")) -> _Samples:
    held = counted.sums["te_requests"]
    for method in ("single", "batch"):
        yield f'{{method="{method}"}}', sum(held.get((method, outcome), 0) for outcome in outcomes)


def _failures(counted: Counted) -> _Samples:
    rejected = counted.sums["embedline_rejected_total"]
    for err, reasons in _FAILURES.items():
        yield f'{{err="{err}"}}', sum(rejected.get((reason,), 0) for reason in reasons)
    yield '{err="dropped"}', sum(counted.sums["embedline_cancelled_total"].values())


def _inputs(counted: Counted, task: str) -> _Samples:
    yield "", counted.sums["te_inputs"].get((task,), 0)


def _queue_size(counted: Counted) -> _Samples:
    yield "", counted.num_waiting


def _histogram(name: str, help: str, *, of: str, labels: tuple[str, ...] = (), shown: Edges = _DURATIONS) -> _Shown:
    """Our histogram with these label values, or with any, in TEI's buckets."""

    def samples(counted: Counted) -> _Samples:
        edges = _CELLS[of]
        held = [cells for its_labels, cells in counted.cells[of].items() if its_labels == labels or not labels]
        cells = [sum(numbers) for numbers in zip([0.0] * (len(edges) + 2), *held, strict=True)]
        for edge, count in cumulative(cells, edges, shown=shown):
            yield f'_bucket{{le="{edge}"}}', count
        yield "_sum", cells[-1]
        yield "_count", sum(cells[:-1])

    return _Shown(Declared(name=name, kind="histogram", help=help), samples)


def _other(kind: Kind, name: str, help: str, samples: Callable[[Counted], _Samples], label: str = "") -> _Shown:
    return _Shown(Declared(name=name, kind=kind, help=help, labels=(label,) if label else ()), samples)


_successes = partial(_requests, outcomes=("ok",))
_embedded, _predicted = partial(_inputs, task="embed"), partial(_inputs, task="predict")
_STAGES = "embedline_stage_duration_seconds"
# fmt: off
_ALL_SHOWN = (
    _other("counter", "te_request_count", "Requests with one input, or with a list.", _requests, "method"),
    _other("counter", "te_request_success", "Those that were answered.", _successes, "method"),
    _other("counter", "te_request_failure", "Requests that were not answered, by reason.", _failures, "err"),
    _other("counter", "te_embed_count", "Inputs of answered requests for embeddings.", _embedded),
    _other("counter", "te_embed_success", "The same.", _embedded),
    _other("counter", "te_predict_count", "Inputs of answered requests for scores: pairs, classes.", _predicted),
    _other("counter", "te_predict_success", "The same.", _predicted),
    _other("gauge", "te_queue_size", "Sequences without rows, up to half a second ago.", _queue_size),
    _histogram("te_request_duration", "Seconds, of answered requests.", of="te_duration"),
    _histogram("te_request_tokenization_duration", "Seconds of a request.", of=_STAGES, labels=("tokenize",)),
    _histogram("te_request_queue_duration", "Seconds of a request.", of=_STAGES, labels=("queue",)),
    _histogram("te_request_inference_duration", "Seconds of a request.", of=_STAGES, labels=("compute",)),
    _histogram("te_request_input_length", "Tokens of an input.", of="embedline_input_length_tokens", shown=POWERS[:20]),
    _histogram("te_embed_duration", "Of requests for embeddings.", of="te_duration", labels=("embed",)),
    _histogram("te_embed_tokenization_duration", "As of requests.", of=_STAGES, labels=("tokenize",)),
    _histogram("te_embed_queue_duration", "As of requests.", of=_STAGES, labels=("queue",)),
    _histogram("te_embed_inference_duration", "As of requests.", of=_STAGES, labels=("compute",)),
    _histogram("te_predict_duration", "Of requests for scores.", of="te_duration", labels=("predict",)),
    _histogram("te_batch_next_size", "Sequences of a batch.", of="embedline_batch_sequences", shown=POWERS[:13]),
    _histogram("te_batch_next_tokens", "Tokens of a batch.", of="embedline_batch_tokens", shown=POWERS),
)
# fmt: on
TEI = tuple(shown.declared for shown in _ALL_SHOWN)
