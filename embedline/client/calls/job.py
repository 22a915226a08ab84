"""One batch on its way to an answer, what was done for it, and the words for it where that was in vain."""

from dataclasses import dataclass, field, replace

from embedline.client.errors import DeadlineExceeded, RequestFailed
from embedline.client.tasks.task import Batch
from embedline.client.transport.endpoint import Endpoint
from embedline.client.transport.failure import Failure
from embedline.client.transport.request_id import attempt_id


@dataclass(slots=True, eq=False)
class Job:
    """Only the calling thread changes it, and only while no attempt is under way."""

    batch: Batch
    endpoint: Endpoint | None = None  # where it is, or was last
    way: int = 0  # which of the task's ways to ask is used there
    is_finding_way: bool = False  # stays with its endpoint and its way, whatever others use
    deadline: float = 0.0  # of the attempt; time.monotonic() seconds
    num_retries: int = 0
    tried: set[Endpoint] = field(default_factory=set)  # since it last waited
    history: list[str] = field(default_factory=list)
    has_notes: bool = False  # the history says more than what failed
    refusal: Failure | None = None  # of another way to ask: the one to show if all are refused
    refused_forms: set[str] = field(default_factory=set)

    def with_batch(self, batch: Batch) -> "Job":
        """A part of it, as far as it has come."""
        return replace(
            self,
            batch=batch,
            tried=set(self.tried),
            history=list(self.history),
            refused_forms=set(self.refused_forms),
        )

    def note(self, failure: Failure) -> None:
        """One more attempt was in vain."""
        assert self.endpoint is not None
        self.history.append(f"{self.endpoint.origin.url}: {failure.words}")

    def note_what_next(self, words: str) -> None:
        """What is done about the last one."""
        self.history[-1] += f", {words}"
        self.has_notes = True


@dataclass(frozen=True, slots=True)
class Situation:
    """What a message says beside the failed request."""

    method: str
    path: str
    request_id: str  # of the call; those of its requests begin with it
    num_done: int  # inputs of the call that have their results
    total: int | None  # inputs of the call; None = not known


def given_up(job: Job, failure: Failure, situation: Situation, *, is_late: bool) -> RequestFailed:
    """The error that ends the call: which request it was, what was done, what is kept."""
    first, last = job.batch.start, job.batch.stop - 1
    inputs = f"input {first}" if first == last else f"inputs {first} to {last}"
    name = attempt_id(situation.request_id, first, 0)
    url = "" if job.endpoint is None else job.endpoint.origin.url
    request = f"{situation.method} {url}{situation.path} with {inputs} (x-request-id {name})"
    attempts = "1 attempt" if len(job.history) == 1 else f"{len(job.history)} attempts"
    says_more = len(job.history) > 1 or job.has_notes
    done = f"; {attempts}: {'; '.join(job.history)}" if says_more else ""
    of = "" if situation.total is None else f" of {situation.total}"
    kind = DeadlineExceeded if is_late else RequestFailed
    return kind(
        f"{request}: {failure.words}{done}. {situation.num_done}{of} inputs are done",
        request=request,
        status=failure.status,
        start=job.batch.start,
        stop=job.batch.stop,
        attempts=job.history,
    )
