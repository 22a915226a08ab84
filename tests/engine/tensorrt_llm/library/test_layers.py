"""Changes to built layers, on transformers' own: they have the same parts by the same names."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel

from engine.tensorrt_llm.library.models import attend_to_all, link_norms
from tests.engine.tiny_models import Reference, arbitrary, save

ATOL = 1e-5
DECODERS = ("llama", "mistral", "qwen2", "qwen3")
NO_MASK = None  # transformers' attention takes None for: every token sees every other


def eager(folder: Path) -> Any:
    return AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def rows_of(model: Any, sequence: list[int]) -> Tensor:
    with torch.inference_mode():
        rows: Tensor = model(input_ids=torch.tensor([sequence]), use_cache=False).last_hidden_state[0]
    return rows


def test_every_token_sees_every_other(tmp_path: Path) -> None:
    """The wrapped causal model is transformers' own bidirectional one, which has the same weights."""
    causal, bidirectional = (save(name, tmp_path / name) for name in ("llama", "llama, bidirectional"))
    model, reference = eager(causal), Reference(bidirectional)
    sequence = arbitrary([17])[0]
    assert np.abs(rows_of(model, sequence).numpy() - reference.token_rows(sequence)).max() > 0.1

    attend_to_all(model.layers, NO_MASK)

    np.testing.assert_allclose(rows_of(model, sequence).numpy(), reference.token_rows(sequence), rtol=0, atol=ATOL)


@pytest.mark.parametrize("family", DECODERS)
def test_the_first_row_sees_the_last_token(family: str, tmp_path: Path) -> None:
    model = eager(save(family, tmp_path / "model"))
    attend_to_all(model.layers, NO_MASK)
    first, *others = arbitrary([12])[0]

    before, after = rows_of(model, [first, *others]), rows_of(model, [first, *others[:-1], others[-1] - 1])

    assert (before[0] - after[0]).abs().max() > 1e-3


class Attention(nn.Module):
    """Takes the mask as the library's does, and tells which it got."""

    def forward(self, hidden_states: Tensor, attention_mask: str = "causal", **kwargs: Any) -> Any:
        return attention_mask, kwargs


class Layer(nn.Module):
    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.self_attn = Attention()
        self.given = given

    def forward(self, hidden_states: Tensor) -> Any:
        return self.self_attn(hidden_states=hidden_states, **self.given)


@pytest.mark.parametrize("given", [{}, {"attention_mask": "causal"}], ids=["not said", "said"])
def test_the_mask_is_full_whether_a_layer_says_one_or_not(given: dict[str, Any]) -> None:
    layer = Layer(**given, position_ids=3)

    attend_to_all([layer], "full")

    assert layer(torch.zeros(1)) == ("full", {"position_ids": 3})


def test_each_layer_keeps_its_own_attention() -> None:
    """A closure over the loop's variable would give all layers the last one's."""
    layers = [Layer(), Layer()]
    own = [layer.self_attn.forward for layer in layers]

    attend_to_all(layers, "full")

    wrapped: list[Any] = [layer.self_attn.forward for layer in layers]
    assert [each.__closure__[0].cell_contents for each in wrapped] == own


def test_a_mask_by_place_fails_and_does_not_pass_unnoticed() -> None:
    layer = Layer()
    attend_to_all([layer], "full")

    with pytest.raises(TypeError, match="attention_mask"):
        layer.self_attn(torch.zeros(1), "causal")


class Chained(nn.Module):
    """A layer of transformers' in the order of the library's LlamaDecoderLayer: it applies the norm that follows it."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = layer.input_layernorm, layer.post_attention_layernorm
        self.self_attn, self.mlp = layer.self_attn, layer.mlp
        self.next_layer_layernorm: Any = None

    def forward(self, rows: Tensor, residual: Tensor | None, **attending: Any) -> tuple[Tensor, Tensor]:
        if residual is None:
            rows, residual = self.input_layernorm(rows), rows
        residual = residual + self.self_attn(hidden_states=rows, **attending)[0]
        residual = residual + self.mlp(self.post_attention_layernorm(residual))
        return self.next_layer_layernorm(residual), residual


class ChainedModel(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.embed_tokens, self.norm, self.rotary_emb = model.embed_tokens, model.norm, model.rotary_emb
        self.layers = nn.ModuleList([Chained(layer) for layer in model.layers])

    def forward(self, input_ids: Tensor) -> Tensor:
        rows: Tensor = self.embed_tokens(input_ids)
        residual = None
        angles = self.rotary_emb(rows, torch.arange(input_ids.shape[1])[None])
        above = torch.full([input_ids.shape[1]] * 2, -torch.inf).triu(1)
        for layer in self.layers:
            rows, residual = layer(rows, residual, position_embeddings=angles, attention_mask=above[None, None])
        return rows


def test_norms_follow_each_other_as_in_transformers(tmp_path: Path) -> None:
    folder = save("llama", tmp_path / "model")
    model, sequence = eager(folder), arbitrary([17])[0]
    norms = [layer.input_layernorm for layer in model.layers] + [model.norm]
    for number, norm in enumerate(norms):  # they begin as ones, so that the wrong one would not show
        nn.init.constant_(norm.weight, 1 + number / 4)
    chained = ChainedModel(model)

    link_norms(chained)

    with torch.inference_mode():
        rows = chained(torch.tensor([sequence]))[0]
    torch.testing.assert_close(rows, rows_of(model, sequence), rtol=0, atol=ATOL)


def test_layers_without_such_a_norm_are_left_alone(tmp_path: Path) -> None:
    model = eager(save("qwen3", tmp_path / "model"))
    names = set(dict(model.named_modules()))

    link_norms(model)

    assert set(dict(model.named_modules())) == names
