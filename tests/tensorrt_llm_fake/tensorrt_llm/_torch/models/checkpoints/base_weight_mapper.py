"""From a file's names to a module's."""

from abc import ABC, abstractmethod
from typing import Any

from torch import nn

from tensorrt_llm._torch.model_config import ModelConfig


class BaseWeightMapper(ABC):
    def __init__(self) -> None:
        self._callbacks: list[Any] = []
        self._mapping: dict[str, list[str]] = {}
        self._skip_modules: list[str] = []
        self._model: Any = None
        self._config: ModelConfig | None = None

    def init_model_and_config(self, model: nn.Module, config: ModelConfig) -> None:
        self._model = model
        self._config = config
        if not isinstance(getattr(model, "model_config", None), ModelConfig):
            raise ValueError("model must have a model_config attribute")
        if not hasattr(model, "config"):
            raise ValueError("model must have a config attribute")
        self.map_weights()

    @abstractmethod
    def map_weights(self) -> None: ...

    @abstractmethod
    def apply_callbacks(
        self, module: nn.Module, module_name: str, module_names_breakdown: list[str], weights: Any
    ) -> list[dict[str, Any]]: ...

    def handle_manual_copy(
        self,
        module_name: str,
        module_weights: dict[str, Any],
        n: str,
        p: nn.Parameter,
        allow_partial_loading: bool = False,
    ) -> None:
        if not allow_partial_loading:
            assert n in module_weights
        if n in module_weights:
            p.data.copy_(module_weights[n][:])

    def does_require_special_handling(self, module_name: str) -> bool:
        return module_name in self.mapping

    def add_skip_modules(self, value: list[str]) -> None:
        self._skip_modules.extend(value)

    def should_skip_module(self, module_name: str) -> bool:
        return any(skipped in module_name for skipped in self._skip_modules)

    def filter_weights(self, prefix: str, weights: Any) -> dict[str, Any]:
        return {name[len(prefix) + 1 :]: weight for name, weight in weights.items() if name.startswith(prefix)}

    @property
    def mapping(self) -> dict[str, list[str]]:
        return self._mapping

    @property
    def model(self) -> Any:
        if self._model is None:
            raise RuntimeError("Weight mapper is not initialized")
        return self._model
