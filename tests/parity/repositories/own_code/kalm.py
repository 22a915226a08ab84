"""KaLM-Embedding/KaLM-Reranker-V1-Nano, -Small and -Large: yes less no, after the decoder has read the question.

Read: their kalm_reranker_utils.py (also in embeddings-benchmark/mteb, model_implementations/kalm_reranker.py) for what
is asked of T5Gemma 2. Its layers: Zhang et al., T5Gemma 2 (arXiv 2512.14856): Gemma 3's, where the encoder sees both
ways, and a token of the decoder attends to those before it and to all of the encoder's rows at once, by the same
projections; the encoder's rows are not turned. A window of the encoder is w + 1 halves to the left and w halves to the
right, its own token among the former.
"""

import math
from typing import Any

import torch
from torch import Tensor

from tests.parity.repositories.models.families import published
from tests.parity.repositories.own_code import reading
from tests.parity.repositories.own_code.forms import Config, Shapes, Weights

BOS, YES, NO, CHUNK = 2, 5, 6, 4
# The keys of google/t5gemma-2-270m-270m's, which is what Nano was made of.
CONFIG: dict[str, Any] = published("KaLM-Reranker-V1-Nano, small")
_LAYERS: dict[str, Any] = CONFIG["decoder"]
_ANGLES: dict[str, Any] = _LAYERS["rope_parameters"]
_NORMS = ("pre_self_attn", "post_self_attn", "pre_feedforward", "post_feedforward")


def shapes(text: str = "model.encoder.") -> Shapes:
    """Of the weights. text: how the names of the encoder's begin; older versions of transformers save this."""
    size, width, head = _LAYERS["hidden_size"], _LAYERS["intermediate_size"], _LAYERS["head_dim"]
    rows = {"q": 4 * head, "k": 2 * head, "v": 2 * head}
    found: Shapes = {
        f"{text}embed_tokens.weight": (120, size),
        f"{text}embed_tokens.eoi_embedding": (size,),
        "model.encoder.vision_tower.embeddings.patch_embedding.weight": (16, 3, 14, 14),
        "model.encoder.multi_modal_projector.mm_input_projection_weight": (16, size),
    }
    for part in (text, "model.decoder."):
        for number in range(_LAYERS["num_hidden_layers"]):
            layer = f"{part}layers.{number}"
            found |= {f"{layer}.{name}_layernorm.weight": (size,) for name in _NORMS}
            found |= {f"{layer}.self_attn.{name}_proj.weight": (rows[name], size) for name in "qkv"}
            found |= {f"{layer}.self_attn.{name}_norm.weight": (head,) for name in "qk"}
            found[f"{layer}.self_attn.o_proj.weight"] = (size, rows["q"])
            found |= {f"{layer}.mlp.{name}_proj.weight": (width, size) for name in ("gate", "up")}
            found[f"{layer}.mlp.down_proj.weight"] = (size, width)
        found[f"{part}norm.weight"] = (size,)
    return found


def score(
    weights: Weights, document: list[int], question: list[int], *, text: str = "model.encoder.", chunk: int = CHUNK
) -> Tensor:
    """[1]"""
    words = weights[f"{text}embed_tokens.weight"]
    read = _layers(weights, text, words[document] * math.sqrt(words.shape[1]), None) if document else words[:0]
    chunks = [read[start : start + chunk].mean(0, keepdim=True) for start in range(0, len(read), chunk)]
    seen = torch.cat([words[:0], *chunks])
    last = _layers(weights, "model.decoder.", words[question] * math.sqrt(words.shape[1]), seen)[-1]
    return (words[YES] @ last - words[NO] @ last)[None]


def _layers(weights: Weights, part: str, rows: Tensor, seen: Tensor | None) -> Tensor:
    """seen: the encoder's rows that a decoder attends to; None = this is an encoder."""
    for number, kind in enumerate(_LAYERS["layer_types"]):
        layer = f"{part}layers.{number}"
        attended = _attention(weights, layer, kind, _rms(weights, f"{layer}.pre_self_attn_layernorm", rows), seen)
        rows = rows + _rms(weights, f"{layer}.post_self_attn_layernorm", attended)
        normed = _rms(weights, f"{layer}.pre_feedforward_layernorm", rows)
        gate, up = (reading.linear(weights, f"{layer}.mlp.{name}_proj", normed) for name in ("gate", "up"))
        gelu = 0.5 * gate * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
        down = reading.linear(weights, f"{layer}.mlp.down_proj", gelu * up)
        rows = rows + _rms(weights, f"{layer}.post_feedforward_layernorm", down)
    return _rms(weights, f"{part}norm", rows)


def _rms(weights: Weights, name: str, rows: Tensor) -> Tensor:
    unit: Tensor = rows / ((rows**2).mean(-1, keepdim=True) + _LAYERS["rms_norm_eps"]).sqrt()
    return unit * (1 + weights[f"{name}.weight"])


def _attention(weights: Weights, layer: str, kind: str, rows: Tensor, seen: Tensor | None) -> Tensor:
    others = rows[:0] if seen is None else seen
    query, key, value = (_heads(weights, layer, name, rows) for name in "qkv")
    speeds = reading.frequencies(_ANGLES[kind]["rope_theta"], _LAYERS["head_dim"]) / _ANGLES[kind].get("factor", 1)
    query, key = (_turned(each, speeds) for each in (query, key))
    key = torch.cat((key, _heads(weights, layer, "k", others)))
    value = torch.cat((value, _heads(weights, layer, "v", others)))
    key, value = (each.repeat_interleave(2, dim=1) for each in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) / math.sqrt(_LAYERS["query_pre_attn_scalar"])
    is_seen = torch.cat((_sees(len(rows), kind, seen), torch.ones(len(rows), len(others), dtype=torch.bool)), dim=1)
    weighted = scores.masked_fill(~is_seen, -math.inf).softmax(-1)
    found = torch.einsum("hqk,khd->qhd", weighted, value).flatten(1)
    return reading.linear(weights, f"{layer}.self_attn.o_proj", found)


def _heads(weights: Weights, layer: str, name: str, rows: Tensor) -> Tensor:
    """[S, heads, D of a head]; queries and keys have norms."""
    found = reading.linear(weights, f"{layer}.self_attn.{name}_proj", rows)
    heads = found.reshape(len(rows), found.shape[1] // _LAYERS["head_dim"], _LAYERS["head_dim"])
    return heads if name == "v" else _rms(weights, f"{layer}.self_attn.{name}_norm", heads)


def _turned(heads: Tensor, speeds: Tensor) -> Tensor:
    return reading.turned(heads.flatten(1), heads.shape[1], speeds).reshape(heads.shape)


def _sees(num_tokens: int, kind: str, seen: Tensor | None) -> Tensor:
    """Which tokens each attends to [S, S]."""
    back = torch.arange(num_tokens)[:, None] - torch.arange(num_tokens)
    window = _LAYERS["sliding_window"] if kind == "sliding_attention" else 10**6
    if seen is None:
        return (back < (window + 1) // 2) & (-back < window // 2 + 1)
    return (back >= 0) & (back < window)


def split(_: Config, weights: Weights, ids: list[int]) -> Tensor:
    """Of one sequence: what stands before the first <bos> is the document."""
    place = ids.index(BOS) if BOS in ids else 0
    return score(weights, ids[:place], ids[place:])
