"""What an exception of somebody else's means, in our words."""

from engine.types import EngineError, EngineErrorKind

_OUT_OF_MEMORY = ("out of memory", "bad_alloc", "allocate memory", "failed to allocate")
_MAX_REASON = 300  # characters; some exceptions hold pages


def one_line(error: Exception) -> str:
    """What it says, for a log or an operator."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:_MAX_REASON]


def engine_error(error: Exception) -> EngineError:
    """A batch that could not be computed."""
    is_memory = isinstance(error, MemoryError) or any(words in str(error).lower() for words in _OUT_OF_MEMORY)
    return EngineError(EngineErrorKind.OUT_OF_MEMORY if is_memory else EngineErrorKind.FAILED, one_line(error))
