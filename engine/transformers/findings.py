"""What self-tests have found out, on disk, so that the next start tries fewer sequences, and one way to run them.

A start still compares that way with one sequence at a time, as far as that costs little.
"""

import logging
from pathlib import Path

import torch

from engine.machine import host
from engine.machine.failures import one_line
from engine.messages import LoadOptions
from engine.model.model_folder import ModelFolder, read_as
from engine.model.weights import weights_files
from engine.selftest.sample_ids import TOKENIZER_FILES
from engine.store import fingerprint
from engine.store.cache import Cache
from engine.transformers.placement import Place
from engine.transformers.selftest import Finding
from engine.types import ModelError
from wire.dataclass_json import from_json, to_json
from wire.frames import ProtocolError

logger = logging.getLogger("embedline.engine")

_FOLDER = "self-tests"  # within --compiled-cache
_MAX_ENTRIES = 256  # of a file each
# Of an entry. Raise it when the self-test would find out something else for the same model, or a Finding has other
# fields.
_FORMAT = 1
_MALFORMED = (AttributeError, KeyError, TypeError, ValueError, ModelError, ProtocolError)


class Findings:
    """One model's, on one kind of device."""

    def __init__(self, folder: ModelFolder, where: Place, options: LoadOptions) -> None:
        """Nothing is kept without options.cache_dir."""
        root = Path(options.cache_dir, _FOLDER) if options.cache_dir else None
        self._key = ""
        self._cache = Cache(root, max_entries=_MAX_ENTRIES, max_bytes=options.max_cache_bytes)
        try:
            self._key = _key(folder, where)
        except OSError:  # the reader of the file reports what is wrong with it
            self._cache = Cache(None)
        self._least_tried = min(options.least_tried, folder.max_seqlen)

    def find(self) -> Finding | None:
        """None where there is none that tried enough."""
        entry = self._cache.find(self._key)
        if entry is None:
            return None
        try:
            found = from_json(Finding, entry.facts)
        except _MALFORMED as error:
            self._cache.discard(self._key, why=one_line(error))
            return None
        return found if found.longest >= self._least_tried else None

    def put(self, found: Finding) -> None:
        """Keep it, unless another process was first. What the disk refuses is warned of."""
        if not self._cache.can_keep():
            return
        try:
            with self._cache.new_folder() as folder:
                self._cache.put(self._key, folder, to_json(found))
        except (OSError, ModelError) as error:
            logger.warning("what the self-test has found out is not kept: %s", one_line(error))


def _key(folder: ModelFolder, where: Place) -> str:
    choices = {
        **read_as(folder),
        "dtype": str(where.dtype),
        "device": torch.cuda.get_device_name(where.device) if where.is_gpu else host.cpu(),
        "pooling": folder.pooling,
        "steps": [str(step) for step in folder.steps],
        "heads": [str(head) for head in folder.heads],
        "max_seqlen": folder.max_seqlen,
    }
    others = [*weights_files(folder.path, folder.steps), *(folder.weights_folder / name for name in TOKENIZER_FILES)]
    packages = ("torch", "transformers")
    return fingerprint.key(folder.path, format_number=_FORMAT, packages=packages, choices=choices, others=others)
