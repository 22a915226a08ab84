"""jina-embeddings-v5-text, with adapters for tasks: on Qwen3's layers (small) and on EuroBERT's (nano).

Read: jinaai/jina-embeddings-v5-text-nano, modeling_jina_embeddings_v5.py, which puts PEFT's adapters on the library's
layers, and modeling_eurobert.py; the small one's is described in vllm-project/vllm, model_executor/models/jina.py. The
layers are those of transformers' modeling_qwen3.py and modeling_eurobert.py. They differ in two things: Qwen3 norms
queries and keys of each head, and its tokens see those before them alone.

All adapters are computed in one product, of which each token keeps its own, as xlm_roberta_flash.py does. Their files
(engine.model.lora) are read after the weights, by `load_adapters`.

Shapes: B sequences of S tokens, A adapters of rank R.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import WeightRenaming
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from engine.model.lora import fitted, read_adapters
from engine.model.model_folder import ModelFolder
from engine.model.weights import read_tensor
from engine.transformers.models.parts import OurConfig, OurModel, angles, attended, in_heads, rotated

_LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class JinaV5Config(OurConfig):
    """The keys that are its own."""

    model_type = "jina_v5"

    num_key_value_heads: int = 1
    head_dim: int = 1
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    has_head_norms: bool = True
    is_causal: bool = True
    lora_adaptations: list[str] | None = None


class _Linear(nn.Module):
    """A layer with adapters: x (W + scale B A)."""

    def __init__(self, size: int, to_size: int) -> None:
        super().__init__()
        self.plain = nn.Linear(size, to_size, bias=False)
        self.lora_A: Tensor  # [A * R, in]
        self.lora_B: Tensor  # [out, A * R]
        for name in ("lora_A", "lora_B"):
            self.register_buffer(name, torch.empty(0), persistent=False)

    def forward(self, rows: Tensor, chosen: Tensor) -> Tensor:
        """[B, S, in] to [B, S, out]. chosen: [B, S, A * R], the scale where a token's adapter is, else 0."""
        thin = functional.linear(rows, self.lora_A) * chosen
        found: Tensor = self.plain(rows) + functional.linear(thin, self.lora_B)
        return found


class _Layer(nn.Module):
    def __init__(self, config: JinaV5Config) -> None:
        super().__init__()
        self.config, size, wide, head = config, config.hidden_size, config.intermediate_size, config.head_dim
        queries, shared = config.num_attention_heads * head, config.num_key_value_heads * head
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads  # for transformers
        norm = partial(Qwen3RMSNorm, eps=config.rms_norm_eps)
        norms = {"q_norm": norm(head), "k_norm": norm(head)} if config.has_head_norms else {}
        linears = {"q_proj": (size, queries), "k_proj": (size, shared), "v_proj": (size, shared)}
        self.self_attn: Any = nn.ModuleDict(
            {**{name: _Linear(*sizes) for name, sizes in linears.items()}, "o_proj": _Linear(queries, size), **norms}
        )
        self.mlp: Any = nn.ModuleDict(
            {"gate_proj": _Linear(size, wide), "up_proj": _Linear(size, wide), "down_proj": _Linear(wide, size)}
        )
        self.input_layernorm, self.post_attention_layernorm = norm(size), norm(size)

    def forward(self, rows: Tensor, chosen: Tensor, turn: tuple[Tensor, Tensor], **others: Any) -> Tensor:
        rows = rows + self._attended(self.input_layernorm(rows), chosen, turn, **others)
        normed = self.post_attention_layernorm(rows)
        gate, up = (self.mlp[name](normed, chosen) for name in ("gate_proj", "up_proj"))
        found: Tensor = rows + self.mlp["down_proj"](functional.silu(gate) * up, chosen)
        return found

    def _attended(self, rows: Tensor, chosen: Tensor, turn: tuple[Tensor, Tensor], **others: Any) -> Tensor:
        parts, config = self.self_attn, self.config
        query = in_heads(parts["q_proj"](rows, chosen), config.num_attention_heads)
        key, value = (in_heads(parts[name](rows, chosen), config.num_key_value_heads) for name in ("k_proj", "v_proj"))
        if config.has_head_norms:
            query, key = parts["q_norm"](query), parts["k_norm"](key)
        query, key = rotated(query, turn), rotated(key, turn)
        found = attended(self, config, query, key, value, is_causal=config.is_causal, **others)
        projected: Tensor = parts["o_proj"](found, chosen)
        return projected


class JinaV5Model(OurModel):
    """The rows of tokens."""

    config: JinaV5Config
    config_class = JinaV5Config
    base_model_prefix = "model"

    def __init__(self, config: JinaV5Config) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers: Any = nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.scales: Tensor  # [A * R], of each row of lora_A
        self.owners: Tensor  # int64 [A * R], the number of its adapter, from 1
        for name in ("scales", "owners"):
            self.register_buffer(name, torch.empty(0), persistent=False)
        self.post_init()

    def load_adapters(self, folder: ModelFolder) -> None:
        """Read them from the folder. Raises ModelError."""
        adapters = read_adapters(folder.weights_folder, folder.adapters)
        layers = {name: part for name, part in self.named_modules() if isinstance(part, _Linear)}
        shapes = {name: (part.plain.out_features, part.plain.in_features) for name, part in layers.items()}
        fits = [fitted(one, shapes) for one in adapters]
        own = [next(iter(layers.values())) for layers in fits]  # all layers of an adapter are alike in these
        self.owners = torch.arange(1, len(adapters) + 1).repeat_interleave(own[0].rank)
        self.scales = torch.tensor([one.scale for one in own], dtype=self.dtype).repeat_interleave(own[0].rank)
        for name, layer in layers.items():
            size, to_size = layer.plain.in_features, layer.plain.out_features
            pairs = [one[name] for one in fits if name in one]
            a = [torch.from_numpy(read_tensor(pair.a)) for pair in pairs] or [torch.zeros(len(self.owners), size)]
            b = [torch.from_numpy(read_tensor(pair.b)) for pair in pairs] or [torch.zeros(to_size, len(self.owners))]
            layer.lora_A, layer.lora_B = torch.cat(a).to(self.dtype), torch.cat(b, dim=1).to(self.dtype)

    def forward(
        self,
        input_ids: Tensor,  # int64 [B, S]
        attention_mask: Tensor | None = None,
        adapters: Tensor | None = None,  # int64 [B, S], the number of the one for each token, from 1; 0 = none
        position_ids: Tensor | None = None,
        **others: Any,
    ) -> BaseModelOutputWithPooling:
        """last_hidden_state [B, S, D]."""
        own = torch.zeros_like(input_ids) if adapters is None else adapters
        chosen = (own[..., None] == self.owners).to(self.dtype) * self.scales
        rows = self.embed_tokens(input_ids)
        turn = angles(self.config, rows, position_ids)
        given: Any = {"config": self.config, "inputs_embeds": rows, "attention_mask": attention_mask}
        mask = (
            create_causal_mask(**given, past_key_values=None)
            if self.config.is_causal
            else create_bidirectional_mask(**given)
        )
        for layer in self.layers:
            rows = layer(rows, chosen, turn, attention_mask=mask, **others)
        return BaseModelOutputWithPooling(last_hidden_state=self.norm(rows))


register_checkpoint_conversion_mapping(
    JinaV5Config.model_type,
    [WeightRenaming(f"{name}.weight", f"{name}.plain.weight") for name in _LINEARS],
    overwrite=True,
)
