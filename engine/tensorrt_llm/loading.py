"""Loads a model into tensorrt_llm: imports it, registers our class, builds its LLM. Private names are in `private`.

Some versions of the library run a folder's code when they load a configuration, even where trust_remote_code is false.
So they get the model's folder without its code: no .py files, and no entry in its configuration that names one.
`LLM(...)` forbids arguments that it does not know, so a version gets only those that it has.
"""

import contextlib
import importlib
import json
import logging
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.machine.failures import engine_error, one_line
from engine.model.json_files import read
from engine.tensorrt_llm import models, private
from engine.tensorrt_llm.offer import TensorRTLLMConfig
from engine.tensorrt_llm.planning import package
from engine.tensorrt_llm.private import LibraryLimits
from engine.types import DeviceTrouble, EngineErrorKind, EngineLimits, ModelError

logger = logging.getLogger("embedline.engine")

_NAMES_CODE = "auto_map"
_CODE = ".py"
# Without these the engine would compute something else.
_NEEDED = frozenset(
    ("encode_only", "dtype", "max_batch_size", "max_num_tokens", "max_seq_len", "model_kwargs", "trust_remote_code")
)
# Turns the library's telemetry off. It reads these when it is imported and when a model is built.
NO_TELEMETRY = {"TRTLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "TELEMETRY_DISABLED": "1"}
_BATCH_SIZES = (1, 2, 4, 8)
_NUM_TOKENS = (32, 64, 128, 256, 512, 1024)
_SEQ_LENS = (32, 64, 128, 256, 512)
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


def load(chosen: TensorRTLLMConfig) -> Library:
    """Load the library's model. Raises ModelError: DeviceTrouble where it is the GPU that fails it."""
    try:
        return _load(chosen)
    except ModelError:
        raise
    except Exception as error:  # the library's own, torch's and the driver's
        what = f"tensorrt_llm {chosen.version} can't load the model ({one_line(error)})"
        instead = _INSTEAD.get(engine_error(error).kind)
    if instead is None:
        raise ModelError(f"{what}; --engine fused in the cuda image may serve it")
    raise DeviceTrouble(f"{chosen.gpu.device}: {what}; {instead}")


def _load(chosen: TensorRTLLMConfig) -> Library:
    api = importlib.import_module("tensorrt_llm.llmapi")
    package.check_features(chosen.version, api.LLM, api.TorchLlmArgs)
    _limit_gpu_memory(chosen.memory_share)
    family = chosen.model_class.family
    if family is not None:
        models.register(family)
    graph_config = _graph_config(api, chosen) if chosen.records_graphs else None
    wanted = llm_arguments(chosen, api.TorchLlmArgs.model_fields, graph_config=graph_config)
    with without_code(chosen.weights) as folder:
        llm = _build_llm(api.LLM, str(folder), wanted)
    return Library(llm, private.limits_of(llm))


def _limit_gpu_memory(share: float) -> None:
    """Limit the memory that torch takes of the one GPU that this process sees."""
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


def _graph_config(api: Any, chosen: TensorRTLLMConfig) -> Any:
    """Both num_tokens and seq_lens are given: without either the library stays without graphs, and only warns."""
    if not hasattr(api, "EncodeCudaGraphConfig"):
        raise ModelError(
            f"tensorrt_llm {chosen.version} records no graphs of encoders; leave --tensorrt-llm-cuda-graphs out"
        )
    sizes = buckets(
        max_num_seqs=chosen.max_num_seqs, max_num_tokens=chosen.max_num_tokens, max_seqlen=chosen.folder.max_seqlen
    )
    return api.EncodeCudaGraphConfig(**sizes, enable_padding=True)


def limits(chosen: TensorRTLLMConfig, library_limits: LibraryLimits | None) -> EngineLimits:
    """The limits asked for, or less where the library has less. Raises ModelError where a whole text does not fit
    in."""
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
    """Free what torch keeps of a batch that ran out of memory: the next, smaller one has no use for it."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextlib.contextmanager
def without_code(folder: Path) -> Iterator[Path]:
    """The folder itself where it has no code; else one of links to its other files, for as long as it is loaded from.
    Raises ModelError where a JSON file can't be read."""
    files = [file for file in folder.iterdir() if file.is_file()]
    cleaned = {file.name: _without(read(file)) for file in files if file.suffix == ".json" and _names_code(file)}
    if not cleaned and not any(file.suffix == _CODE for file in files):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="embedline-model-") as place:
        for file in files:
            if file.name in cleaned:
                Path(place, file.name).write_text(json.dumps(cleaned[file.name]), encoding="utf-8")
            elif file.suffix != _CODE:
                Path(place, file.name).symlink_to(file.absolute())
        yield Path(place)


def _names_code(file: Path) -> bool:
    """Whether it names code, told by its bytes: most JSON files of a folder are large and say nothing of it."""
    return f'"{_NAMES_CODE}"'.encode() in file.read_bytes()


def _without(value: Any) -> Any:
    """The value without the word, at any depth."""
    if isinstance(value, dict):
        return {key: _without(one) for key, one in value.items() if key != _NAMES_CODE}
    return [_without(one) for one in value] if isinstance(value, list) else value


def llm_arguments(choices: TensorRTLLMConfig, fields: Collection[str], *, graph_config: Any = None) -> dict[str, Any]:
    """Beside the model itself. fields: of TorchLlmArgs; graph_config: an EncodeCudaGraphConfig, None = no graphs.
    Raises ModelError where this version lacks one that is needed."""
    wanted: dict[str, Any] = {
        "encode_only": True,
        "skip_tokenizer_init": True,  # ids are all that it is given
        "dtype": choices.dtype,
        "max_batch_size": choices.max_num_seqs,
        "max_num_tokens": choices.max_num_tokens,
        "max_seq_len": choices.folder.max_seqlen,
        "attn_backend": "TRTLLM",
        "model_kwargs": _of_config(choices),
        "cuda_graph_config": graph_config,
        "trust_remote_code": False,
    }
    missing = sorted(_NEEDED - set(fields))
    if missing:
        raise ModelError(
            f"tensorrt_llm {choices.version} takes no {', '.join(missing)}; 1.4.0rc1 does, and so does the "
            "tensorrt-llm image"
        )
    unknown = [name for name in wanted if name not in fields]
    if unknown:
        logger.warning("tensorrt_llm %s does not accept %s", choices.version, ", ".join(unknown))
    return {name: value for name, value in wanted.items() if name in fields}


def _of_config(choices: TensorRTLLMConfig) -> dict[str, Any]:
    """The values that are set on the model's configuration, the type that it computes in among it.

    The library checks its own dtype and builds a model by the configuration's: without this, what config.json says.
    """
    model_class = choices.model_class
    if model_class.takes_token_types:  # upstream's BERT, which makes float16 of whatever it was built with
        return model_class.model_kwargs
    return {**model_class.model_kwargs, "dtype": choices.dtype, "torch_dtype": choices.dtype}


def buckets(*, max_num_seqs: int, max_num_tokens: int, max_seqlen: int) -> dict[str, list[int]]:
    """The sizes within the limits that batches are rounded up to, by the library's names; where a limit is smaller than
    all of them, the limit itself.

    They are small, so that a single query is one launch. A graph is recorded for every combination that can be; larger
    batches run without graphs.
    """
    limited = {
        "batch_sizes": (_BATCH_SIZES, max_num_seqs),
        "num_tokens": (_NUM_TOKENS, max_num_tokens),
        "seq_lens": (_SEQ_LENS, max_seqlen),
    }
    return {name: [size for size in sizes if size <= limit] or [limit] for name, (sizes, limit) in limited.items()}
