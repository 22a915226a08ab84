"""Turns exceptions of libraries into EngineError. Goes by their messages, because few have classes of their own."""

from engine.types import EngineError, EngineErrorKind

_MAX_REASON = 300  # characters; some exceptions hold pages
_OUT_OF_MEMORY_CLASSES = frozenset(("MemoryError", "OutOfMemoryError"))  # the latter is torch's
_OUT_OF_MEMORY = (
    "out of memory",
    "bad_alloc",
    "alloc_failed",
    "allocate memory",
    "failed to allocate",
    "cublas_status_not_initialized",  # raised for a new handle when memory is short
)
# torch reports these as CUDA errors too, but the CUDA context still works.
_REFUSED = ("cublas_status_not_supported", "cublas_status_invalid_value")
# After these a CUDA context is unusable. Libraries on top of CUDA have no exception classes for it.
_DEVICE_IS_LOST_CLASS = "AcceleratorError"  # torch's
_DEVICE_IS_LOST = (
    "cuda error",
    "cuda runtime error",  # TensorRT-LLM's own calls
    "cuda driver error",
    "triton error [cuda]",
    "cublas_status_execution_failed",
    "cublas_status_internal_error",
    "cudnn_status_execution_failed",
    "cudnn_status_internal_error",
)


def one_line(error: Exception) -> str:
    """Class and message of an exception, for a log or an operator."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:_MAX_REASON]


def engine_error(error: Exception) -> EngineError:
    """The answer to a batch whose computation raised `error`."""
    return EngineError(_kind(error), one_line(error))


def _kind(error: Exception) -> EngineErrorKind:
    classes, text = {each.__name__ for each in type(error).__mro__}, str(error).lower()
    if classes & _OUT_OF_MEMORY_CLASSES or any(words in text for words in _OUT_OF_MEMORY):
        return EngineErrorKind.OUT_OF_MEMORY
    if any(words in text for words in _REFUSED):
        return EngineErrorKind.FAILED
    if _DEVICE_IS_LOST_CLASS in classes or any(words in text for words in _DEVICE_IS_LOST):
        return EngineErrorKind.FATAL
    return EngineErrorKind.FAILED
