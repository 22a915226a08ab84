"""The page on which a server describes its models: in GET /info, with TEI's fields first, and in OpenAI's list of
models."""

from typing import Any

from embedline import __version__
from engine.model.tasks import Task
from engine.types import OutputKind
from server.requests.models import ModelsState, ServedModel
from tokenizer_pool.messages import Truncation

_SCORING = (Task.RERANK, Task.CLASSIFY, Task.TOKEN_CLASSIFY)
_TEI_POOLING = {"last": "last_token"}  # its name for it


def info(state: ModelsState) -> dict[str, Any]:
    """TEI's fields are in core/src/lib.rs and router/src/lib.rs (Info). Ours are `ready`, `models`, `fingerprint`,
    `task`, `outputs`, `labels`, `prompts` and the other limits."""
    newest = state.newest
    models = newest.get("models", [])
    return {
        **(_of_model(models[0]) if models else {}),
        **newest.get("limits", {}),
        "version": __version__,
        "sha": None,
        "docker_label": None,
        "ready": state.why_not_ready() is None,
        "models": [_with_names(model) for model in models],
    }


def model_cards(state: ModelsState) -> list[dict[str, Any]]:
    """The served models as OpenAI lists them, with more that other servers say."""
    loaded = {model.name: model for model in state.models.models} if state.models else {}
    return [
        {
            "id": name,
            "object": "model",
            "created": loaded[name].facts["loaded_at"] if name in loaded else 0,
            "owned_by": "embedline",
            "root": loaded[name].facts["model_id"] if name in loaded else name,  # vLLM's, as the next two
            "parent": None,
            "permission": [],
            "ready": state.why_model_not_ready(name) is None,
            "stats": _stats(state, name),
            **(_facts(loaded[name]) if name in loaded else {}),
        }
        for name in state.names
    ]


def _facts(model: ServedModel) -> dict[str, Any]:
    return {
        "fingerprint": model.facts["fingerprint"]["id"],
        "dimensions": model.default_dimensions,
        "max_dimensions": model.dimensions,
        "max_model_len": model.max_seqlen,  # as vLLM calls it
        "max_input_length": model.max_seqlen,
        "tasks": _tasks(model),
        "outputs": output_names(model.outputs),
        "prompts": sorted(model.facts["prompts"]),
        "dtype": model.facts["info"]["dtype"],
        "backend": model.facts["info"]["engine"],  # as Infinity calls it, and what follows
        "capabilities": _tasks(model),
    }


def _stats(state: ModelsState, name: str) -> dict[str, float]:
    """Infinity's numbers, counted in tokens: a `queue_fraction` of 1 or more means that a request gets 429."""
    queue = state.queue_of(name)
    return {
        "queue_fraction": round(queue.wait_seconds / queue.max_wait_seconds, 3) if queue.max_wait_seconds else 0.0,
        "queue_absolute": queue.waiting_tokens,
        "results_pending": queue.computing_tokens,
        "batch_size": queue.max_batch_tokens,
    }


def _tasks(model: ServedModel) -> list[str]:
    """The tasks of a model: what it is for, and what else it gives."""
    beside = {OutputKind.SPARSE: Task.SPARSE, OutputKind.MULTI_VECTOR: Task.LATE_INTERACTION}
    return list(dict.fromkeys((model.task, *(task for kind, task in beside.items() if kind in model.outputs))))


def _with_names(model: dict[str, Any]) -> dict[str, Any]:
    """The fields with names instead of the numbers that processes send each other."""
    outputs = output_names(OutputKind(model["info"]["outputs"]))
    truncation = Truncation(model["truncation"]).name.lower()
    ranges = model.get("int8_ranges")
    named = {"truncation": truncation, "int8_ranges": ranges and ranges["source"]}
    return {**model, "info": {**model["info"], "outputs": outputs}, **named}


def output_names(outputs: OutputKind) -> list[str]:
    """The name of each kind, in lower case."""
    return [kind.name.lower() for kind in outputs if kind.name]


def _of_model(model: dict[str, Any]) -> dict[str, Any]:
    """The part of the page that describes the first model."""
    known = model["info"]
    return {
        "model_id": model["model_id"],
        "model_sha": model["revision"] or None,
        "model_dtype": known["dtype"],
        "fingerprint": model["fingerprint"]["id"],
        "served_model_name": known["name"],
        "model_type": _model_type(model),
        "max_input_length": known["max_seqlen"],
        "task": model.get("task", Task.EMBED),
        "outputs": output_names(OutputKind(known["outputs"])),
        "labels": list(model.get("labels", ())),
        "prompts": model["prompts"],
    }


def _model_type(model: dict[str, Any]) -> dict[str, Any]:
    """TEI's name for the model's type. A task that TEI does not know is a classifier if it has labels, else an
    embedding model."""
    task, labels = Task(model.get("task", Task.EMBED)), model.get("labels", ())
    if task not in _SCORING:
        pooling = "splade" if task is Task.SPARSE else model["info"]["pooling"]
        return {"embedding": {"pooling": _TEI_POOLING.get(pooling, pooling)}}
    return {
        "reranker" if task is Task.RERANK else "classifier": {
            "id2label": {str(number): label for number, label in enumerate(labels)},
            "label2id": {label: number for number, label in enumerate(labels)},
        }
    }
