"""The model class of TensorRT-LLM that computes a model, with its inputs and outputs. Plain data."""

from dataclasses import dataclass, field
from typing import Any

from engine.model.model_folder import ModelFolder
from engine.tensorrt_llm.planning.families import Family, family_of
from engine.tensorrt_llm.planning.head import CONFIG_KEY, HeadKind, PlannedHead, head_of, pad_id_of
from engine.types import OutputKind


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelClass:
    """A model class. model_kwargs: set on the checkpoint's configuration before the class is looked up."""

    architecture: str  # the class's name in the library's table
    family: Family | None  # of our class, which is registered first; None = upstream's own class
    config: dict[str, Any] = field(default_factory=dict)
    output: OutputKind
    num_outputs: int  # numbers a row
    takes_token_types: bool = False  # as `token_type_ids` [T]
    pad_id: int | None = None  # a token that is removed from the end of sequences; see `trailing`
    dtype: str | None = None  # the only dtype of the class; None = the plan's dtype
    note: str

    @property
    def model_kwargs(self) -> dict[str, Any]:
        """The model class as JSON."""
        return {"architectures": [self.architecture], **self.config}


_OUTPUTS = {
    HeadKind.EMBED: OutputKind.POOLED,
    HeadKind.SCORE: OutputKind.LOGITS,
    HeadKind.ANSWER: OutputKind.LOGITS,
}


# A window is asked for by layers that attend to all, too; `fitness` has seen that no sequence is longer than it.
_NO_WINDOW = {"mistral": {"sliding_window": None}}


def ours(folder: ModelFolder) -> ModelClass:
    """Our own class for the model. Raises ModelError if its rows would be wrong."""
    family, head = family_of(folder.architecture), head_of(folder)
    return ModelClass(
        architecture=family.architecture,
        family=family,
        config={**_NO_WINDOW.get(family.model_type, {}), CONFIG_KEY: head.to_config()},
        output=_OUTPUTS[head.kind],
        num_outputs=head.num_outputs,
        pad_id=pad_id_of(folder),
        note=f"Embedline's class on {family.backbone}: {_described(head)}",
    )


def _described(head: PlannedHead) -> str:
    made = {
        HeadKind.EMBED: "the row",
        HeadKind.SCORE: "scores",
        HeadKind.ANSWER: "yes less no",
    }
    mask = "each token sees those before it" if head.is_causal else "each token sees all"
    return f"{made[head.kind]} of the {head.pooling} pooling, {mask}"
