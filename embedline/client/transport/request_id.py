"""Ids of requests, by which an answer is known to be another request's: a server or proxy may answer twice."""

import re
import secrets

HEADER = "x-request-id"
_MADE_HERE = re.compile(r"embedline-[0-9a-f]{10}-[0-9]+(\.[0-9]+)?")


def new_call_id() -> str:
    """What the ids of a call's requests begin with."""
    return f"embedline-{secrets.token_hex(5)}"


def attempt_id(call_id: str, start: int, num_before: int) -> str:
    """Of one attempt to send the batch that begins with this input, after so many others."""
    return f"{call_id}-{start}" + (f".{num_before}" if num_before else "")


def is_of_another(answered: str | None, sent: str | None) -> bool:
    """Whether an answer says that it is for another request of a client of ours. Ids that servers make say nothing.

    A proxy that adds its own id to ours leaves both, with a comma between them.
    """
    if answered is None or answered == sent:
        return False
    ids = [one.strip() for one in answered.split(",")]
    return sent not in ids and any(_MADE_HERE.fullmatch(one) for one in ids)
