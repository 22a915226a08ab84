"""What a model is built from: its configuration with what was said beside it, and how its weights are quantized."""

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
import transformers

_GENERATE_NOTHING = (
    "BertForSequenceClassification",
    "Qwen2ForProcessRewardModel",
    "Qwen2ForRewardModel",
    "LlamaForTextEmbedding",
    "Qwen3ForTextEmbedding",
)


@dataclass
class QuantConfig:
    quant_algo: str | None = None
    exclude_modules: list[str] | None = None

    def is_module_excluded_from_quantization(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.exclude_modules or ())


@dataclass
class ModelConfig:
    pretrained_config: Any
    quant_config: QuantConfig = field(default_factory=QuantConfig)
    skip_create_weights_in_init: bool = False
    is_generation: bool = True

    def get_quant_config(self) -> QuantConfig:
        return self.quant_config

    @staticmethod
    def is_generation_model(model_architectures: list[str] | None, mm_encoder_only: bool = False) -> bool:
        return not model_architectures or model_architectures[0] not in _GENERATE_NOTHING

    @classmethod
    def from_pretrained(
        cls, checkpoint_dir: str, *, dtype: Any, model_kwargs: dict[str, Any] | None = None
    ) -> "ModelConfig":
        # Upstream's loaders say so in some versions, whatever the arguments are.
        pretrained = transformers.AutoConfig.from_pretrained(checkpoint_dir, trust_remote_code=True)
        _update(pretrained, model_kwargs or {})
        _check_dtype(pretrained)
        return cls(
            pretrained_config=pretrained,
            quant_config=_quant_config(Path(checkpoint_dir), getattr(pretrained, "quantization_config", None)),
            is_generation=cls.is_generation_model(pretrained.architectures),
        )


def _check_dtype(config: Any) -> None:
    """Models are built by the configuration's type, and there are no kernels for float32."""
    dtype = getattr(config, "torch_dtype", None)
    if config.architectures[0] == "BertForSequenceClassification":
        return
    if dtype not in (torch.bfloat16, torch.float16):
        raise RuntimeError(f"rmsnorm: unsupported type {dtype}")
    if config.model_type == "qwen3" and dtype is not torch.bfloat16:
        raise RuntimeError("fused_qk_norm_rope: Inconsistency of Tensor type: qkv")


def _update(config: Any, wanted: dict[str, Any]) -> None:
    """Dicts go into configurations inside of this one, and are themselves where there is none."""
    for key, value in wanted.items():
        target = getattr(config, key, None)
        if isinstance(value, dict) and isinstance(target, transformers.PretrainedConfig):
            _update(target, value)
        elif key in ("torch_dtype", "dtype") and isinstance(value, str) and value != "auto":
            setattr(config, key, getattr(torch, value))
        else:
            setattr(config, key, value)


def _quant_config(folder: Path, inline: dict[str, Any] | None) -> QuantConfig:
    """Of all that upstream reads, the stand-in has blocks alone."""
    if (folder / "hf_quant_config.json").is_file():
        raise NotImplementedError("the stand-in reads no hf_quant_config.json")
    if inline and inline.get("quant_method") == "fp8" and inline.get("weight_block_size"):
        assert inline["weight_block_size"] == [128, 128]
        return QuantConfig("FP8_BLOCK_SCALES", list(inline.get("modules_to_not_convert") or ()) or None)
    return QuantConfig()
