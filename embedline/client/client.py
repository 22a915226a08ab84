"""`Client`: many texts in many requests at once, to one server or several, into numpy arrays; what its calls return."""

import ssl
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from embedline.client.base_url import read_base_urls
from embedline.client.embed import EmbedTask, RowsFor, RowStore, new_array
from embedline.client.endpoints import Endpoint, Endpoints
from embedline.client.errors import EmbedlineError
from embedline.client.pool import DeadlineWatch
from embedline.client.preference import RequestProcessingPreference
from embedline.client.runner import Finished, Runner
from embedline.client.scheduling import Batches
from embedline.client.sender import HedgeBudget, Sender
from embedline.client.tasks import Batch, ClassifyTask, PostTask, RerankTask, Task, without_none
from embedline.progress import InputProgress

R = TypeVar("R")
T = TypeVar("T")
TokenIds = Sequence[int] | NDArray[np.integer[Any]]
Inputs = str | Iterable[str | TokenIds]


class EmbedOptions(TypedDict, total=False):
    """The options of `embed` beside the side of a search."""

    dimensions: int | None
    user: str | None
    extra_body: Mapping[str, Any] | None
    preference: RequestProcessingPreference | None
    progress: bool


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that the server counted."""

    prompt_tokens: int
    total_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Response:
    """The fields that all answers have."""

    done: NDArray[np.bool_]  # bool [n]: which inputs have their result; all, but after an error or with on_error
    model: str | None  # as the server names it; None = it does not
    usage: Usage | None  # None = some answer does not say
    truncated_inputs: int | None  # how many were too long and were cut; None = some answer does not say
    total_time: float  # seconds
    individual_request_times: tuple[float, ...]  # seconds, of each request that was answered


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EmbedResponse(Response):
    """Rows of `embed`, in the order of the inputs. `numpy.asarray(response)` gives them too."""

    embeddings: NDArray[np.float32]  # float32 [n, dimensions], NaN where not done; [n, 0] if no answer came

    def numpy(self) -> NDArray[np.float32]:
        """float32 [n, dimensions], not copied."""
        return self.embeddings

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.embeddings, dtype=dtype, copy=bool(copy)) if copy else np.asarray(self.embeddings, dtype)

    def __len__(self) -> int:
        return len(self.embeddings)


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddedSlice:
    """A result of `iter_embed`: the rows of inputs[start:stop]."""

    start: int
    stop: int
    embeddings: NDArray[np.float32]  # float32 [stop - start, dimensions]
    prompt_tokens: int | None = None  # None = the server does not say
    truncated_inputs: int | None = None  # how many were too long and were cut; None = the server does not say

    def __iter__(self) -> Iterator[Any]:
        """Allow `for part, rows in client.iter_embed(texts)`: the slice, then the rows."""
        return iter((slice(self.start, self.stop), self.embeddings))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RerankResponse(Response):
    """Scores of `rerank`, in the order of the texts."""

    scores: NDArray[np.float32]  # float32 [n]; NaN where there is none
    texts: Sequence[str]

    def numpy(self) -> NDArray[np.float32]:
        """float32 [n], not copied."""
        return self.scores

    def order(self) -> NDArray[np.intp]:
        """The numbers of the texts, the best first; equal ones as they were given, those without a score last."""
        return np.argsort(-self.scores, kind="stable")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassifyResponse(Response):
    """Scores of `classify`, in the order of the inputs."""

    labels: tuple[str, ...]  # in alphabetical order
    scores: NDArray[np.float32]  # float32 [n, labels]; NaN where there is none

    def numpy(self) -> NDArray[np.float32]:
        """float32 [n, labels], not copied."""
        return self.scores

    def best(self) -> list[str | None]:
        """The label with the highest score of each input; None for one that has none."""
        if not self.labels:
            return [None] * len(self.scores)
        scores = np.where(np.isnan(self.scores), -np.inf, self.scores)
        return [None if row.max() == -np.inf else self.labels[row.argmax()] for row in scores]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchPostResponse(Response):
    """Answers of `batch_post`, in the order of the payloads."""

    data: list[Any]  # values out of JSON, or bytes where the answer is none; None where there is no answer


class Client:
    """A client of one server, or of several that serve the same model.

    It may be used from any number of threads. Close it with `close()`, or use it as a context manager.

    All calls raise RequestFailed when a request is given up, DeadlineExceeded when the time is over, Cancelled when
    their token is cancelled; `partial` of these has what was done. TypeError and ValueError name a wrong argument.
    """

    def __init__(
        self,
        base_url: str | Sequence[str],
        api_key: str | None = None,
        *,
        model: str | None = None,
        preference: RequestProcessingPreference | None = None,
        max_connections: int = 128,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """`base_url`: one or several, with or without /v1 at the end; unix:///run/embedline.sock is the socket of a
        server on this machine. `model` and `preference` are for calls that have
        none of their own. `max_connections`: in use at a time, for each base URL."""
        origins = read_base_urls(base_url)
        if not origins or max_connections < 1:
            raise ValueError("base_url and max_connections must not be empty or 0")
        tls = ssl_context
        if tls is None and any(origin.is_tls for origin in origins):
            tls = ssl.create_default_context()
        endpoints = [
            Endpoint(origin, tls if origin.is_tls else None, max_connections=max_connections) for origin in origins
        ]
        watch = DeadlineWatch()
        self._runner = Runner(Endpoints(endpoints), watch, Sender(watch, HedgeBudget()), _headers(api_key))
        self._model = model
        self.preference = preference or RequestProcessingPreference()
        self._close = weakref.finalize(self, self._runner.close)

    def close(self) -> None:
        """Close the connections. Calls that are under way raise Cancelled."""
        self._close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *ended: object) -> None:
        self.close()

    def embed(
        self,
        input: Inputs,
        model: str | None = None,
        *,
        input_type: str | None = None,
        dimensions: int | None = None,
        user: str | None = None,
        extra_body: Mapping[str, Any] | None = None,
        preference: RequestProcessingPreference | None = None,
        progress: bool = False,
    ) -> EmbedResponse:
        """A row for each input: texts, or lists of token ids (a list, or an array of integers [tokens]).

        `input_type`: what the texts are for, such as query or document; the model's prompt for that is put before each.
        `extra_body`: more fields of each request, as `{"prompt_name": "query"}`.
        """
        items = _as_list(input)
        store = RowStore(len(items))  # the task puts the rows there
        task = self._embed_task(store.rows_for, dimensions, extra_body, model=model, user=user, input_type=input_type)

        def response(fields: dict[str, Any]) -> EmbedResponse:
            return EmbedResponse(embeddings=store.finish(fields["done"]), **fields)

        return self._collect(task, items, lambda batch, rows: None, response, preference, progress)

    def embed_query(self, input: Inputs, model: str | None = None, **options: Unpack[EmbedOptions]) -> EmbedResponse:
        """`embed` of queries that search."""
        return self.embed(input, model, input_type="query", **options)

    def embed_documents(
        self, input: Inputs, model: str | None = None, **options: Unpack[EmbedOptions]
    ) -> EmbedResponse:
        """`embed` of documents that are searched."""
        return self.embed(input, model, input_type="document", **options)

    def iter_embed(
        self,
        input: Inputs,
        model: str | None = None,
        *,
        input_type: str | None = None,
        dimensions: int | None = None,
        user: str | None = None,
        extra_body: Mapping[str, Any] | None = None,
        preference: RequestProcessingPreference | None = None,
        progress: bool = False,
    ) -> Generator[EmbeddedSlice, None, None]:
        """Embed batch by batch as they are answered, in any order and in constant memory.

        The inputs may come from a generator of any length; it is read in the calling thread, no further than
        requests in flight need.
        """
        task = self._embed_task(new_array, dimensions, extra_body, model=model, user=user, input_type=input_type)
        items = [input] if isinstance(input, str) else input
        return self._slices(self._run(task, items, preference, progress))

    def rerank(
        self,
        query: str,
        texts: Sequence[str],
        model: str | None = None,
        *,
        raw_scores: bool | None = None,
        truncate: bool | None = None,
        truncation_direction: str | None = None,
        preference: RequestProcessingPreference | None = None,
        progress: bool = False,
    ) -> RerankResponse:
        """A score for each text: how well it fits the query. What is None is left to the server."""
        if not isinstance(query, str):
            raise TypeError("query must be a text")
        items = _as_list(texts)
        options = {"raw_scores": raw_scores, "truncate": truncate, "truncation_direction": truncation_direction}
        task = RerankTask(query, model=model or self._model, options=options)
        scores = np.full(len(items), np.nan, np.float32)

        def keep(batch: Batch, found: NDArray[np.float32]) -> None:
            scores[batch.start : batch.stop] = found

        def response(fields: dict[str, Any]) -> RerankResponse:
            return RerankResponse(scores=scores, texts=items, **fields)

        return self._collect(task, items, keep, response, preference, progress)

    def classify(
        self,
        inputs: Sequence[str | Sequence[str]],
        model: str | None = None,
        *,
        raw_scores: bool | None = None,
        truncate: bool | None = None,
        truncation_direction: str | None = None,
        preference: RequestProcessingPreference | None = None,
        progress: bool = False,
    ) -> ClassifyResponse:
        """The scores of all labels for each input: a text, or a pair of texts. What is None is left to the server."""
        items = _as_list(inputs)
        truncation = {"truncate": truncate, "truncation_direction": truncation_direction}
        task = ClassifyTask(model=model or self._model, raw_scores=raw_scores, truncation=truncation)
        found: list[dict[str, float]] = [{}] * len(items)

        def keep(batch: Batch, scores: list[dict[str, float]]) -> None:
            found[batch.start : batch.stop] = scores

        def response(fields: dict[str, Any]) -> ClassifyResponse:
            labels = sorted({label for scores in found for label in scores})
            rows = np.array([[scores.get(label, np.nan) for label in labels] for scores in found], np.float32)
            return ClassifyResponse(labels=tuple(labels), scores=rows.reshape(len(items), len(labels)), **fields)

        return self._collect(task, items, keep, response, preference, progress)

    def batch_post(
        self,
        url_path: str,
        payloads: Sequence[Any],
        *,
        method: str = "POST",
        preference: RequestProcessingPreference | None = None,
        progress: bool = False,
    ) -> BatchPostResponse:
        """The answer to each payload, sent as JSON to a path below the base URL, as it stands, one in each request."""
        task = PostTask(url_path, method)
        items = list(payloads)
        data: list[Any] = [None] * len(items)

        def keep(batch: Batch, value: Any) -> None:
            data[batch.start] = value

        def response(fields: dict[str, Any]) -> BatchPostResponse:
            return BatchPostResponse(data=data, **fields)

        return self._collect(task, items, keep, response, preference, progress, batch_size=1)

    def _embed_task(
        self, rows: RowsFor, dimensions: int | None, extra: Mapping[str, Any] | None, *, model: str | None, **more: Any
    ) -> EmbedTask:
        fields = without_none(model=model or self._model, **more)
        return EmbedTask(fields, rows, dimensions=dimensions, extra=extra or {})

    def _run(
        self,
        task: Task[T],
        items: Iterable[Any],
        preference: RequestProcessingPreference | None,
        progress: bool,
        batch_size: int | None = None,
    ) -> Generator[Finished[T], None, None]:
        preference = preference or self.preference
        size = preference.batch_size if batch_size is None else batch_size
        batches = Batches(task, items, batch_size=size, max_chars=preference.max_chars_per_request)
        run = self._runner.run(task, batches, preference)
        return _shown(run, len(items) if isinstance(items, Sized) else None) if progress else run

    def _collect(
        self,
        task: Task[T],
        items: Sequence[Any],
        keep: Callable[[Batch, T], None],
        response: Callable[[dict[str, Any]], R],
        preference: RequestProcessingPreference | None,
        progress: bool,
        batch_size: int | None = None,
    ) -> R:
        """All results of a call, which `keep` gets; `response` gets the fields that all kinds of Response have. Errors
        get what has come until then."""
        tally = Tally(len(items))
        try:
            with closing(self._run(task, items, preference, progress, batch_size)) as run:
                for finished in run:
                    keep(finished.batch, finished.part.result)
                    tally.add(finished)
        except EmbedlineError as error:
            error.partial = response(tally.fields())
            raise
        return response(tally.fields())

    def _slices(
        self, run: Generator[Finished[NDArray[np.float32]], None, None]
    ) -> Generator[EmbeddedSlice, None, None]:
        """A method, so that the generator keeps the client: one that nobody has is closed."""
        with closing(run):
            for finished in run:
                batch, part = finished.batch, finished.part
                yield EmbeddedSlice(batch.start, batch.stop, part.result, part.prompt_tokens, part.truncated)


def _shown(run: Generator[Finished[T], None, None], num_inputs: int | None) -> Generator[Finished[T], None, None]:
    """The same results, and how many have come on standard error."""
    with closing(run), InputProgress(num_inputs) as shown:
        for finished in run:
            shown.add(len(finished.batch.items))
            yield finished


class Tally:
    """The count of what is done of a call with so many inputs."""

    def __init__(self, num_inputs: int) -> None:
        self._began = time.monotonic()
        self.done = np.zeros(num_inputs, np.bool_)
        self._seconds: list[float] = []
        self._model: str | None = None
        self._num_tokens: int | None = 0
        self._num_truncated: int | None = 0

    def add(self, finished: Finished[Any]) -> None:
        """One more answer."""
        part = finished.part
        self.done[finished.batch.start : finished.batch.stop] = True if part.failed is None else ~part.failed
        self._seconds.append(finished.seconds)
        self._model = part.model or self._model
        self._num_tokens = _sum(self._num_tokens, part.prompt_tokens)
        self._num_truncated = _sum(self._num_truncated, part.truncated)

    def fields(self) -> dict[str, Any]:
        """The fields that all kinds of Response have."""
        tokens = self._num_tokens
        return {
            "done": self.done,
            "model": self._model,
            "usage": None if tokens is None else Usage(prompt_tokens=tokens, total_tokens=tokens),
            "truncated_inputs": self._num_truncated,
            "total_time": time.monotonic() - self._began,
            "individual_request_times": tuple(self._seconds),
        }


def _sum(so_far: int | None, more: int | None) -> int | None:
    """The sum; None once any is not known."""
    return None if so_far is None or more is None else so_far + more


def _as_list(input: Any) -> Sequence[Any]:
    """The inputs as a list: one text is a list of it, and an iterator is read to its end."""
    if isinstance(input, str):
        return [input]
    if isinstance(input, list | tuple):
        return input
    return list(input)


def _headers(api_key: str | None) -> dict[str, str]:
    """The headers of each request. Raises ValueError for a key that no header can hold, without naming it."""
    headers = {"user-agent": "embedline-client", "accept-encoding": "identity"}
    if api_key is not None:
        if not api_key or not api_key.isascii() or not api_key.isprintable() or " " in api_key:
            raise ValueError("api_key must be printable ASCII without spaces")
        headers["authorization"] = f"Bearer {api_key}"
    return headers
