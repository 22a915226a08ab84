"""How the tensorrt-llm engine says no: one line, with what else may serve the model."""

from engine.types import ModelError


def refusal(what: str) -> ModelError:
    """`what` goes on from "the tensorrt-llm engine "."""
    return ModelError(
        f"the tensorrt-llm engine {what}; --engine fused or transformers, in the cuda image, may serve it"
    )


def unreadable(what: str) -> ModelError:
    """The same, of how weights are stored."""
    return ModelError(
        f"the tensorrt-llm engine {what}; take the model's plain weights, or for FP8 --engine fused, in the cuda image"
    )
