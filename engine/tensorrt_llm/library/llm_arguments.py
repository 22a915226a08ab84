"""The arguments of `LLM(...)`. It forbids arguments that it does not know, so a version gets only those that it has."""

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from engine.tensorrt_llm.choices import Choices
from engine.types import ModelError

logger = logging.getLogger("embedline.engine")

# Without these the engine would compute something else.
_NEEDED = frozenset(
    ("encode_only", "dtype", "max_batch_size", "max_num_tokens", "max_seq_len", "model_kwargs", "trust_remote_code")
)
# Turns the library's telemetry off. It reads these when it is imported and when a model is built.
NO_TELEMETRY = {"TRTLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "TELEMETRY_DISABLED": "1"}


def arguments(choices: Choices, fields: Collection[str], *, graph_config: Any = None) -> dict[str, Any]:
    """Beside the model itself. fields: of TorchLlmArgs; graph_config: an EncodeCudaGraphConfig, None = no graphs.

    Raises ModelError where this version lacks one that is needed.
    """
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
            f"tensorrt_llm {choices.package.version} takes no {', '.join(missing)}; 1.4.0rc1 does, and so does the "
            "tensorrt-llm image"
        )
    unknown = [name for name in wanted if name not in fields]
    if unknown:
        logger.warning("tensorrt_llm %s does not accept %s", choices.package.version, ", ".join(unknown))
    return {name: value for name, value in wanted.items() if name in fields}


def _of_config(choices: Choices) -> dict[str, Any]:
    """What is set on the model's configuration, the type that it computes in among it.

    The library checks its own dtype and builds a model by the configuration's: without this, what config.json says.
    """
    model_class = choices.model_class
    if model_class.takes_token_types:  # upstream's BERT, which makes float16 of whatever it was built with
        return model_class.model_kwargs
    return {**model_class.model_kwargs, "dtype": choices.dtype, "torch_dtype": choices.dtype}


_BATCH_SIZES = (1, 2, 4, 8)
_NUM_TOKENS = (32, 64, 128, 256, 512, 1024)
_SEQ_LENS = (32, 64, 128, 256, 512)


@dataclass(frozen=True, slots=True)
class Buckets:
    """Sizes that batches are rounded up to, small ones, so that a single query is one launch. A graph is recorded for
    every combination that can be; larger batches run without graphs."""

    batch_sizes: tuple[int, ...]
    num_tokens: tuple[int, ...]
    seq_lens: tuple[int, ...]


def buckets(*, max_num_seqs: int, max_num_tokens: int, max_seqlen: int) -> Buckets:
    """Those within the limits; where a limit is smaller than all of them, the limit itself."""
    return Buckets(
        _within(_BATCH_SIZES, max_num_seqs), _within(_NUM_TOKENS, max_num_tokens), _within(_SEQ_LENS, max_seqlen)
    )


def _within(sizes: Iterable[int], limit: int) -> tuple[int, ...]:
    return tuple(size for size in sizes if size <= limit) or (limit,)
