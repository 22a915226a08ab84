"""What is known of one request: filled on its way, read for its log line, the metrics and the timing headers.

Knows no text and no row, only how many there were and how long it took.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Trace:
    """One request. Seconds are 0 for stages that were not reached."""

    method: str = ""
    route: str = ""  # a path of ours, so that there are few; "other" for all that are not
    request_id: str = ""
    began: float = field(default_factory=time.perf_counter)
    status: int = 0
    error: str = ""  # the error's class, "" where there is none
    reason: str = ""  # the error's own word for what it is about, "" where its class says it
    stage: str = "read"  # where it is, or ended: read, admit, tokenize, queue, respond
    key: str = ""  # the name of the API key, "" where none is needed
    model: str = ""
    request_class: str = ""  # interactive, bulk
    encoding: str = ""  # of the rows in the answer: float, base64, bytes
    is_single: bool = False  # one text or list of ids, not a list of them
    is_prediction: bool = False  # scores of labels or pairs are asked for, not embeddings
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
    responds_since: float = 0.0  # time.perf_counter() at which all rows were there
    respond_seconds: float = 0.0  # from then to the answer's last byte
    total_seconds: float = 0.0  # from the request's head to the answer's last byte

    def end(self) -> None:
        """The answer's last byte has left, or the client has."""
        now = time.perf_counter()
        self.total_seconds = now - self.began
        if self.responds_since:
            self.respond_seconds = now - self.responds_since

    def elapsed(self) -> float:
        """Seconds since the request's head was read."""
        return time.perf_counter() - self.began
