"""What an exception of somebody else's means, in our words: libraries are known by what their exceptions say."""

from engine.types import EngineError, EngineErrorKind, ModelError

_MAX_REASON = 300  # characters; some exceptions hold pages
_OUT_OF_MEMORY_CLASSES = frozenset(("MemoryError", "OutOfMemoryError"))  # the latter is torch's
_OUT_OF_MEMORY = (
    "out of memory",
    "bad_alloc",
    "alloc_failed",
    "allocate memory",
    "failed to allocate",
    "cublas_status_not_initialized",  # what making a handle says where memory is short
)
# torch words these as errors of CUDA too, but they leave a context as it was.
_REFUSED = ("cublas_status_not_supported", "cublas_status_invalid_value")
# After these a CUDA context computes nothing any more; libraries on top of CUDA have no exceptions of their own for it.
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
    """What it says, for a log or an operator."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:_MAX_REASON]


def not_finite(engine: str, dtype: str) -> ModelError:
    """A model whose rows are NaN or infinite, and what to try instead."""
    if dtype == "float16":
        instead = "--dtype bfloat16 or float32 may serve it" if engine != "fused" else "--dtype bfloat16 may serve it"
    elif (engine, dtype) == ("transformers", "float32"):
        instead = "its weights may be damaged, and no engine would do better"
    else:
        instead = "--engine transformers --dtype float32 --quantization none may serve it"
    return ModelError(f"the model gives rows that are not finite; {instead}")


def engine_error(error: Exception) -> EngineError:
    """A batch that could not be computed."""
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
