"""Folders in the form in which models are published: files of JSON, and weights of arbitrary numbers."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.engine.folder_files import write

Weights = dict[str, Tensor]  # float64, by name

_MODULES = "sentence_transformers.models."


def arbitrary(shapes: Mapping[str, Sequence[int]]) -> Weights:
    """Numbers that float32 has, the same each time: norms about 1, layers that neither swell nor shrink rows."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name, shape in shapes.items():
        numbers = torch.randn(tuple(shape), generator=generator)
        is_norm = len(shape) == 1 and name.endswith("weight")
        scale = 0.3 if len(shape) == 1 else 1.5 * shape[-1] ** -0.5
        found[name] = (numbers * scale + is_norm).double()
    return found


def save(
    folder: Path, config: Mapping[str, Any], weights: Weights, *, modules: Mapping[str, str] | None = None
) -> Path:
    """modules: kind (with its package, if that is not sentence-transformers) -> folder; poolings are cls or mean."""
    write(folder / "config.json", config)
    save_file({name: tensor.float().contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
    entries = []
    for number, (kind, path) in enumerate((modules or {}).items()):
        name, _, mode = kind.partition(":")
        entries.append(
            {"idx": number, "name": str(number), "path": path, "type": name if "." in name else _MODULES + name}
        )
        if mode:
            flags = {"pooling_mode_cls_token": mode == "cls", "pooling_mode_mean_tokens": mode == "mean"}
            write(folder / path / "config.json", {"word_embedding_dimension": config.get("hidden_size"), **flags})
    if entries:
        (folder / "modules.json").write_text(json.dumps(entries))
    return folder


def sequences(vocab_size: int, seqlens: Sequence[int] = (5, 17, 1, 30, 5)) -> list[list[int]]:
    """Arbitrary ids from 4 up."""
    numbers = np.random.default_rng(1)
    return [numbers.integers(4, vocab_size, seqlen).tolist() for seqlen in seqlens]
