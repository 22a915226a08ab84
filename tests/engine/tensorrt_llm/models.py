"""Tiny random models that the engine has a class for, and the rows that transformers makes of ids with them."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from transformers import AutoModel

from tests.engine.folder_files import write
from tests.engine.model.detection.shapes import QWEN3_CHAT, modules
from tests.engine.sentence_models import save_words
from tests.engine.tiny_models import GENERATING, MASKED, SCORING_SEQUENCES, Reference, WholeReference, save_whole

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
ENCODERS = ("roberta", "xlm-roberta")
YES, NO = 11, 7

Sequences = Sequence[Sequence[int]]
Expected = Callable[[Sequences], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Model:
    """A folder, what is said to the engine beside it, and what is right."""

    folder: Path
    options: dict[str, Any]
    expected: Expected  # rows [B, L], each sequence alone


def embedding(family: str, folder: Path, pooling: str, *, has_prefix: bool = False, **config: Any) -> Model:
    """A backbone, its weights with or without the prefix of whole models."""
    whole = MASKED if family in ENCODERS else GENERATING
    save_whole(family, folder, whole if has_prefix else AutoModel, **{**_small(family), **config})
    _randomize_norms(folder)
    save_words(folder)
    options = {"pooling": {"last": "last-token"}.get(pooling, pooling), "task": "embed"}
    reference = Reference(folder)
    return Model(folder, options, lambda sequences: reference.pooled(sequences, pooling))


def scoring(family: str, folder: Path, *, num_labels: int = 3, **config: Any) -> Model:
    """A classifier, or with one label a CrossEncoder of sentence-transformers."""
    saved = {"sentence_transformers": {"version": "5.1.0"}}
    save_whole(family, folder, SCORING_SEQUENCES, num_labels=num_labels, **{**_small(family), **config, **saved})
    _randomize_norms(folder)
    save_words(folder)
    reference = WholeReference(folder, SCORING_SEQUENCES)
    return Model(folder, {}, lambda sequences: np.stack([reference.scores(sequence) for sequence in sequences]))


def answering(family: str, folder: Path, *, no_id: int | None = NO, **config: Any) -> Model:
    """A generative reranker as sentence-transformers saves it, scored by YES less `no_id`."""
    save_whole(family, folder, GENERATING, **{**_small(family), **config})
    _randomize_norms(folder)
    save_words(folder)
    (folder / "chat_template.jinja").write_text(QWEN3_CHAT)
    kind = "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"
    modules(folder, root="sentence_transformers.base.modules.transformer.Transformer", s1=kind)
    write(folder / "sentence_bert_config.json", {"transformer_task": "text-generation"})
    write(folder / "s1" / "config.json", {"true_token_id": YES, "false_token_id": no_id})
    write(folder / "config_sentence_transformers.json", {"model_type": "CrossEncoder"})
    reference = WholeReference(folder, GENERATING)

    def expected(sequences: Sequences) -> NDArray[np.float32]:
        logits = np.stack([reference.scores(sequence)[-1] for sequence in sequences])
        return logits[:, [YES]] if no_id is None else logits[:, [YES]] - logits[:, [no_id]]

    return Model(folder, {}, expected)


def with_options(model: Model, **options: Any) -> Model:
    return dataclasses.replace(model, options={**model.options, **options})


def _small(family: str) -> dict[str, Any]:
    return {"num_hidden_layers": 2, **({"sliding_window": None} if family in FAMILIES else {})}


def _randomize_norms(folder: Path) -> None:
    """They begin as ones, so that one that is left out or taken for another would not show."""
    file = folder / "model.safetensors"
    tensors, numbers = load_file(file), np.random.default_rng(2)
    for name in sorted(tensors):
        if name.endswith("norm.weight"):
            tensors[name] = numbers.uniform(0.5, 1.5, tensors[name].shape).astype(np.float32)
    save_file(tensors, file, metadata={"format": "pt"})
