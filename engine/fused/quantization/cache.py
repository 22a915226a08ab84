"""Quantized models on disk, so that the next start reads half the bytes, quantizes nothing and needs no gate.

An entry is one file of tensors, written one after the other, so that memory for a second copy of the model is never
needed. How they belong together is in the manifest (see engine.store.cache). Of a model that the gate rejects only
the manifest is kept, so that no later start tries again.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engine.fused.model.forwards import Weights
from engine.fused.model.linear import Fp8Linear, Linear, PlainLinear
from engine.fused.model.spec import Spec
from engine.fused.offer import FusedConfig, Options
from engine.fused.quantization.gate import Outcome
from engine.fused.quantization.gate_texts import takes_pairs
from engine.fused.readers import Reader, reader_for
from engine.machine.failures import one_line
from engine.messages import LoadOptions
from engine.model.identity import files_beside
from engine.model.model_folder import read_as
from engine.registry import FUSED
from engine.store import fingerprint, tensor_file
from engine.store.cache import Cache, Entry, check_room
from engine.store.manifest import Json
from engine.types import ModelError
from wire.dataclass_json import from_json, to_json

logger = logging.getLogger("embedline.engine")

_FOLDER = "fused"  # within --compiled-cache
# Some GB an entry, so fewer than compiled models for CPUs: those used last, for some versions of torch included.
_MAX_ENTRIES = 8
_PACKAGES = ("torch", "transformers", "triton")
# An entry's format. Raise it when the same model would have other tensors, another result of the gate, or other facts
# in the manifest.
_FORMAT = 2

_FILE = "weights.safetensors"
_REJECTED = "rejected"  # in the facts of an entry without weights
_RESERVE = 1 << 30  # bytes that stay free on the disk


@dataclass(frozen=True, slots=True)
class QuantizedModel:
    """A quantized model as the cache keeps it."""

    spec: Spec
    weights: Weights
    outcome: Outcome
    notes: tuple[str, ...]  # for people: what was decided when it was made


@dataclass(frozen=True, slots=True)
class QuantizedCache:
    """One model's entry, for one device and compute dtype."""

    _cache: Cache
    _key: str
    device: torch.device
    dtype: torch.dtype

    def find(self) -> QuantizedModel | Outcome | None:
        """The model on the device, or what the gate found that left nothing quantized; None where neither is known.

        A damaged entry is removed. Raises torch.OutOfMemoryError.
        """
        return self._cache.read(self._key, self._decoded)  # what a GPU raises is not caught: the entry is good then

    def _decoded(self, entry: Entry) -> QuantizedModel | Outcome:
        if _REJECTED in entry.facts:
            return from_json(Outcome, entry.facts[_REJECTED])
        kept = _read(entry, reader_for(self.device), self.dtype)
        logger.info("quantized weights taken from %s", entry.folder)
        return kept

    def put(self, kept: QuantizedModel) -> None:
        """Keep it, or of what the gate gave up that it did; nothing where the gate was not enforced. What the disk
        refuses is warned of."""
        if not kept.outcome.is_enforced or not self._cache.can_keep():
            return
        if self._cache.find(self._key) is not None:  # another process, for another GPU, was first
            return
        tensors, facts = _flat(kept) if kept.outcome.quantized else ({}, {_REJECTED: to_json(kept.outcome)})
        try:
            with self._cache.new_folder() as folder:
                check_room(folder, sum(tensor.nbytes for tensor in tensors.values()) + _RESERVE)
                if tensors:
                    tensor_file.write(folder / _FILE, tensors)
                self._cache.put(self._key, folder, facts)
        except (OSError, ModelError) as error:
            logger.warning("the quantized model is not cached: %s", one_line(error))


def cache_for(chosen: FusedConfig, options: LoadOptions) -> QuantizedCache | None:
    """The cache for one start; None where nothing is kept: models without the gate load as fast."""
    if not options.cache_dir or options.quantization == "none" or not options.own_of(FUSED, Options).is_gated:
        return None
    try:
        key = _key(chosen, options.quantization)
    except OSError:  # the reader of the files reports what is wrong with them
        return None
    cache = Cache(Path(options.cache_dir, _FOLDER), max_entries=_MAX_ENTRIES, max_bytes=options.max_cache_bytes)
    return QuantizedCache(cache, key, device=chosen.device, dtype=chosen.dtype)


def _key(chosen: FusedConfig, requested: str) -> str:
    folder = chosen.folder
    choices = {
        **read_as(folder),
        "quantization": requested,
        "dtype": str(chosen.dtype),
        "capability": chosen.capability,
        "gpu": "" if chosen.capability is None else torch.cuda.get_device_name(chosen.device),
        # of what the gate compared, and of which texts
        "pooling": folder.pooling,
        "steps": [str(step) for step in folder.steps],
        "heads": [str(head) for head in folder.heads],
        "activation": folder.activation,
        "takes_pairs": takes_pairs(folder),
        "template": str(folder.template),
        "default_prompt": folder.default_prompt,
        "max_seqlen": folder.max_seqlen,  # rows of the tables of angles
        "do_lower_case": folder.do_lower_case,
    }
    others = [*files_beside(folder), *(folder.weights_folder.iterdir() if folder.tokenizer_folder else ())]
    return fingerprint.key(folder.path, format_number=_FORMAT, packages=_PACKAGES, choices=choices, others=others)


def _flat(kept: QuantizedModel) -> tuple[dict[str, Tensor], Json]:
    """Each tensor once, by name, and all that is needed to put them together again."""
    layers = {name: linear.tensors for name, linear in kept.weights.linears.items()}
    named = dict(kept.weights.tensors)
    named |= {f"{layer}.{kind}": tensor for layer, own in layers.items() for kind, tensor in own.items()}
    first: dict[int, str] = {}  # what layers share in memory, they share in the file
    shared = {name: same for name, tensor in named.items() if (same := first.setdefault(id(tensor), name)) != name}
    facts = {
        "spec": to_json(kept.spec),
        "outcome": to_json(kept.outcome),
        "notes": list(kept.notes),
        "layers": {layer: list(own) for layer, own in layers.items()},
        "shared": shared,
    }
    return {name: tensor for name, tensor in named.items() if name not in shared}, facts


def _read(entry: Entry, reader: Reader, dtype: torch.dtype) -> QuantizedModel:
    """The model of an entry. Raises one of MALFORMED where the entry is not one of ours."""
    facts, file = entry.facts, entry.folder / _FILE
    spec, outcome = from_json(Spec, facts["spec"]), from_json(Outcome, facts["outcome"])
    tensors = {name: reader.read(file, name) for name in reader.names(file)}
    tensors |= {name: tensors[same] for name, same in facts["shared"].items()}
    layers = {
        layer: {kind: tensors.pop(f"{layer}.{kind}") for kind in kinds} for layer, kinds in facts["layers"].items()
    }
    linears = {layer: _linear(own, outcome, layer, dtype) for layer, own in layers.items()}
    notes = (*map(str, facts["notes"]), f"quantized weights taken from {entry.folder}")
    return QuantizedModel(spec, Weights(tensors, linears), outcome, notes)


def _linear(tensors: Mapping[str, Tensor], outcome: Outcome, layer: str, dtype: torch.dtype) -> Linear:
    if layer in outcome.quantized:
        return Fp8Linear.restored(tensors, dtype=dtype)
    return PlainLinear(tensors["weight"], tensors.get("bias"))
