"""T5's encoder: sentence-t5, gtr-t5 and instructor, against a reading of the paper and of Mesh TensorFlow.

Read: Raffel et al., section 2.1 (layers); tensorflow/mesh, mesh_tensorflow/transformer/transformer_layers.py,
_relative_position_bucket; Shazeer, GLU Variants Improve Transformer (T5 1.1's MLP). config.json as in
sentence-transformers/sentence-t5-base.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.model import model_folder
from engine.types import ModelError
from tests.engine.folder_files import write
from tests.engine.published.agreement import SEQLENS, check
from tests.engine.published.decoder import rms
from tests.engine.published.folders import Weights, arbitrary, save, sequences
from tests.engine.published.reading import OPENVINO, TRANSFORMERS
from tests.tiers import full_but

SIZE, HEADS, HEAD, WIDTH, LAYERS, OUT = 32, 4, 6, 40, 3, 20
CONFIG: dict[str, Any] = {
    "_name_or_path": "models/sentence-t5-base",
    "architectures": ["T5EncoderModel"],
    "d_ff": WIDTH,
    "d_kv": HEAD,
    "d_model": SIZE,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.1,
    "eos_token_id": 1,
    "feed_forward_proj": "relu",
    "gradient_checkpointing": False,
    "initializer_factor": 1.0,
    "is_encoder_decoder": True,
    "layer_norm_epsilon": 1e-06,
    "model_type": "t5",
    "n_positions": 512,
    "num_decoder_layers": LAYERS,
    "num_heads": HEADS,
    "num_layers": LAYERS,
    "output_past": True,
    "pad_token_id": 0,
    "relative_attention_num_buckets": 8,
    "torch_dtype": "float32",
    "use_cache": True,
    "vocab_size": 120,
}
GATED = {"feed_forward_proj": "gated-gelu", "relative_attention_max_distance": 20, "tie_word_embeddings": False}
DENSE = {
    "in_features": SIZE,
    "out_features": OUT,
    "bias": False,
    "activation_function": "torch.nn.modules.linear.Identity",
}


BIAS = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias"
KINDS = {"relu": CONFIG, "gated": CONFIG | GATED, "mt5": CONFIG | GATED | {"model_type": "mt5"}}


def tiny(folder: Path, config: dict[str, Any], modules: dict[str, str] | None = None) -> tuple[Path, Weights]:
    shapes: dict[str, tuple[int, ...]] = {"shared.weight": (config["vocab_size"], SIZE)}
    for layer in range(LAYERS):
        attention, mlp = f"encoder.block.{layer}.layer.0", f"encoder.block.{layer}.layer.1"
        shapes |= {f"{attention}.SelfAttention.{name}.weight": (HEADS * HEAD, SIZE) for name in "qkv"}
        shapes[f"{attention}.SelfAttention.o.weight"] = (SIZE, HEADS * HEAD)
        shapes |= {f"{name}.layer_norm.weight": (SIZE,) for name in (attention, mlp)}
        wide = ("wi",) if config["feed_forward_proj"] == "relu" else ("wi_0", "wi_1")
        shapes |= {f"{mlp}.DenseReluDense.{name}.weight": (WIDTH, SIZE) for name in wide}
        shapes[f"{mlp}.DenseReluDense.wo.weight"] = (SIZE, WIDTH)
    shapes |= {f"{BIAS}.weight": (8, HEADS), "encoder.final_layer_norm.weight": (SIZE,)}
    weights = arbitrary(shapes)
    tied = {"encoder.embed_tokens.weight": weights["shared.weight"].clone()}
    return save(folder, config, weights | tied, modules=modules), weights


def bucket(distance: int, farthest: int) -> int:
    """Of a key that is `distance` tokens after its query; the logarithm is float32's, as in the authors' code."""
    first, near, half = (4 if distance > 0 else 0), 2, 4
    if abs(distance) < near:
        return first + abs(distance)
    far = np.log(np.float32(abs(distance) / near)) / np.float32(math.log(farthest / near)) * np.float32(half - near)
    return first + min(half - 1, near + int(far))


def token_rows(weights: Weights, config: dict[str, Any], ids: list[int]) -> Tensor:
    """[S, D]"""
    farthest, places = config.get("relative_attention_max_distance", 128), range(len(ids))
    buckets = torch.tensor([[bucket(key - query, farthest) for key in places] for query in places])
    bias = weights[f"{BIAS}.weight"][buckets].permute(2, 0, 1)
    rows = weights["shared.weight"][ids]
    for layer in range(LAYERS):
        name = f"encoder.block.{layer}.layer.0"
        normed = rms(weights, f"{name}.layer_norm", rows, 1e-6)
        query, key, value = (
            (normed @ weights[f"{name}.SelfAttention.{each}.weight"].T).reshape(-1, HEADS, HEAD).transpose(0, 1)
            for each in "qkv"
        )
        seen = (query @ key.mT + bias).softmax(-1) @ value
        rows = rows + seen.transpose(0, 1).flatten(1) @ weights[f"{name}.SelfAttention.o.weight"].T
        rows = rows + mlp(weights, f"encoder.block.{layer}.layer.1", rows)
    return rms(weights, "encoder.final_layer_norm", rows, 1e-6)


def mlp(weights: Weights, name: str, rows: Tensor) -> Tensor:
    normed = rms(weights, f"{name}.layer_norm", rows, 1e-6)
    first = [key for key in weights if key.startswith(f"{name}.DenseReluDense.wi")]
    wide = {key.split(".")[-2]: normed @ weights[key].T for key in first}
    inner = wide["wi"].relu() if "wi" in wide else gelu(wide["wi_0"]) * wide["wi_1"]
    return inner @ weights[f"{name}.DenseReluDense.wo.weight"].T


def gelu(rows: Tensor) -> Tensor:
    """By tanh, as in T5 1.1."""
    return rows * (1 + (math.sqrt(2 / math.pi) * (rows + 0.044715 * rows**3)).tanh()) / 2


def means(weights: Weights, config: dict[str, Any], texts: list[list[int]], *, first: int = 0) -> Tensor:
    return torch.stack([token_rows(weights, config, ids)[first:].mean(0) for ids in texts])


POOLED = {"Transformer": "", "Pooling:mean": "1_Pooling"}


@pytest.mark.parametrize("engine", full_but((TRANSFORMERS,), (TRANSFORMERS, OPENVINO)))
@pytest.mark.parametrize("kind", full_but(("relu",), KINDS))
def test_rows_are_those_of_the_paper(kind: str, engine: str, tmp_path: Path) -> None:
    modules = {**POOLED, "Dense": "2_Dense", "Normalize": "3_Normalize"}
    folder, weights = tiny(tmp_path / "model", KINDS[kind], modules)
    dense = arbitrary({"linear.weight": (OUT, SIZE)})["linear.weight"]
    write(folder / "2_Dense" / "config.json", DENSE)
    save_file({"linear.weight": dense.float()}, folder / "2_Dense" / "model.safetensors")
    texts = sequences(120, SEQLENS)
    note = check(engine, folder, texts, means(weights, KINDS[kind], texts) @ dense.T)
    assert engine == OPENVINO or note.startswith("packed")


def test_the_instruction_is_left_out_of_the_pooling(tmp_path: Path) -> None:
    """As instructor's own code does (xlang-ai/instructor-embedding, InstructorEmbedding/instructor.py)."""
    folder, weights = tiny(tmp_path / "model", CONFIG, POOLED)
    write(folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True, "include_prompt": False})
    texts = sequences(120, (9, 30))
    check(TRANSFORMERS, folder, texts, means(weights, CONFIG, texts, first=4), prompt=4)


def test_instructor_is_known_by_its_name(tmp_path: Path) -> None:
    """Its Pooling module does not say that the instruction is left out."""
    folder, _ = tiny(tmp_path / "models--hkunlp--instructor-large" / "snapshots" / "1a2b", CONFIG, POOLED)
    assert not model_folder.read(folder).include_prompt
    assert model_folder.read(tiny(tmp_path / "sentence-t5-base", CONFIG, POOLED)[0]).include_prompt


def test_texts_beyond_the_farthest_distance(tmp_path: Path) -> None:
    folder, weights = tiny(tmp_path / "model", CONFIG | GATED, POOLED)
    texts = sequences(120, (150, 3, 133))
    check(TRANSFORMERS, folder, texts, means(weights, CONFIG | GATED, texts))


def test_a_model_that_answers_with_its_decoder_is_refused(tmp_path: Path) -> None:
    config = CONFIG | {"architectures": ["T5ForConditionalGeneration"]}
    with pytest.raises(ModelError, match=r"encoder-decoder.*modules\.json"):
        model_folder.read(tiny(tmp_path / "model", config)[0])
    assert model_folder.read(tiny(tmp_path / "another", config, POOLED)[0]).architecture == "t5"
