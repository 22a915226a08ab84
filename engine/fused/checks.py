"""What the fused engine refuses before it reads a weight: outputs that it lacks, models that do not fit the GPU.

Imports no torch, so the server and `embedline doctor` can ask as well.
"""

from dataclasses import dataclass

from engine.fused.model.spec import Spec
from engine.model.model_folder import ModelFolder
from engine.model.tasks import Task
from engine.model.weights import Weights
from engine.types import DeviceTrouble, ModelError, OutputKind

_GIVEN = OutputKind.POOLED | OutputKind.TOKENS
_POOLINGS = (("cls",), ("mean",), ("last",))


class NotForFused(ModelError):
    """The fused engine would not be right about this model; another may be."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; --engine transformers may serve the model")


def check_outputs(folder: ModelFolder) -> None:
    """Raises ModelError where another output is asked for than a row for each text and token, pooled in a known way."""
    if folder.is_static:
        raise ModelError("the fused engine computes no static embeddings; --engine static does")
    if folder.task is not Task.EMBED or folder.heads:
        what = " and ".join(kind.name or "" for kind in folder.outputs & ~_GIVEN)
        raise NotForFused(f"the fused engine computes embeddings only; this model is for {folder.task} ({what})")
    if folder.tokenizer_folder:
        raise NotForFused(
            f"the fused engine needs the Transformer in the model's own folder, not in {folder.tokenizer_folder!r}"
        )
    if folder.poolings not in _POOLINGS:
        raise ModelError(
            f"the fused engine pools by one of cls, mean and last-token, not by {folder.pooling}; "
            f"--engine transformers does"
        )
    if not folder.include_prompt:
        raise NotForFused(
            "this model leaves the prompt's tokens out of the pooling (include_prompt), which the fused engine can't do"
        )


_RESERVE = 0.75e9  # bytes: kernels, workspaces of libraries, recorded graphs, rows on their way out
_NUM_WORKING_SETS = 2  # one of what is computed call by call, one that the graphs share


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of one GPU."""

    free: int  # bytes
    total: int
    device: str  # "cuda:0", …
    share: float = 1.0  # of the total: what this process may take

    @property
    def available(self) -> int:
        """Bytes."""
        return min(self.free, int(self.share * self.total))

    def __str__(self) -> str:
        words = f"{self.device} has {self.free / 1e9:.1f} GB free of {self.total / 1e9:.1f}"
        return f"{words}, and the engine's share is {self.share:.3g} of it" if self.share < 1.0 else words


def check_memory(spec: Spec, weights: Weights, *, itemsize: int, max_seqlen: int, memory: Memory) -> None:
    """Raises DeviceTrouble where the weights, and a batch of one sequence of the longest kind, will not fit.

    itemsize: bytes of a number in the compute dtype.
    """
    weight_bytes = itemsize * sum(weights.num_parameters.values()) + _RESERVE
    token_bytes = _NUM_WORKING_SETS * itemsize * numbers_per_token(spec)
    needed = weight_bytes + token_bytes * max_seqlen
    if needed <= memory.available:
        return
    fitting = int((memory.available - weight_bytes) // token_bytes)
    enlarge = "raise --gpu-memory-share, " if memory.available < memory.free else ""
    if fitting < 1:
        raise DeviceTrouble(
            f"the model needs {needed / 1e9:.1f} GB of GPU memory, and {memory}: "
            f"{enlarge}free some of it, or serve the model on a larger GPU"
        )
    raise DeviceTrouble(
        f"with sequences of {max_seqlen} tokens the model needs {needed / 1e9:.1f} GB of GPU memory, and {memory}: "
        f"{enlarge}--max-input-length {fitting} fits"
    )


def numbers_per_token(spec: Spec) -> int:
    """Numbers of the compute dtype that a token takes at the point where a layer holds most."""
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    attention = (queries + 2 * keys) + queries + spec.hidden_size
    mlp = (3 if spec.is_gated else 2) * spec.intermediate_size + spec.hidden_size
    return 2 * spec.hidden_size + max(attention, mlp)  # the sum so far and its norm are held beside either
