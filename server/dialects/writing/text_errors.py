"""Errors as clients of Ollama and Weaviate read them: `error` is one text."""

from server.dialects.route import Answer, error_answer
from server.requests.errors import ERRORS, RequestError


def text_error(error: RequestError) -> Answer:
    """The message alone."""
    return error_answer(ERRORS[type(error)].status, {"error": error.message}, error)
