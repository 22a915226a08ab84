"""What decoders ask for and encoders get: requests for rows, tokens or texts, and the rows that were computed; and the
record of each request, its Trace.

The functions at the end handle an engine's rows before they are written: whether they are too large, cut, scaled, and
made scores, which come from engines raw. Shapes there: N rows of L scores, float32.

A Trace is written by the edge and the pipeline, and read for the log, metrics and headers of answers. It decides
nothing. It knows no text and no row, only how many there were and how long it took.
"""

import enum
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.model.tasks import Activation
from engine.types import ROWS_OF_TOKENS, OutputKind, Results, Rows
from server.requests.errors import ERRORS, EngineFailed, InvalidRequest, RequestError
from server.requests.limits import TimeSlice, steps
from server.requests.models import ServedModel
from server.requests.row_memory import SMALL_BYTES, HeldMemory, MemoryOfParts, RowMemory
from tokenizer_pool.messages import Truncation
from tokenizer_pool.tasks import Chat, TokenizedTexts, offsets_of
from wire.records import light_dataclass
from wire.vocabulary import RequestClass

MAX_TOKEN_ROW_BYTES = 1 << 28  # of a request's token rows; as JSON they are five times that
MAX_SPARSE_ROW_BYTES = 1 << 28  # of a request's sparse rows; as JSON they are four times that
MAX_COMPARISONS = 1 << 34  # products of two numbers to compare token rows: about a second of a frontend
_EMBEDDED_TOKENS = OutputKind.TOKENS | OutputKind.MULTI_VECTOR
_ANSWER_BYTES = {"float": 12, "msgpack": 9, "base64": 6, "bytes": 4, "npy": 4}  # of a number, at most, about
_LEAST_NORM = np.float32(1e-12)  # torch's normalize has the same, so a row of zeros stays zero
TOO_LARGE = "the answer would be too large; send fewer inputs a request"
CLIENT_LEFT = 499  # nginx's status, in logs, for a client that has left; nobody receives it
logger = logging.getLogger("embedline.server")


@dataclass(slots=True)
class RequestContext:
    """The facts of one request by which its rows and its answer are counted, and what it holds of the row memory."""

    key: str = ""  # the name of the API key, "" if none is needed
    request_class: RequestClass | None = None  # once it is known
    encoding: str = ""  # of the rows in the answer: float, base64, bytes
    held: HeldMemory | None = None  # large rows, then the large answer
    memory_of_parts: MemoryOfParts | None = None  # of a part of a request, until it has asked there; the whole holds it

    async def hold(self, memory: RowMemory, num_bytes: int) -> None:
        """Wait for room for large rows and the answer. Raises NotReady."""
        parts, self.memory_of_parts = self.memory_of_parts, None
        if parts is not None:
            await parts.take(memory, num_bytes, self.key)
            return
        if self.held is not None:  # of rows computed before; who waits holds nothing, or two could wait for each other
            self.held.release()
        self.held = await memory.take(num_bytes, self.key)

    def hold_answer(self, memory: RowMemory, num_bytes: int) -> None:
        """Hold so many bytes of the answer until its client has read it, instead of the rows. Raises NotReady."""
        if num_bytes and self.held is None:
            self.held = HeldMemory(memory, self.key)
        if self.held is not None:
            self.held.change(num_bytes)

    def release(self) -> None:
        """Hold no rows and no answer any more."""
        if self.held is not None:
            self.held.release()


@light_dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The fields that all requests have in common."""

    model: ServedModel
    request_class: RequestClass | None = None  # what the client calls it; None = nothing
    deadline: float = math.inf  # time.monotonic() seconds
    field: str  # the dialect's name of the items, for error messages
    first_field: str = ""  # its name of the first items, if those are not in `field`
    num_first: int = 1  # how many they are
    context: RequestContext = dataclass_field(compare=False)  # of its call: its key, and what it holds
    is_single: bool = False  # whether the field holds one item, not a list

    @property
    def num_items(self) -> int:
        """The number of items."""
        raise NotImplementedError

    def name_of(self, index: int) -> str:
        """The name of an item in an error message; all of them if the index is -1."""
        if self.first_field and 0 <= index < self.num_first:
            return self.first_field if self.num_first == 1 else f"{self.first_field}[{index}]"
        num_before = self.num_first if self.first_field else 0
        return self.field if index < 0 or self.is_single else f"{self.field}[{index - num_before}]"


Item = str | list[int] | Chat  # a text, token ids, or a conversation
_TEXTS = {str}


def text_of(item: Item) -> str:
    """The text of an item, which is in JSON if it is a conversation; none of token ids."""
    return item.messages if isinstance(item, Chat) else item if isinstance(item, str) else ""


@light_dataclass(frozen=True, slots=True, kw_only=True)
class ItemsRequest(Request):
    """A request about items, in the client's order; they are of several kinds where a route takes them so."""

    items: Sequence[Item]

    @property
    def num_items(self) -> int:
        """The number of items; a pair is one."""
        return len(self.items)

    @property
    def kinds(self) -> set[type[Item]]:
        """The kinds of its items."""
        return set(map(type, self.items))

    @property
    def texts(self) -> Sequence[str]:
        """The items of a request that has texts alone."""
        texts: Any = self.items
        assert self.kinds <= _TEXTS, "other items are refused at the edge, or made texts"
        return texts  # type: ignore[no-any-return]


@light_dataclass(frozen=True, slots=True, kw_only=True)
class Work(ItemsRequest):
    """A request for rows that an engine computes."""

    pair_texts: Sequence[str] = ()  # as many second texts, for pairs
    prompt: str = ""  # put before each text, not before ids; for pairs in a template, the instruction
    num_queries: int = 0  # the first texts, so many, are queries; the others are documents
    query_prompt: str = ""  # put before queries instead of `prompt`
    adapter: int = 0  # which of the model's adapters computes the texts: see server.requests.prompts
    query_adapter: int = 0  # the same of queries
    truncation: Truncation = Truncation.RIGHT
    max_tokens: int | None = None  # of each text, pair or list of ids; None = as many as the model takes
    add_special_tokens: bool = True  # to texts; never to pairs or ids
    outputs: OutputKind = OutputKind.POOLED  # one kind or several
    field: str = "input"

    @property
    def max_seqlen(self) -> int:
        """The most tokens of each item, special ones included."""
        own = self.model.max_seqlen
        return own if self.max_tokens is None else min(self.max_tokens, own)

    @property
    def max_num_tokens(self) -> int:
        """The most tokens of all items together."""
        return self.num_items * self.max_seqlen

    @property
    def num_characters(self) -> int:
        """The characters of all texts and conversations, without what goes before them."""
        # a third of the time where all are texts
        texts: Any = self.items if self.kinds == _TEXTS else map(text_of, self.items)
        return sum(map(len, texts)) + sum(map(len, self.pair_texts))

    @property
    def lengths_of_ids(self) -> list[int]:
        """The lengths of its lists of token ids."""
        return [len(item) for item in self.items if isinstance(item, list)] if list in self.kinds else []


class Chunking(enum.Enum):
    """The ways in which sequences are made of texts."""

    NONE = "one of each, cut where it is too long"
    WINDOWS = "of a text that is too long several, of which the rows are averaged"
    LATE = "one of all, in which each text is a chunk"
    DOCUMENTS = "of the texts of each document one, in which each is a chunk"
    FIXED = "one of each, in which always so many tokens are a chunk"


@light_dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest(Work):
    """An embedding request. `outputs` is POOLED, TOKENS or SPARSE."""

    dimensions: int | None = None  # of each row in the answer; None = as many as the model gives by itself
    normalize: bool | None = None  # None = as the model does with pooled rows, and not for token rows
    allows_errors: bool = False  # whether an item that can't be embedded fails alone; for POOLED and TOKENS
    chunking: Chunking = Chunking.NONE  # other than NONE only for texts, with POOLED and without allows_errors
    document_sizes: Sequence[int] = ()  # if the items are texts of documents, how many each has, one after the other
    chunk_size: int = 0  # the tokens of a chunk, with FIXED

    def name_of(self, index: int) -> str:
        """As of all requests; of a text of a document with the places of both."""
        for document, size in enumerate(self.document_sizes if index >= 0 else ()):
            if index < size:
                return f"{self.field}[{document}][{index}]"
            index -= size
        return Request.name_of(self, index)

    @property
    def width(self) -> int | None:
        """The numbers that are kept of each row; None = all."""
        if self.dimensions is not None or self.model.truncate_dim is None:
            return self.dimensions
        return self.model.truncate_dim if OutputKind.POOLED in self.outputs else None

    @property
    def ranges(self) -> NDArray[np.float32] | None:
        """The model's ranges for int8, which are of rows of the length that the model gives them; None for others."""
        ranges = self.model.ranges if self.normalize in (None, self.model.normalize) else None
        return ranges[:, : self.width] if ranges is not None and self.model.rounds else ranges


def no_rows(request: EmbedRequest) -> "Embedded":
    """The answer to a request without texts."""
    width = request.width or request.model.dimensions
    return Embedded(np.empty((0, width), np.float32), 0, np.empty(0, np.uint8))


@light_dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeRequest(ItemsRequest):
    """A request for the tokens of texts or conversations, at least one."""

    items: Sequence[str | Chat]
    prompt: str = ""  # put before each text
    add_special_tokens: bool = True
    field: str = "inputs"


@light_dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRequest(ItemsRequest):
    """Lists of ids whose texts are wanted, at least one list."""

    items: Sequence[list[int]]
    skip_special_tokens: bool = True
    field: str = "ids"


@light_dataclass(frozen=True, slots=True)
class Computed:
    """The rows that were computed, as the engine gave it."""

    results: Results  # one entry for each single flag in Work.outputs
    tokens: TokenizedTexts

    @property
    def num_tokens(self) -> int:
        """The tokens of all items."""
        return len(self.tokens.token_ids)


@light_dataclass(frozen=True, slots=True)
class Embedded:
    """The finished rows of a request."""

    rows: NDArray[np.float32]  # [items, dimensions]; token rows: [num_tokens, dimensions]
    num_tokens: int
    truncated: NDArray[np.uint8]  # [items], 1 where tokens were cut off
    offsets: NDArray[np.int32] | None = None  # token rows: [items + 1], item i has rows[offsets[i] : offsets[i + 1]]
    # items with a row of zeros, or no rows of tokens; None = none may fail alone
    failed: Mapping[int, RequestError] | None = None

    @property
    def num_truncated(self) -> int:
        """The number of items that lost tokens."""
        return self.truncated.tobytes().count(1)  # a tenth of the time of numpy's sum for one item


@dataclass(init=False)
class Trace:
    """One request. Seconds are 0 for stages that were not reached.

    What no request has changed stays in the class: to set every field of every request takes longer than all else here.
    """

    method: str = ""
    route: str = ""  # one of our paths, so that there are few; "other" for all else
    request_id: str = ""
    began: float = 0.0  # time.perf_counter()
    status: int = 0
    error: str = ""  # the error's class, "" without one
    reason: str = ""  # the label of embedline_rejected_total
    param: str = ""  # what is wrong, as we name it
    problem: str = ""  # a code for what is wrong with it
    stage: str = "read"  # the stage where it is, or where it ended: read, admit, tokenize, queue, respond
    key: str = ""  # the name of the API key, "" if none is needed
    model: str = ""  # of an adapter its base: metrics have few labels
    lora: str = ""  # the name of a LoRA adapter, "" = none
    request_class: str = ""  # interactive, bulk
    encoding: str = ""  # of the rows in the answer: float, base64, bytes
    is_single: bool = False  # one text or list of ids, not a list of them
    is_prediction: bool = False  # whether scores of labels or pairs are wanted, not embeddings
    are_ids_decoded: bool = False  # token ids were given, and made texts first
    has_joined: bool = False  # its rows are those of a request that had asked for the same before
    num_items: int = 0
    num_characters: int = 0
    num_tokens: int = 0  # after truncation
    seqlens: Sequence[int] = ()  # tokens of each item, after truncation
    num_truncated: int = 0  # items that lost tokens
    num_body_bytes: int = 0  # of the request
    num_bytes: int = 0  # of the answer's body
    read_seconds: float = 0.0
    tokenize_seconds: float = 0.0
    queue_seconds: float = 0.0  # the longest wait of a sequence for its batch
    compute_seconds: float = 0.0  # of the batches it was in
    responds_since: float = 0.0  # time.perf_counter() when all rows had come
    respond_seconds: float = 0.0  # from then to the answer's last byte
    total_seconds: float = 0.0  # from the request's head to the answer's last byte

    def __init__(self, method: str = "", route: str = "", request_id: str = "", **known: Any) -> None:
        """`known` are other fields by their names."""
        self.method, self.route, self.request_id, self.began = method, route, request_id, time.perf_counter()
        for name, value in known.items():
            assert hasattr(Trace, name), f"there is no field {name}"
            setattr(self, name, value)

    def end(self) -> None:
        """The answer's last byte has left, or the client has."""
        now = time.perf_counter()
        self.total_seconds = now - self.began
        if self.responds_since:
            self.respond_seconds = now - self.responds_since

    def client_left(self) -> None:
        """Nobody waits for the answer any more."""
        self.status, self.error = CLIENT_LEFT, "ClientLeft"

    def elapsed(self) -> float:
        """The seconds since the request's head was read."""
        return time.perf_counter() - self.began


def failed(error: Exception, trace: Trace) -> RequestError:
    """The error as clients may see it; the trace says why the request failed."""
    if not isinstance(error, RequestError):
        logger.error("request %s failed because of a bug", trace.request_id, exc_info=error)
        error = EngineFailed("the server failed on this request")
    trace.status, trace.error, trace.reason = ERRORS[type(error)].status, type(error).__name__, error.reason
    trace.param, trace.problem = error.own_param, error.problem
    return error


def check_token_rows(request: Work, tokens: TokenizedTexts) -> None:
    """Raises InvalidRequest, before anything is computed, for more rows than a frontend can write or compare."""
    if request.outputs is OutputKind.POOLED or not request.outputs & ROWS_OF_TOKENS:  # the first is nearly always so
        return
    num_tokens = len(tokens.token_ids)
    dimensions = request.model.token_dimensions or request.model.dimensions
    num_query_tokens = int(tokens.offsets[request.num_queries])
    comparisons = num_query_tokens * (num_tokens - num_query_tokens) * dimensions
    if 4 * num_tokens * dimensions > MAX_TOKEN_ROW_BYTES or comparisons > MAX_COMPARISONS:
        raise InvalidRequest(TOO_LARGE)


def check_sparse_rows(results: Results, places: NDArray[np.int64] | None) -> None:
    """Raises InvalidRequest for more sparse rows than a frontend can write. Their number is known only now.

    places: of the request's texts among the results, where that is not one after another
    """
    sparse = results.get(OutputKind.SPARSE)
    if sparse is None:
        return
    assert sparse.offsets is not None, "sparse rows are ragged"
    num_rows = len(sparse.values) if places is None else int(np.diff(sparse.offsets)[places].sum())
    if num_rows * sparse.values[:1].nbytes > MAX_SPARSE_ROW_BYTES:
        raise InvalidRequest(TOO_LARGE)


def bytes_to_hold(request: Work, *, num_tokens: int, encoding: str, is_part: bool = False) -> int:
    """The bytes that embeddings or rows of tokens and the answer with them will take, about; 0 for at most 64 KiB of
    rows, unless they are a part of a request's.

    Scores are few, and nobody knows how many numbers sparse rows will have.
    """
    model, outputs = request.model, request.outputs
    pooled = of_tokens = 0  # numbers
    if outputs is OutputKind.POOLED or outputs & OutputKind.POOLED:  # the first is many times as fast
        pooled = request.num_items * model.dimensions
    if outputs is not OutputKind.POOLED and outputs & _EMBEDDED_TOKENS:
        of_tokens = num_tokens * (model.token_dimensions or model.dimensions)
    row_bytes = 4 * (pooled + of_tokens)
    if row_bytes <= SMALL_BYTES and not is_part:
        return 0
    if isinstance(request, EmbedRequest) and (width := request.width) is not None:
        pooled = request.num_items * min(width, model.dimensions)
    return row_bytes + (pooled + of_tokens) * _ANSWER_BYTES.get(encoding, 0)


def whole_numbers(rows: NDArray[np.float32], model: ServedModel) -> NDArray[np.float32]:
    """Pooled rows of a model that makes whole numbers of them; those of others stay. Small numbers keep their sign, by
    which `server.dialects.row_answers` makes bits."""
    return np.rint(np.tanh(rows) * np.float32(127)) if model.rounds else rows


def finish(rows: NDArray[np.float32], request: EmbedRequest) -> NDArray[np.float32]:
    """Cut to the request's dimensions or the model's default, then make whole numbers of them or scale them to length 1
    if the model does. Cutting comes first, because a cut row no longer has length 1."""
    width = request.width
    if width is not None and width < rows.shape[1]:
        rows = rows[:, :width]
    if OutputKind.POOLED in request.outputs:
        rows = whole_numbers(rows, request.model)
    by_model = request.model.normalize and request.outputs is OutputKind.POOLED
    if by_model if request.normalize is None else request.normalize:
        norms = np.sqrt(np.einsum("nd,nd->n", rows, rows, dtype=np.float32))
        rows = rows / np.maximum(norms, _LEAST_NORM)[:, None]
    return rows


async def strongest(results: Results, most: int) -> Results:
    """The results with at most so many entries in each sparse row: those of the largest weights, in the order in which
    they were.

    Of equal weights the first ones stay.
    """
    sparse = results.get(OutputKind.SPARSE)
    if sparse is None:
        return results
    assert sparse.offsets is not None, "sparse rows are ragged"
    kept, time_slice = list[NDArray[np.int64]](), TimeSlice()
    for start, stop in pairwise(sparse.offsets.tolist()):
        order = np.argsort(-np.abs(sparse.values[start:stop, 1]), kind="stable")
        kept.append(start + np.sort(order[:most]))
        await time_slice.end_if_over()
    offsets = offsets_of(np.array([len(places) for places in kept]))
    return {**results, OutputKind.SPARSE: Rows(sparse.values[np.concatenate(kept)], offsets)}


async def bounded(raw: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scores [N, L] from 0 to 1: sigmoid of one score, since a softmax of it is always 1, and softmax of several."""
    return await activated(raw, Activation.SIGMOID if raw.shape[1] == 1 else Activation.SOFTMAX)


async def activated(raw: NDArray[np.float32], activation: Activation) -> NDArray[np.float32]:
    """Scores [N, L] of raw ones. Long work is done in slices."""
    if activation is Activation.IDENTITY:
        return raw
    scores = np.empty_like(raw)
    async for part in steps(*raw.shape):
        scores[part] = _sigmoid(raw[part]) if activation is Activation.SIGMOID else _softmax(raw[part])
    return scores


def _softmax(raw: NDArray[np.float32]) -> NDArray[np.float32]:
    powers = np.exp(raw - raw.max(axis=1, keepdims=True))  # the largest is 1, so none overflows
    shares: NDArray[np.float32] = powers / powers.sum(axis=1, keepdims=True)
    return shares


def _sigmoid(raw: NDArray[np.float32]) -> NDArray[np.float32]:
    powers = np.exp(-np.abs(raw))  # at most 1, so none overflows
    scores: NDArray[np.float32] = np.where(raw >= 0, np.float32(1), powers) / (1 + powers)
    return scores
