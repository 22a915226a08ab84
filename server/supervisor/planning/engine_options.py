"""The options that an engine gets to load a model."""

from pathlib import Path

from engine.machine.cuda_driver import Gpu
from engine.messages import FakeOptions, LoadOptions
from server.supervisor.planning.model_plan import ModelPlan


def engine_options(
    model: ModelPlan,
    device: str,
    *,
    cache_dir: str | None,
    num_threads: int,
    max_cache_bytes: int | None = None,
    memory_share: float = 1.0,
) -> LoadOptions:
    """See LoadOptions for what is not of the model's settings."""
    settings, folder = model.settings, model.folder
    is_fake = model.engine == "fake"
    return LoadOptions(
        device=device,
        path="" if is_fake else str(folder.path),
        dtype=settings.dtype,
        quantization=settings.quantization,
        pooling=settings.pooling,
        task=settings.task,
        trusted_keys=settings.trust_config_key,
        template=settings.template,
        max_seqlen=folder.max_seqlen,
        max_num_tokens=settings.max_batch_tokens,
        max_num_seqs=settings.max_batch_requests,
        num_threads=num_threads,
        cache_dir=cache_dir,
        max_cache_bytes=max_cache_bytes,
        compiled=_absolute(settings.compiled_model),
        compiles_in_child=True,
        memory_share=memory_share,
        gpu=_gpu(model, device),
        model_class=settings.tensorrt_llm_model_class,
        records_graphs=settings.tensorrt_llm_cuda_graphs,
        fake=_fake_options(model) if is_fake else None,
    )


def _fake_options(model: ModelPlan) -> FakeOptions:
    settings, folder = model.settings, model.folder
    return FakeOptions(
        dimensions=settings.fake_dim,
        vocab_size=folder.vocab_size,
        outputs=folder.outputs,
        num_labels=max(len(folder.labels), 1),
        cost_ms=settings.fake_cost_ms,
        tokens_per_second=settings.fake_tokens_per_second,
        faults=tuple(settings.fake_fault),
    )


def _gpu(model: ModelPlan, device: str) -> Gpu | None:
    """As the driver describes it; None for the CPU."""
    return next((gpu for gpu in model.devices.gpus if gpu.device == device), None)


def _absolute(folder: str | None) -> str | None:
    """For a process with another working directory."""
    return None if folder is None else str(Path(folder).expanduser().absolute())
