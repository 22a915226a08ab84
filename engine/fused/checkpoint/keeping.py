"""Which kept model a start may take, and which it leaves for the next. Reads no tensors (see store.py)."""

import contextlib
from pathlib import Path
from typing import Any

import torch

from engine.fused.checkpoint.store import Kept, Store
from engine.fused.choices import Choices
from engine.fused.quantization.gate import Outcome
from engine.model.arrays import weights_files
from engine.store import fingerprint
from engine.store.cache import Cache

_FOLDER = "fused"  # in the folder that was given
# Of some GB each, so fewer than compiled models for CPUs: those used last, some versions of ours and of torch included.
_MAX_ENTRIES = 8
_PACKAGES = ("torch", "transformers", "triton")
_SOURCES = (
    "fused/**/*.py",
    "machine/varlen.py",
    "model/*.py",
    "rows/*.py",
    "selftest/*.py",
    "store/tensor_file.py",
)


class Keeping:
    """Of one start. Only models whose gate was asked for are kept: others are read as fast as they are."""

    def __init__(self, chosen: Choices, options: dict[str, Any]) -> None:
        """See engine.fused.engine.load for the options."""
        wish, cache_dir = options.get("quantization", "none"), options.get("cache_dir")
        self._key = None
        if cache_dir and wish != "none" and options.get("is_gated", True):
            with contextlib.suppress(OSError):  # whoever reads the files will say what is wrong with them
                self._key = _key(chosen, wish)
            cache = Cache(Path(cache_dir, _FOLDER), max_entries=_MAX_ENTRIES)
            self._store = Store(cache, device=chosen.device, dtype=chosen.dtype)

    def find(self) -> Kept | None:
        """See Store."""
        return None if self._key is None else self._store.find(self._key)

    def given_up(self) -> Outcome | None:
        """See Store."""
        return None if self._key is None else self._store.given_up(self._key)

    def put(self, kept: Kept) -> None:
        """See Store."""
        if self._key is not None:
            self._store.put(self._key, kept)


def _key(chosen: Choices, wish: str) -> str:
    folder = chosen.folder
    choices = {
        "quantization": wish,
        "dtype": str(chosen.dtype),
        "capability": chosen.capability,
        "gpu": "" if chosen.capability is None else torch.cuda.get_device_name(chosen.device),
        "pooling": folder.pooling,  # of the rows that the gate compared
        "steps": [str(step) for step in folder.steps],
        "max_seqlen": folder.max_seqlen,  # rows of the tables of angles
        "do_lower_case": folder.do_lower_case,
    }
    others = weights_files(folder.path, folder.steps)
    return fingerprint.key(folder.path, packages=_PACKAGES, sources=_SOURCES, choices=choices, others=others)
