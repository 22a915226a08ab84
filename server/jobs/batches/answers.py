"""The lines that a batch writes, as OpenAI has them."""

import msgspec

from server.jobs.batches.lines import LineProblem
from server.jobs.http_client import HttpAnswer

_JSON = "application/json"


def answered(line_id: str, custom_id: str, answer: HttpAnswer) -> bytes:
    """A line of output, or of errors where the status is not 200, as OpenAI has it."""
    if answer.headers.get("content-type", "").partition(";")[0] == _JSON:
        body: object = msgspec.Raw(msgspec.json.format(answer.body, indent=-1) if b"\n" in answer.body else answer.body)
    else:
        body = answer.body  # as base64
    response = {
        "status_code": answer.status,
        "request_id": answer.headers.get("x-request-id", line_id),
        "body": body,
    }
    return _line({"id": line_id, "custom_id": custom_id, "response": response, "error": None})


def refused(line_id: str, custom_id: str | None, number: int, problem: LineProblem) -> bytes:
    """A line of errors for what was not computed."""
    error = {"code": problem.code, "message": str(problem), "line": number}
    return _line({"id": line_id, "custom_id": custom_id, "response": None, "error": error})


def _line(content: object) -> bytes:
    return msgspec.json.encode(content) + b"\n"
