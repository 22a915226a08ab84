"""Questions that adapters ask of a configuration; a wrong answer is a ModelError."""

from transformers import PretrainedConfig

from engine.fused.refusal import NotForFused

# transformers' names of activations, and ours (see engine.fused.model.spec)
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
}


def activation_of(name: object) -> str:
    """Our name for an activation. Raises ModelError for one that the fused engine lacks."""
    activation = _ACTIVATIONS.get(str(name))
    if activation is None:
        raise NotForFused(f"the fused engine has no activation {name!r}")
    return activation


def demand(config: PretrainedConfig, **allowed: tuple[object, ...]) -> None:
    """Each field, where it is set, must have one of these values. Raises ModelError."""
    for name, values in allowed.items():
        value = getattr(config, name, None)
        if value is not None and value not in values:
            raise NotForFused(f"the fused engine does not compute {name} {value!r} of config.json")
