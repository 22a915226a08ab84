"""Small models in the form in which repositories with code of their own are published, and what that code computes.

Weights are arbitrary. Readings are plain torch in float64, one text at a time, written anew from the authors' code.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.types import Engine, OutputKind
from tests.engine.engines import difference, rows
from tests.engine.folder_files import write
from tests.engine.model.detection.shapes import tokenizer
from tests.engine.tiny_models import batch
from wire.parts import PROMPT_TOKEN

TRANSFORMERS, OPENVINO, FUSED = "transformers", "openvino", "fused"
TOLERANCE = 1e-5
SEQLENS = (5, 17, 1, 30, 9, 9)

Config = dict[str, Any]
Weights = dict[str, Tensor]  # float64, by name
Shapes = dict[str, tuple[int, ...]]
Row = Callable[[Config, Weights, list[int]], Tensor]

MEAN = {"Transformer": "", "Pooling:mean": "1_Pooling"}
NORMALIZED = {**MEAN, "Normalize": "2_Normalize"}
_MODULES = "sentence_transformers.models."


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One of these models."""

    config: Config
    shapes: Shapes  # of the weights
    tied: Mapping[str, str] = field(default_factory=dict)  # names of weights that are copies of others
    row: Row  # of a text by the reading: [D], or of all its tokens [S, D]
    modules: Mapping[str, str] = field(default_factory=dict)  # see save
    files: Mapping[str, Any] = field(default_factory=dict)  # further ones of JSON, by name; then there is a tokenizer
    tokens: tuple[str, ...] = ()  # that the tokenizer has besides
    output: OutputKind = OutputKind.POOLED
    engines: tuple[str, ...] = (TRANSFORMERS, OPENVINO)
    refused: tuple[tuple[str, Any], ...] = ()  # keys of config.json, and values with which the code gives other rows
    is_fuzzed: bool = False  # whether the reading has all that config.json can say

    @property
    def weights(self) -> Weights:
        """The same each time."""
        found = arbitrary(self.shapes)
        return found | {name: found[other].clone() for name, other in self.tied.items()}

    def save(self, folder: Path, **changes: Any) -> Path:
        """The model. changes: of config.json."""
        for name, content in self.files.items():
            tokenizer(folder, added=self.tokens)
            write(folder / name, content)
        return save(folder, self.config | changes, self.weights, modules=self.modules)


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


def sequences(vocab_size: int, seqlens: Sequence[int] = SEQLENS) -> list[list[int]]:
    """Arbitrary ids from 4 up."""
    numbers = np.random.default_rng(1)
    return [numbers.integers(4, vocab_size, seqlen).tolist() for seqlen in seqlens]


def check(
    loaded: Engine,
    texts: Sequence[Sequence[int]],
    expected: Sequence[Tensor],
    *,
    output: OutputKind = OutputKind.POOLED,
    **parts: Sequence[Sequence[int]],
) -> None:
    """Rows of all texts as one batch, and of each alone, are the expected ones. parts: of each text, see Batch.
    Closes the engine."""
    numbers = list(range(len(texts)))
    try:
        for some in (numbers, *([number] for number in numbers)):
            given = {name: [value for number in some for value in own[number]] for name, own in parts.items()}
            found = rows(loaded, batch([texts[at] for at in some], **given), output)
            wanted = [expected[number] for number in some]
            whole = torch.cat(wanted) if output is OutputKind.MULTI_VECTOR else torch.stack(wanted)
            assert difference(found, whole) <= TOLERANCE
    finally:
        loaded.close()


def prompted(texts: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
    """Marks with which a pooling leaves out the first tokens of each text, where it is to leave out prompts."""
    return [[PROMPT_TOKEN if place < num_tokens else 0 for place in range(len(ids))] for ids in texts]
