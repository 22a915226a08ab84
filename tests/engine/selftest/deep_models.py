"""How far correct rows of deep models are from float32's in other types, and rows with mistakes from correct ones.

    python -m tests.engine.selftest.deep_models bert,qwen3,modernbert,gemma3_text 24,36

The models are small and arbitrary. `outlier`: a dimension that is large in every row. Prints what is_near judges.
"""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import CONFIG_MAPPING, AutoModel

from engine.selftest.comparison import RowAgreement, agreement, is_near

_SIZE, _HEADS, _VOCAB = 128, 4, 500
_SIZES = {"hidden_size": _SIZE, "num_attention_heads": _HEADS, "intermediate_size": 256, "vocab_size": _VOCAB}
_GROUPED = {"num_key_value_heads": 2, "head_dim": 32}
_MARKERS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
_OTHER_THETA = {"rope_type": "default", "rope_theta": 10_000.0}
_OTHER_THETAS = {"rope_parameters": dict.fromkeys(("full_attention", "sliding_attention"), _OTHER_THETA)}
_OWN: dict[str, dict[str, Any]] = {
    "bert": {},
    "qwen3": {**_GROUPED, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "modernbert": {"local_attention": 32, **_MARKERS},
    "gemma3_text": {**_GROUPED, "query_pre_attn_scalar": 32, "sliding_window": 32},
}
MISTAKES: dict[str, dict[str, dict[str, Any]]] = {
    "bert": {"mask": {"is_decoder": True}},
    "qwen3": {"mask": {"is_causal": False}, "theta": {"rope_parameters": _OTHER_THETA}},
    "modernbert": {"window": {"local_attention": 34}, "theta": _OTHER_THETAS},
    "gemma3_text": {
        "mask": {"use_bidirectional_attention": True},
        "window": {"sliding_window": 31},
        "theta": _OTHER_THETAS,
    },
}


def model(kind: str, num_layers: int, *, gain: float, outlier: bool, **settings: Any) -> nn.Module:
    """In float32. gain: of linear layers, where 1 keeps the size of a row."""
    fields = {**_SIZES, "num_hidden_layers": num_layers, "max_position_embeddings": 512, **_OWN[kind], **settings}
    made: nn.Module = AutoModel.from_config(CONFIG_MAPPING[kind](**fields)).eval()  # type: ignore[no-untyped-call]
    numbers = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            noise = torch.randn(parameter.shape, generator=numbers)
            if parameter.dim() > 1:
                parameter.copy_(noise * (1.0 if "embed" in name else gain * parameter.shape[-1] ** -0.5))
            else:
                is_scale = name.endswith("weight") and kind != "gemma3_text"  # whose scales are 1 + weight
                parameter.copy_(is_scale + 0.1 * noise)
            if outlier and name.endswith(("embed_tokens.weight", "tok_embeddings.weight")):
                parameter[:, 5] = 40.0
            if outlier and name.endswith(f"{num_layers - 1}.output.LayerNorm.bias"):
                parameter[5] = 30.0
    return made


def without_scaling(made: nn.Module) -> nn.Module:
    """Of attention scores."""
    module: Any
    for module in made.modules():
        if hasattr(module, "scaling"):
            module.scaling = 1.0
        if type(module).__name__ == "ModernBertAttention":  # which has no such field
            with torch.no_grad():
                module.Wqkv.weight[:_SIZE] *= (_SIZE // _HEADS) ** 0.5
    return made


@torch.inference_mode()
def rows(made: nn.Module) -> NDArray[np.float32]:
    """One a token, float32 [T, D], each sequence alone."""
    numbers = np.random.default_rng(0)
    sequences = [torch.from_numpy(numbers.integers(4, _VOCAB, length)) for length in (5, 17, 1, 5, 40, 9, 30, 42)]
    found = [made(input_ids=sequence[None]).last_hidden_state[0].float() for sequence in sequences]
    joined: NDArray[np.float32] = torch.cat(found).numpy()
    return joined


def measured(
    kind: str, num_layers: int, *, gain: float, outlier: bool, dtype: str
) -> Iterator[tuple[str, RowAgreement]]:
    """Correct rows with float32's, with those of another order of sums, and rows with mistakes with correct ones."""

    def made(**settings: Any) -> nn.Module:
        return model(kind, num_layers, gain=gain, outlier=outlier, **settings)

    in_type = getattr(torch, dtype)
    correct = rows(made().to(in_type))
    yield "correct", agreement(correct, rows(made()), dtype=dtype)
    other = made(attn_implementation="eager").to(in_type)
    yield "another order", agreement(rows(other), correct, dtype=dtype)
    for name, settings in MISTAKES[kind].items():
        yield name, agreement(rows(made(**settings).to(in_type)), correct, dtype=dtype)
    yield "scaling", agreement(rows(without_scaling(made().to(in_type))), correct, dtype=dtype)


def main() -> None:
    kinds, depths = sys.argv[1].split(","), map(int, sys.argv[2].split(","))
    for kind, depth, gain, outlier, dtype in (
        (kind, depth, gain, outlier, dtype)
        for depth in depths
        for kind in kinds
        for gain in (1.0, 0.5)
        for outlier in (False, True)
        for dtype in ("bfloat16", "float16")
    ):
        for name, found in measured(kind, depth, gain=gain, outlier=outlier, dtype=dtype):
            verdict = "passes" if is_near(found, dtype=dtype) else "fails"
            print(
                f"{kind} {depth} {gain} {'outlier ' * outlier}{dtype} {name}: {found.in_words}; {verdict}", flush=True
            )


if __name__ == "__main__":
    main()
