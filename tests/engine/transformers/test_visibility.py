"""What each layer lets a token see, as transformers' own masks say it, for windows of any size."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel
from transformers.masking_utils import (
    and_masks,
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    packed_sequence_mask_function,
    sliding_window_bidirectional_mask_function,
    sliding_window_causal_mask_function,
)

from engine.model.coverage import Use
from engine.transformers import attention
from engine.transformers.forward import PackedForward
from engine.transformers.visibility import UnsupportedAttention, Visibility, visibility_of
from tests.engine.tiny_models import batch
from tests.parity.folders import CLASSES

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {
    **{
        "vocab_size": 60,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    },
    **{"num_hidden_layers": 2, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3},
}
TYPES = ["sliding_attention", "full_attention"]
LLAMA4 = {"intermediate_size_mlp": 16, "num_local_experts": 2, "no_rope_layers": [1, 0]}
FULL, CAUSAL = Visibility(is_causal=False), Visibility(is_causal=True)
MARKERS = {"cls_token_id": 2, "sep_token_id": 3}
# model_type, what its configuration says, and what its two layers see
LAYERS: dict[str, tuple[str, dict[str, Any], list[Visibility]]] = {
    "BERT": ("bert", {}, [FULL, FULL]),
    "Llama": ("llama", {}, [CAUSAL, CAUSAL]),
    "Llama, bidirectional": ("llama", {"is_causal": False}, [FULL, FULL]),
    "Mistral": ("mistral", {"sliding_window": 4096}, [Visibility(is_causal=True, window=4096)] * 2),
    # its layers name a window that their mask is a token wider than
    "Mistral, bidirectional": (
        "mistral",
        {"sliding_window": 4096, "is_causal": False},
        [Visibility(is_causal=False, window=4097)] * 2,
    ),
    "Gemma 3": (
        "gemma3_text",
        {"sliding_window": 512, "layer_types": TYPES},
        [Visibility(is_causal=True, window=512), CAUSAL],
    ),
    "EmbeddingGemma": (
        "gemma3_text",
        {"sliding_window": 512, "layer_types": TYPES, "use_bidirectional_attention": True},
        [Visibility(is_causal=False, window=257), FULL],
    ),
    "ModernBERT": (
        "modernbert",
        {"local_attention": 128, "layer_types": TYPES, **MARKERS},
        [Visibility(is_causal=False, window=65), FULL],
    ),
    "Llama 4": (
        "llama4_text",
        {**LLAMA4, "attn_temperature_tuning": False},
        [Visibility(is_causal=True, chunk=8192), CAUSAL],
    ),
}


def model_of(model_type: str, config: dict[str, Any]) -> PreTrainedModel:
    attention.register()
    torch.manual_seed(0)
    made: PreTrainedModel = CLASSES[Use.EMBED].from_config(AutoConfig.for_model(model_type, **SIZES | config))
    made.train(mode=False)
    made.set_attn_implementation(attention.PACKED)
    return made


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_sees_what_its_mask_says(name: str) -> None:
    model_type, config, expected = LAYERS[name]
    model = model_of(model_type, config)
    forward = PackedForward(model, padding_idx=None)
    forward(batch([[5, 6, 7], [8]]))
    assert list(forward._visibilities.values()) == expected
    assert model.config._attn_implementation == attention.PACKED


def test_numbers_of_the_row_that_a_layer_computes_with_are_refused() -> None:
    """Llama 4 scales its queries by them, from the 8,192nd token of a batch on."""
    model = model_of("llama4_text", LLAMA4)
    with pytest.raises(UnsupportedAttention, match="number the tokens of the row"):
        PackedForward(model, padding_idx=None)(batch([[5, 6, 7], [8]]))
    assert model.config._attn_implementation == attention.PACKED


def test_numbers_of_the_row_that_experts_look_up_rows_by_are_harmless() -> None:
    model = model_of("mixtral", {"num_local_experts": 2, "num_experts_per_tok": 1})
    PackedForward(model, padding_idx=None)(batch([[5, 6, 7], [8]]))


@pytest.mark.parametrize("size", [1, 2, 16, 8192, 10**6])
@pytest.mark.parametrize("is_causal", [True, False])
def test_windows_and_chunks_of_any_size_are_told(size: int, is_causal: bool) -> None:
    if is_causal:
        assert visibility_of(sliding_window_causal_mask_function(size), size, CPU) == Visibility(True, window=size)
        chunks = chunked_causal_mask_function(size, torch.zeros(1, dtype=torch.int64))
        expected = Visibility(True, window=1) if size == 1 else Visibility(True, chunk=size)
        assert visibility_of(chunks, size, CPU) == expected
    else:
        both_ways = sliding_window_bidirectional_mask_function(size)
        assert visibility_of(both_ways, size, CPU) == Visibility(False, window=size + 1)
    plain: Any = causal_mask_function if is_causal else bidirectional_mask_function
    assert visibility_of(plain, None, CPU) == Visibility(is_causal)


def every_second(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return (query - key) % 2 == 0


@pytest.mark.parametrize(
    ("rule", "local_size", "why"),
    [
        (every_second, None, "of a form"),
        (every_second, 16, "of a form"),
        (sliding_window_causal_mask_function(40), None, "of a form"),  # nothing says how far
        (sliding_window_causal_mask_function(40), 16, "of a form"),
        (and_masks(causal_mask_function, packed_sequence_mask_function(torch.zeros(1, 4))), None, "depends on more"),
    ],
)
def test_a_mask_of_another_form_has_a_reason(rule: Any, local_size: int | None, why: str) -> None:
    found = visibility_of(rule, local_size, CPU)
    assert isinstance(found, str)
    assert why in found


def test_a_layer_that_contradicts_its_mask_is_refused() -> None:
    """Without padding transformers leaves some masks out, and the layer alone decides."""
    model = model_of("llama", {})
    modules: Any = model.modules()
    for module in modules:
        if hasattr(module, "is_causal"):
            module.is_causal = False
    with pytest.raises(UnsupportedAttention, match="differ on whether attention is causal"):
        PackedForward(model, padding_idx=None)(batch([[5, 6, 7]]))


def test_a_layer_that_is_run_with_several_masks_is_refused() -> None:
    model = model_of("gemma3_text", {"sliding_window": 4, "layer_types": TYPES})
    layers: Any = model.layers
    layers[1].self_attn = layers[0].self_attn
    with pytest.raises(UnsupportedAttention, match="several masks"):
        PackedForward(model, padding_idx=None)(batch([[5, 6, 7]]))


def test_a_window_that_no_mask_has_is_refused() -> None:
    asked = model_of("llama", {})
    layers: Any = asked.layers
    own = layers[0].self_attn.forward
    layers[0].self_attn.forward = lambda *given, **named: own(
        *given, **{**named, "attention_mask": None, "sliding_window": 4}
    )
    with pytest.raises(UnsupportedAttention, match="in no mask"):
        PackedForward(asked, padding_idx=None)(batch([[5, 6, 7]]))
