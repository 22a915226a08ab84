"""nvidia/NV-Embed-v2 (modeling_nvembed.py, configuration_nvembed.py; Lee et al., arXiv 2405.17428, section 3.1)."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.model import model_folder
from engine.types import ModelError
from tests.engine.published import decoder
from tests.engine.published.agreement import SEQLENS, check
from tests.engine.published.folders import Weights, arbitrary, save, sequences
from tests.engine.published.reading import OPENVINO, TRANSFORMERS, attention, gelu, linear, norm
from tests.tiers import full_but

SIZE, HEADS, HEAD, LATENTS = 32, 2, 12, 7
_OF_GENERATION: dict[str, Any] = {
    "add_cross_attention": False,
    "bad_words_ids": None,
    "do_sample": False,
    "is_decoder": False,
    "is_encoder_decoder": False,
    "max_length": 20,
    "num_beams": 1,
    "pruned_heads": {},
    "temperature": 1.0,
    "top_k": 50,
    "torchscript": False,
    "typical_p": 1.0,
    "use_bfloat16": False,
}
TEXT: dict[str, Any] = _OF_GENERATION | {
    "_name_or_path": "nvidia/NV-Embed-v2",
    "architectures": ["MistralModel"],
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": SIZE,
    "initializer_range": 0.02,
    "intermediate_size": 40,
    "max_position_embeddings": 32768,
    "model_type": "bidir_mistral",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4,  # of Mistral; the code's mask has none
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "use_cache": True,
    "vocab_size": 120,
}
CONFIG: dict[str, Any] = {
    "_name_or_path": "nvidia/NV-Embed-v2",
    "add_eos": True,
    "add_pad_token": True,
    "architectures": ["NVEmbedModel"],
    "auto_map": {
        "AutoConfig": "configuration_nvembed.NVEmbedConfig",
        "AutoModel": "modeling_nvembed.NVEmbedModel",
    },
    "hidden_size": SIZE,
    "is_mask_instruction": True,
    "latent_attention_config": {
        "model_type": "latent_attention",
        "num_latents_value": LATENTS,
        "num_cross_heads": HEADS,
        "cross_dim_head": HEAD,
        "hidden_dim": SIZE,
        "latent_dim": SIZE,
    },
    "mask_type": "b",
    "model_type": "nvembed",
    "padding_side": "right",
    "text_config": TEXT,
    "torch_dtype": "float16",
    "transformers_version": "4.42.4",
}
PREFIX = "latent_attention_model"
ATTENTION, MLP = f"{PREFIX}.cross_attend_blocks.0", f"{PREFIX}.cross_attend_blocks.1"


_NORMS = (f"{ATTENTION}.norm", f"{ATTENTION}.norm_context", f"{MLP}.norm")


def tiny(folder: Path, *, modules: dict[str, str] | None = None, **changes: Any) -> tuple[Path, Weights]:
    shapes = decoder.shapes(TEXT, prefix="embedding_model.")
    shapes |= {f"{name}.{kind}": (SIZE,) for name in _NORMS for kind in ("weight", "bias")}
    shapes |= {
        f"{PREFIX}.latents": (LATENTS, SIZE),
        f"{ATTENTION}.fn.to_q.weight": (HEADS * HEAD, SIZE),
        f"{ATTENTION}.fn.to_kv.weight": (2 * HEADS * HEAD, SIZE),
        f"{ATTENTION}.fn.to_out.weight": (SIZE, HEADS * HEAD),
        f"{MLP}.fn.net.0.weight": (8 * SIZE, SIZE),
        f"{MLP}.fn.net.0.bias": (8 * SIZE,),
        f"{MLP}.fn.net.2.weight": (SIZE, 4 * SIZE),
        f"{MLP}.fn.net.2.bias": (SIZE,),
    }
    weights = arbitrary(shapes)
    return save(folder, CONFIG | changes, weights, modules=modules), weights


def token_rows(weights: Weights, ids: list[int]) -> Tensor:
    """[S, D]"""
    rows = decoder.token_rows(weights, TEXT, ids, prefix="embedding_model.")
    latents = norm(weights, f"{ATTENTION}.norm_context", weights[f"{PREFIX}.latents"], 1e-5)
    query = linear(weights, f"{ATTENTION}.fn.to_q", norm(weights, f"{ATTENTION}.norm", rows, 1e-5))
    key, value = linear(weights, f"{ATTENTION}.fn.to_kv", latents).chunk(2, dim=-1)
    rows = linear(weights, f"{ATTENTION}.fn.to_out", attention(query, key, value, HEADS)) + rows
    values, gates = linear(weights, f"{MLP}.fn.net.0", norm(weights, f"{MLP}.norm", rows, 1e-5)).chunk(2, dim=-1)
    return linear(weights, f"{MLP}.fn.net.2", values * gelu(gates)) + rows


def means(weights: Weights, texts: list[list[int]], *, first: int = 0) -> Tensor:
    return torch.stack([token_rows(weights, ids)[first:].mean(0) for ids in texts])


@pytest.mark.parametrize("engine", full_but((TRANSFORMERS,), (TRANSFORMERS, OPENVINO)))
def test_each_tokens_row_attends_to_latent_rows(engine: str, tmp_path: Path) -> None:
    folder, weights = tiny(tmp_path / "model", modules={"Transformer": "", "Pooling:mean": "1_Pooling"})
    texts = sequences(120, SEQLENS)
    check(engine, folder, texts, means(weights, texts))


def test_without_modules_the_mean_leaves_out_the_instruction(tmp_path: Path) -> None:
    """And is scaled to length 1, as the code's output_normalize says."""
    folder, weights = tiny(tmp_path / "model")
    texts = sequences(120, (9, 20))
    check(TRANSFORMERS, folder, texts, means(weights, texts, first=3), prompt=3)
    found = model_folder.read(folder)
    assert (found.poolings, found.normalize, found.include_prompt) == (("mean",), True, False)


def test_the_sizes_that_the_published_file_leaves_out(tmp_path: Path) -> None:
    wide: dict[str, Any] = {"hidden_size": 4096, "text_config": TEXT | {"hidden_size": 4096}}
    folder, _ = tiny(tmp_path / "model", **wide, latent_attention_config={"model_type": "latent_attention"})
    found = model_folder.read(folder).config
    assert [found[key] for key in ("num_latents", "num_cross_heads", "cross_dim_head")] == [512, 8, 4096]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"padding_side": "left"}, "padding_side"),
        ({"is_mask_instruction": False}, "is_mask_instruction"),
        ({"latent_attention_config": {"latent_dim": 8}}, "dim"),
        ({"latent_attention_config": {"num_rounds": 2}}, "num_rounds"),
        ({"text_config": TEXT | {"attention_sinks": 2}}, "attention_sinks"),
    ],
)
def test_what_the_code_would_compute_and_nothing_here_does_is_refused(
    changes: dict[str, Any], key: str, tmp_path: Path
) -> None:
    folder, _ = tiny(tmp_path / "model", **changes)
    with pytest.raises(ModelError, match=key):
        model_folder.read(folder)
