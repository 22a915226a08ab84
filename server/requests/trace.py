"""The record of one request: written by the edge and the pipeline, read for the log, metrics and headers of answers.

It decides nothing. Knows no text and no row, only how many there were and how long it took.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from server.requests.errors import ERRORS, EngineFailed, RequestError

CLIENT_LEFT = 499  # nginx's status, in logs, for a client that has left; nobody receives it
logger = logging.getLogger("embedline.server")


@dataclass(slots=True)
class Trace:
    """One request. Seconds are 0 for stages that were not reached."""

    method: str = ""
    route: str = ""  # one of our paths, so that there are few; "other" for all else
    request_id: str = ""
    began: float = field(default_factory=time.perf_counter)
    status: int = 0
    error: str = ""  # the error's class, "" without one
    reason: str = ""  # the label of embedline_rejected_total
    stage: str = "read"  # the stage where it is, or where it ended: read, admit, tokenize, queue, respond
    key: str = ""  # the name of the API key, "" if none is needed
    model: str = ""
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
    return error
