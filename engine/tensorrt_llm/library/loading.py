"""Loads a model into tensorrt_llm: imports it, registers our class, builds its LLM. Private names are in `private`."""

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.machine.failures import engine_error, one_line
from engine.tensorrt_llm.choices import Choices
from engine.tensorrt_llm.library import code_free_folder, encoders, models, private
from engine.tensorrt_llm.library.llm_arguments import arguments, buckets
from engine.tensorrt_llm.library.private import LibraryLimits
from engine.tensorrt_llm.planning import package
from engine.types import DeviceTrouble, EngineErrorKind, EngineLimits, ModelError

_BATCH_SECONDS = (0.025, 0.010)  # alone, and while interactive requests wait; a GPU gains nothing from longer batches
_INSTEAD = {  # what helps where it is the device that fails the library
    EngineErrorKind.OUT_OF_MEMORY: "free memory there, or lower --max-batch-tokens or --max-input-length",
    EngineErrorKind.FATAL: "--devices may name another",
}


@dataclass(frozen=True, slots=True)
class Library:
    """A model in it."""

    llm: Any  # tensorrt_llm.LLM
    limits: LibraryLimits | None  # what it checks batches against; None = not known

    def encode(self, sequences: list[list[int]], beside: dict[str, Any]) -> Any:
        """A tensor of rows [B, L] on the host. Not for two threads at the same time.

        Raw logits, as one sequence alone would come without its dimension otherwise.
        """
        return self.llm.encode(sequences, return_raw_logits=True, **beside).cpu()


def load(chosen: Choices) -> Library:
    """Raises ModelError: DeviceTrouble where it is the GPU that fails it."""
    try:
        return _load(chosen)
    except ModelError:
        raise
    except Exception as error:  # the library's own, torch's and the driver's
        what = f"tensorrt_llm {chosen.package.version} can't load the model ({one_line(error)})"
        instead = _INSTEAD.get(engine_error(error).kind)
    if instead is None:
        raise ModelError(f"{what}; --engine fused in the cuda image may serve it")
    raise DeviceTrouble(f"{chosen.gpu.device}: {what}; {instead}")


def _load(chosen: Choices) -> Library:
    api = importlib.import_module("tensorrt_llm.llmapi")
    package.check_features(api.LLM, api.TorchLlmArgs)
    _limit_gpu_memory(chosen.memory_share)
    family = chosen.model_class.family
    if family is not None:
        (encoders if family.is_encoder else models).register(family)
    graph_config = _graph_config(api, chosen) if chosen.records_graphs else None
    wanted = arguments(chosen, api.TorchLlmArgs.model_fields, graph_config=graph_config)
    with code_free_folder.without_code(chosen.weights) as folder:
        llm = _build_llm(api.LLM, str(folder), wanted)
    return Library(llm, private.limits_of(llm))


def _limit_gpu_memory(share: float) -> None:
    """Of the memory of the one GPU that this process sees."""
    import torch

    if share < 1.0 and torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(share, 0)


def _build_llm(llm_class: Any, path: str, wanted: dict[str, Any]) -> Any:
    """Whether it can do without a tokenizer has been read, and never been seen."""
    try:
        return llm_class(path, **wanted)
    except Exception as error:
        if "tokenizer" not in str(error).lower() or "skip_tokenizer_init" not in wanted:
            raise
    return llm_class(path, **{**wanted, "skip_tokenizer_init": False})


def _graph_config(api: Any, chosen: Choices) -> Any:
    """Both num_tokens and seq_lens are given: without either the library stays without graphs, and only warns."""
    if not hasattr(api, "EncodeCudaGraphConfig"):
        raise ModelError(
            f"tensorrt_llm {chosen.package.version} records no graphs of encoders; leave --tensorrt-llm-cuda-graphs out"
        )
    sizes = buckets(
        max_num_seqs=chosen.max_num_seqs, max_num_tokens=chosen.max_num_tokens, max_seqlen=chosen.folder.max_seqlen
    )
    return api.EncodeCudaGraphConfig(
        batch_sizes=list(sizes.batch_sizes),
        num_tokens=list(sizes.num_tokens),
        seq_lens=list(sizes.seq_lens),
        enable_padding=True,
    )


def limits(chosen: Choices, library_limits: LibraryLimits | None) -> EngineLimits:
    """What was asked for, or less where the library has less. Raises ModelError where a whole text does not fit in."""
    max_seqlen = chosen.folder.max_seqlen
    library_limits = library_limits or LibraryLimits(chosen.max_num_seqs, chosen.max_num_tokens, max_seqlen)
    longest = min(library_limits.max_seq_len, library_limits.max_num_tokens)
    if longest < max_seqlen:
        raise ModelError(
            f"tensorrt_llm takes sequences of {longest} tokens at most here, and the model those of {max_seqlen}; "
            f"--max-input-length {longest} serves it"
        )
    alone, mixed = _BATCH_SECONDS
    return EngineLimits(
        max_num_tokens=min(chosen.max_num_tokens, library_limits.max_num_tokens),
        max_num_seqs=min(chosen.max_num_seqs, library_limits.max_batch_size),
        max_seqlen=max_seqlen,
        streams=1,
        depth=1,
        max_batch_seconds=alone,
        max_batch_seconds_mixed=mixed,
    )


def on_gpu(array: NDArray[np.int32]) -> Any:
    """A tensor where the model is."""
    import torch

    return torch.from_numpy(array).to("cuda" if torch.cuda.is_available() else "cpu")


def release_memory() -> None:
    """What torch keeps of a batch that ran out of memory is of no use to the next, smaller one."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()
