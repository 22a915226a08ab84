"""What classes of models derive from, how they get known, and how their weights are loaded."""

import inspect
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from tensorrt_llm._torch.model_config import ModelConfig, QuantConfig
from tensorrt_llm._torch.modules.linear import Linear, WeightMode

MODEL_CLASS_MAPPING: dict[str, Any] = {}
MODEL_CLASS_MAPPER_MAPPING: dict[str, Any] = {}
TModel = TypeVar("TModel")
TConfig = TypeVar("TConfig")
_PARTS = {
    WeightMode.FUSED_QKV_LINEAR: ("qkv_proj", ("q_proj", "k_proj", "v_proj")),
    WeightMode.FUSED_GATE_UP_LINEAR: ("gate_up_proj", ("gate_proj", "up_proj")),
}


def register_auto_model(name: str) -> Callable[[Any], Any]:
    def decorator(cls: Any) -> Any:
        MODEL_CLASS_MAPPING[name] = cls
        return cls

    return decorator


def register_mapper(format: str, name: str | None = None) -> Callable[[Any], Any]:
    def decorator(cls: Any) -> Any:
        MODEL_CLASS_MAPPER_MAPPING[f"{name}_{format}" if name else format] = cls
        return cls

    return decorator


class PPInitCaller(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return type.__call__(cls, *args, **kwargs)


class PostInitCaller(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        made = type.__call__(cls, *args, **kwargs)
        made.__post_init__()
        made.__pp_init__()
        return made


class DecoderModel(nn.Module, metaclass=PPInitCaller):
    """Embeddings, layers and a norm: gives the rows of all tokens [T, D]."""

    layers: nn.ModuleList

    def __init__(self, model_config: ModelConfig) -> None:
        super().__init__()
        self.model_config = model_config

    def __pp_init__(self) -> None:
        """For several GPUs."""


class DecoderModelForCausalLM(nn.Module, Generic[TModel, TConfig], metaclass=PostInitCaller):
    model_config: ModelConfig
    model: Any

    def __init__(self, model: Any, *, config: ModelConfig, hidden_size: int, vocab_size: int) -> None:
        raise NotImplementedError("the stand-in has no models that generate")

    @property
    def config(self) -> Any:
        return self.model_config.pretrained_config

    def __post_init__(self) -> None:
        quantized = self.model_config.quant_config
        for name, module in self.named_modules():
            if isinstance(module, Linear) and any(
                map(quantized.is_module_excluded_from_quantization, _names(name, module))
            ):
                module.quant_config = QuantConfig()
                module._weights_created = False
        for module in self.modules():
            create_weights: Any = getattr(module, "create_weights", None)
            if callable(create_weights):
                create_weights()

    def __pp_init__(self) -> None:
        self.model.__pp_init__()

    def infer_max_seq_len(self) -> int:
        return int(getattr(self.config, "max_position_embeddings", 2048))

    def load_weights(
        self,
        weights: Any,
        weight_mapper: Any = None,
        skip_modules: list[str] = [],  # noqa: B006 (as upstream has it)
        params_map: dict[str, str] | None = None,
        allow_partial_loading: bool = False,
    ) -> None:
        assert weight_mapper is not None
        assert params_map is None
        _load_weights_impl_v2(self, weights, weight_mapper, skip_modules, allow_partial_loading=allow_partial_loading)


def _names(name: str, module: Linear) -> list[str]:
    joined, parts = _PARTS.get(module.weights_loading_config.weight_mode, ("", ()))
    return [name, *(name.replace(joined, part) for part in parts)]


def _load_weights_impl_v2(
    model: nn.Module, weights: Any, mapper: Any, skip_modules: list[str], *, allow_partial_loading: bool
) -> None:
    mapper.add_skip_modules(skip_modules)
    # Modules that have two names are visited by both.
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if module._parameters and not mapper.should_skip_module(name):
            _load_module(name, module, weights, mapper, allow_partial_loading)


def _load_module(name: str, module: Any, weights: Any, mapper: Any, allow_partial_loading: bool) -> None:
    *around, last = name.split(".")
    if mapper.does_require_special_handling(last):
        parts = mapper.apply_callbacks(module, last, around, weights)
        module.load_weights(weights=parts, allow_partial_loading=allow_partial_loading)
        for source in mapper.mapping[last]:
            weights.mark_consumed(".".join([*around, source]))
        return
    found = mapper.filter_weights(name, weights)
    if not found:
        return  # without a word, as upstream does
    if hasattr(module, "load_weights"):
        takes = inspect.getfullargspec(module.load_weights).args
        partial = {"allow_partial_loading": allow_partial_loading} if "allow_partial_loading" in takes else {}
        module.load_weights(weights=[found], **partial)
        weights.mark_consumed(name)
        return
    for parameter_name, parameter in module.named_parameters(recurse=False):
        mapper.handle_manual_copy(last, found, parameter_name, parameter, allow_partial_loading=allow_partial_loading)
    weights.mark_consumed_keys(f"{name}.{each}" for each, _ in module.named_parameters(recurse=False))


class Garbage(torch.overrides.TorchFunctionMode):
    """Weights begin as whatever is in memory, as upstream's do: here, always the same, and nothing that would show."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.uniform_, torch.Tensor.normal_, nn.init.kaiming_uniform_):
            return args[0] if args else (kwargs or {})["tensor"]
        made = func(*args, **(kwargs or {}))
        return made.fill_(0.02) if func is torch.empty else made
