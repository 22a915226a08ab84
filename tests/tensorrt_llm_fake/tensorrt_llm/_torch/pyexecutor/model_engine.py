"""A model with its weights, and the limits that batches are checked against."""

import inspect
from pathlib import Path
from typing import Any

import torch

from tensorrt_llm._torch import models
from tensorrt_llm._torch.model_config import ModelConfig
from tensorrt_llm._torch.models.checkpoints.base_weight_loader import load_weights
from tensorrt_llm._torch.models.modeling_auto import AutoModelForCausalLM
from tensorrt_llm._torch.models.modeling_utils import MODEL_CLASS_MAPPER_MAPPING, Garbage
from tensorrt_llm._torch.pyexecutor.engine.runners.encoder import EncoderRunner
from tensorrt_llm.stand_in import device_error, faults, out_of_memory

assert models  # upstream's classes are known from here on


class PyTorchModelEngine:
    def __init__(self, *, model_path: str, llm_args: Any) -> None:
        chosen = faults()
        if "oom@load" in chosen:
            raise out_of_memory()
        if "device_error@load" in chosen or _is_lost_now():
            raise device_error()
        dtype = None if llm_args.dtype == "auto" else getattr(torch, llm_args.dtype)
        config = ModelConfig.from_pretrained(model_path, dtype=dtype, model_kwargs=llm_args.model_kwargs)
        self.model = _loaded(config, model_path)
        self.batch_size = int(chosen.get("max_batch_size", llm_args.max_batch_size))
        self.max_num_tokens = int(chosen.get("max_num_tokens", llm_args.max_num_tokens))
        inferred = self.model.infer_max_seq_len()
        asked = inferred if llm_args.max_seq_len is None else min(llm_args.max_seq_len, inferred)
        self.max_seq_len = int(chosen.get("max_seq_len", asked))
        graph_config = llm_args.cuda_graph_config
        self.runner = EncoderRunner(
            self.model,
            graph_config if graph_config is not None and graph_config.mode == "encode" else None,
            max_batch_size=self.batch_size,
            max_num_tokens=self.max_num_tokens,
            max_seq_len=self.max_seq_len,
        )
        self._is_lost = False

    @property
    def encoder_cuda_graph_runner(self) -> Any:
        return self.runner.graphs

    def encoder_forward(self, inputs: dict[str, Any], *, gather_context_logits: bool) -> dict[str, Any]:
        self._fail_as_told(inputs)
        outputs = self.runner.forward(inputs, gather_context_logits=gather_context_logits)
        return {**outputs, "logits": _spoiled(outputs["logits"], inputs)}

    def _fail_as_told(self, inputs: dict[str, Any]) -> None:
        chosen = faults()
        if len(inputs["input_ids"]) > int(chosen.get("oom@tokens", len(inputs["input_ids"]))):
            raise out_of_memory()
        token = chosen.get("device_error@token")
        self._is_lost |= token is not None and int(token) in inputs["input_ids"]
        file = chosen.get("device_error@file")
        self._is_lost |= file is not None and _taken_away(file)
        self._is_lost |= _is_lost_now()
        if self._is_lost:
            raise device_error()


def _is_lost_now() -> bool:
    file = faults().get("device_error@while")
    return file is not None and Path(file).exists()


def _taken_away(file: str) -> bool:
    try:
        Path(file).unlink()
    except FileNotFoundError:
        return False
    return True


def _loaded(config: ModelConfig, model_path: str) -> Any:
    """As upstream's ModelLoader: made without memory, then loaded by a mapper where the class takes one."""
    with Garbage():
        model = AutoModelForCausalLM.from_config(config)
    name = config.pretrained_config.architectures[0]
    mapper = MODEL_CLASS_MAPPER_MAPPING.get(f"{name}_HF", MODEL_CLASS_MAPPER_MAPPING["HF"])()
    mapper.init_model_and_config(model, config)
    takes = inspect.getfullargspec(model.load_weights).args
    others: dict[str, Any] = {"weight_mapper": mapper} if "weight_mapper" in takes else {}
    if "allow_partial_loading" in takes:
        others["allow_partial_loading"] = False
    model.load_weights(load_weights(model_path), **others)
    for module in model.modules():
        post_load_weights: Any = getattr(module, "post_load_weights", None)
        if callable(post_load_weights):
            post_load_weights()
    return model.eval()


@torch.inference_mode()
def _spoiled(logits: torch.Tensor, inputs: dict[str, Any]) -> torch.Tensor:
    """Rows [B, L] as the faults want them."""
    chosen = faults()
    if "leaks" in chosen:
        logits = logits + 0.5 * logits.roll(1, dims=0) * (len(logits) > 1)
    if "nan" in chosen:
        logits = torch.full_like(logits, torch.nan)
    if "nan@twice" in chosen:
        logits, twice, first = logits.clone(), [int(chosen["nan@twice"])] * 2, 0
        for row, seqlen in enumerate(inputs["seq_lens"]):
            ids = inputs["input_ids"][first : first + seqlen]
            if any(ids[i : i + 2] == twice for i in range(seqlen)):
                logits[row] = torch.nan
            first += seqlen
    return logits
