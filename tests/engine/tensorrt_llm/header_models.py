"""Model folders whose safetensors files are headers alone: enough for whatever looks at names, types and shapes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.model import model_folder
from engine.model.model_folder import ModelFolder
from tests.engine.folder_files import write
from tests.engine.model.detection.shapes import MODULE, modules

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, VOCAB = 256, 2, 1, 128, 384, 100
NUM_LAYERS = 2
_QUERIES, _KEYS = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
LINEARS = {  # [N, K] of each
    "self_attn.q_proj": (_QUERIES, HIDDEN),
    "self_attn.k_proj": (_KEYS, HIDDEN),
    "self_attn.v_proj": (_KEYS, HIDDEN),
    "self_attn.o_proj": (HIDDEN, _QUERIES),
    "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
    "mlp.up_proj": (INTERMEDIATE, HIDDEN),
    "mlp.down_proj": (HIDDEN, INTERMEDIATE),
}
CONFIG: dict[str, Any] = {
    "model_type": "qwen3",
    "architectures": ["Qwen3Model"],
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": NUM_LAYERS,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
}

Headers = dict[str, tuple[str, tuple[int, ...]]]  # of tensors by name: type, shape


def plain(*, prefix: str = "") -> Headers:
    """All tensors of a backbone in bfloat16."""
    found: Headers = {"embed_tokens.weight": ("BF16", (VOCAB, HIDDEN)), "norm.weight": ("BF16", (HIDDEN,))}
    for layer in layers():
        found |= {f"{layer}.{name}.weight": ("BF16", shape) for name, shape in LINEARS.items()}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"{layer}.{norm}.weight"] = ("BF16", (HIDDEN,))
    return {prefix + name: tensor for name, tensor in found.items()}


def layers() -> list[str]:
    return [f"layers.{number}" for number in range(NUM_LAYERS)]


def write_headers(file: Path, tensors: Headers) -> None:
    header = {
        name: {"dtype": dtype, "shape": list(shape), "data_offsets": [0, 0]} for name, (dtype, shape) in tensors.items()
    }
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text)


def write_model(folder: Path, tensors: Headers | None = None, **config: Any) -> ModelFolder:
    """`config` on top of CONFIG; None takes a word out."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {name: value for name, value in (CONFIG | config).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(written))
    write_headers(folder / "model.safetensors", plain() if tensors is None else tensors)
    return model_folder.read(folder, pooling="last-token")


def write_chain(folder: Path, kinds: Sequence[str] = ("Transformer", "Pooling", "Normalize")) -> None:
    """modules.json of sentence-transformers, its pooling of the last token."""
    paths = {f"{number}_{kind}" if number else "root": f"{MODULE}{kind}" for number, kind in enumerate(kinds)}
    modules(folder, **paths)
    write(folder / "1_Pooling" / "config.json", {"pooling_mode": "lasttoken"})
