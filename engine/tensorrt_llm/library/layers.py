"""What is changed on a backbone of the library's once it is built: who sees whom, and which norm follows which layer.

Knows the layers by the names of their parts alone.
"""

from collections.abc import Callable, Iterable
from typing import Any


def attend_to_all(layers: Iterable[Any], full_mask: Any) -> None:
    """Every token sees every other of its sequence, whatever mask a layer asks its attention for.

    Not all backbones hand on what their `forward` is given, and some layers hand it on to parts that do not take it, so
    each layer's own attention is wrapped. All of them give the mask by name or not at all; one that gave it by place
    would fail of it, which shows.
    """
    for layer in layers:
        layer.self_attn.forward = _with_mask(layer.self_attn.forward, full_mask)


def _with_mask(forward: Callable[..., Any], mask: Any) -> Callable[..., Any]:
    def masked(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **{**kwargs, "attention_mask": mask})

    return masked


def link_norms(backbone: Any) -> None:
    """Where a layer applies the norm that follows it, as LlamaDecoderLayer does, tell it which one that is.

    The library's own LlamaForCausalLM does this after it has loaded the weights: done before, the same norm would have
    two names, and be loaded under neither.
    """
    layers = list(backbone.layers)
    following = [*(layer.input_layernorm for layer in layers[1:]), backbone.norm]
    for layer, norm in zip(layers, following, strict=True):
        if hasattr(layer, "next_layer_layernorm"):
            layer.next_layer_layernorm = norm
