"""From an architecture's name to a model."""

from typing import Any

from tensorrt_llm._torch.model_config import ModelConfig
from tensorrt_llm._torch.models.modeling_utils import MODEL_CLASS_MAPPING, DecoderModelForCausalLM


class AutoModelForCausalLM:
    @staticmethod
    def from_config(config: ModelConfig) -> Any:
        """Raises ValueError for a name that nobody has registered."""
        name = config.pretrained_config.architectures[0]
        cls = MODEL_CLASS_MAPPING.get(name)
        if cls is None:
            raise ValueError(f"Unknown architecture for AutoModelForCausalLM: {name}")
        if issubclass(cls, DecoderModelForCausalLM):
            config.skip_create_weights_in_init = True
        return cls(config)
