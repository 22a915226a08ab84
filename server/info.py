"""What GET /info says: TEI's fields at the top, and everything that engines say of their models below."""

from typing import Any

from embedline import __version__
from engine.types import OutputKind
from server.frontend_state import FrontendState
from tokenizer_pool.messages import Truncation

_TEI_POOLING = {"last": "last_token"}  # its name for it


def info(state: FrontendState) -> dict[str, Any]:
    """As text-embeddings-inference has it (core/src/lib.rs, router/src/lib.rs: Info); ours are `ready`, `models` and
    further limits."""
    house = state.house
    models = house.get("models", [])
    return {
        **(_of_model(models[0]) if models else {}),
        **house.get("limits", {}),
        "version": __version__,
        "sha": None,
        "docker_label": None,
        "ready": state.why_not_ready() is None,
        "models": [_in_words(model) for model in models],
    }


def _in_words(model: dict[str, Any]) -> dict[str, Any]:
    """With names for what goes between processes as numbers."""
    outputs = [kind.name.lower() for kind in OutputKind(model["info"]["outputs"]) if kind.name]
    truncation = Truncation(model["truncation"]).name.lower()
    return {**model, "info": {**model["info"], "outputs": outputs}, "truncation": truncation}


def _of_model(model: dict[str, Any]) -> dict[str, Any]:
    """Of the first one where there are several."""
    known = model["info"]
    pooling = _TEI_POOLING.get(known["pooling"], known["pooling"])
    return {
        "model_id": model["model_id"],
        "model_sha": model["revision"] or None,
        "model_dtype": known["dtype"],
        "served_model_name": known["name"],
        "model_type": {"embedding": {"pooling": pooling}},
        "max_input_length": known["max_seqlen"],
    }
