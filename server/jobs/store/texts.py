"""Parts of a request as JSON text, as stores keep them; ids, and the digest of what a request says."""

import hashlib
import secrets

import msgspec

from server.jobs.types import Headers, JobError, NewRequest, RetryPolicy


def new_request_id(now: float) -> str:
    """32 hexadecimal digits that nobody can guess; they begin with the time, so that an index grows at its end."""
    return f"{int(now * 1000) & (1 << 48) - 1:012x}{secrets.token_hex(10)}"


def content_digest(new: NewRequest) -> bytes:
    """Of all that its sender said, bar the idempotency key."""
    said = (new.route, new.headers, new.priority, new.max_time_in_queue, new.retry, new.webhook_endpoint)
    return hashlib.sha256(msgspec.json.encode(said) + b"\0" + new.body).digest()


def headers_text(headers: Headers) -> str:
    return msgspec.json.encode(headers).decode()


def headers_from(text: str | bytes) -> Headers:
    return msgspec.json.decode(text, type=Headers)


def errors_text(errors: tuple[JobError, ...]) -> str:
    return msgspec.json.encode(errors).decode()


def errors_from(text: str | bytes) -> tuple[JobError, ...]:
    return msgspec.json.decode(text, type=tuple[JobError, ...])


def retry_text(retry: RetryPolicy) -> str:
    return msgspec.json.encode(retry).decode()


def retry_from(text: str | bytes) -> RetryPolicy:
    return msgspec.json.decode(text, type=RetryPolicy)
