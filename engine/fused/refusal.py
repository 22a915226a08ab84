"""What the fused engine says of a model that is not for it."""

from engine.model.model_folder import ModelFolder
from engine.model.tasks import Task
from engine.types import ModelError, OutputKind

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
        raise NotForFused(f"the fused engine gives embeddings alone, and this model is for {folder.task} ({what})")
    if folder.tokenizer_folder:
        raise NotForFused(
            f"the fused engine wants the Transformer in the model's own folder, not in {folder.tokenizer_folder!r}"
        )
    if folder.poolings not in _POOLINGS:
        raise ModelError(
            f"the fused engine pools by one of cls, mean and last-token, not by {folder.pooling}; "
            f"--engine transformers does"
        )
    if not folder.include_prompt:
        raise NotForFused("the fused engine leaves no prompt out of the pooling, as include_prompt of this model asks")
