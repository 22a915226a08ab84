"""What the fused engine says of a model that is not for it."""

from engine.types import ModelError


class NotForFused(ModelError):
    """The fused engine would not be right about this model; another may be."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; --engine transformers may serve the model")
