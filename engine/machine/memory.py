"""Gives back the memory of a model that is no longer wanted, that of a GPU as well. Imports no torch."""

import gc
import sys


def release() -> None:
    """Nothing may hold the model any more, nor the traceback of what failed in loading it."""
    gc.collect()  # parts of it know each other
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
