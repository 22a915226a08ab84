"""What an engine is told when it is to load a model; see each engine's `load`."""

import dataclasses
from typing import Any

from server.supervisor.model_plan import ModelPlan


def engine_options(
    model: ModelPlan, device: str, *, cache_dir: str | None, num_threads: int, memory_share: float = 1.0
) -> dict[str, Any]:
    """Fit for JSON. cache_dir: where engines keep what they have compiled, None = nowhere; num_threads: of the CPU;
    memory_share: how much of a GPU's memory the engine may take, above 0 and at most 1."""
    settings, folder = model.settings, model.folder
    options: dict[str, Any] = {
        "device": device,
        "max_num_tokens": settings.max_batch_tokens,  # None = as the engine likes
        "max_num_seqs": settings.max_batch_requests,
    }
    if model.engine == "fake":
        return {
            **options,
            "dimensions": settings.fake_dim,
            "max_seqlen": folder.max_seqlen,
            "vocab_size": folder.vocab_size,
            "outputs": folder.outputs,
            "num_labels": max(len(folder.labels), 1),
            "cost_ms": settings.fake_cost_ms,
            "tokens_per_second": settings.fake_tokens_per_second,
            "faults": list(settings.fake_fault),
        }
    return {
        **options,
        "path": str(folder.path),
        "dtype": settings.dtype,
        "quantization": settings.quantization,
        "attention": settings.attention,
        "pooling": settings.pooling,
        "task": settings.task,
        "max_seqlen": folder.max_seqlen,
        "cache_dir": cache_dir,
        "num_threads": num_threads,
        "memory_share": memory_share,
        "gpu": _gpu(model, device),
        "model_class": settings.tensorrt_llm_model_class,
        "records_graphs": settings.tensorrt_llm_cuda_graphs,
    }


def _gpu(model: ModelPlan, device: str) -> dict[str, Any] | None:
    """As the driver describes it; None for the CPU."""
    found = [gpu for gpu in model.devices.gpus if gpu.device == device]
    return dataclasses.asdict(found[0]) if found else None
