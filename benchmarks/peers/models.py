"""The models that servers are compared on, and the forms in which other servers want them.

    python -m benchmarks.peers.models

prints the folder of all-MiniLM-L6-v2.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from engine.store.model_source import resolve

if TYPE_CHECKING:  # torch is imported only to make random weights
    from benchmarks.gpu.shapes import Shape

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")


class ExportFailed(Exception):
    """One line."""


@dataclass(frozen=True, slots=True)
class PeerModel:
    """A model that all servers load from the same folder."""

    name: str
    title: str
    pooling: str  # "cls" or "mean": infinity's ONNX engine reads no modules.json
    has_real_weights: bool
    other_dtype: str  # of Embedline beside its default, on a CPU that multiplies in bfloat16
    is_reranker: bool = field(default=False, kw_only=True)
    make: Callable[[Path], Path]  # gives the model's folder; the argument is one to make it in


def minilm(_: Path) -> Path:
    """The default model's real weights."""
    return resolve(MINILM).path


def bge_base(folder: Path) -> Path:
    """bge-base-en-v1.5 with random weights and MiniLM's tokenizer, which has the same words."""
    from benchmarks.gpu.shapes import BERT_BASE

    return _random(BERT_BASE, folder, is_reranker=False)


def qwen3_embedding(folder: Path) -> Path:
    """Qwen3-Embedding-0.6B with random weights and MiniLM's tokenizer, for texts of as many tokens."""
    from benchmarks.gpu.shapes import QWEN3_06B

    return _random(QWEN3_06B, folder, is_reranker=False)


def qwen3_reranker(folder: Path) -> Path:
    """The same of Qwen3-Reranker-0.6B as a classifier with one score, which every server takes."""
    from benchmarks.gpu.shapes import QWEN3_06B

    return _random(QWEN3_06B, folder, is_reranker=True)


def _random(shape: "Shape", folder: Path, *, is_reranker: bool) -> Path:
    """What a text costs depends on the shape alone."""
    import torch
    from transformers import AutoModel, AutoModelForSequenceClassification

    from benchmarks.gpu.random_models import build, save_pooling

    library_class = AutoModelForSequenceClassification if is_reranker else AutoModel
    if is_reranker:
        shape = replace(shape, config={**shape.config, "num_labels": 1, "pad_token_id": 0})
    build(shape, torch.device("cpu"), library_class=library_class).module.save_pretrained(folder)
    if not is_reranker:
        save_pooling(shape, folder)
    for name in _TOKENIZER_FILES:
        shutil.copyfile(resolve(MINILM).path / name, folder / name)
    return folder


MODELS = {
    model.name: model
    for model in (
        PeerModel("minilm", "all-MiniLM-L6-v2", "mean", True, "float32", minilm),
        PeerModel("bge-base", "a model of bge-base's shape with random weights", "cls", False, "bfloat16", bge_base),
        PeerModel(
            "qwen3-embedding",
            "a model of Qwen3-Embedding-0.6B's shape with random weights",
            "last",
            False,
            "float32",
            qwen3_embedding,
        ),
        PeerModel(
            "qwen3-reranker",
            "a reranker of Qwen3-Reranker-0.6B's shape with random weights",
            "last",
            False,
            "bfloat16",
            qwen3_reranker,
            is_reranker=True,
        ),
    )
}


def export_onnx(environment: Path, model: Path, folder: Path) -> Path:
    """The model as ONNX, optimised by optimum (O2), in `folder`. Raises ExportFailed.

    infinity-emb would optimise it by itself, but calls optimum with an argument that it no longer has.
    """
    command = [str(environment / "bin/optimum-cli"), "export", "onnx", "--model", str(model), "--optimize", "O2"]
    ended = subprocess.run(
        [*command, "--task", "feature-extraction", "--library-name", "transformers", str(folder)],
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise ExportFailed((ended.stderr.strip().splitlines() or ["it said nothing"])[-1])
    return folder


if __name__ == "__main__":
    print(minilm(Path()))
