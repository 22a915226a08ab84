"""Classifiers and cross-encoders: transformers' …ForSequenceClassification and …ForTokenClassification."""

from collections.abc import Iterator

from engine.model.detection.chains import Chain
from engine.model.detection.detected import Detected, Files
from engine.model.detection.generative import template_in
from engine.model.detection.labels import activation_of, check_head, labels_of
from engine.model.tasks import Activation, SequenceScores, Task, TokenScores
from engine.types import ModelError


def scores(files: Files) -> Iterator[Detected]:
    """None or one. Raises ModelError for wrong labels or a wrong activation."""
    name = files.architecture
    if name.endswith("ForSequenceClassification"):
        labels = _labels(files)
        activation, notes = activation_of(files, len(labels))
        kind = f"{len(labels)} labels" if len(labels) > 1 else "1 label"
        yield Detected(
            task=Task.RERANK if len(labels) == 1 else Task.CLASSIFY,
            source=f"config.json: {name} with {kind}",
            heads=(SequenceScores(labels=labels),),
            activation=activation,
            template=template_in(files) if len(labels) == 1 else None,
            notes=notes,
        )
    elif name.endswith("ForTokenClassification"):
        yield Detected(
            task=Task.TOKEN_CLASSIFY,
            source=f"config.json: {name}",
            heads=(TokenScores(labels=_labels(files)),),
            activation=Activation.SOFTMAX,
        )
    elif name in files.known_classes:
        yield Detected(
            task=Task.RERANK,
            source=f"config.json: {name}",
            heads=(SequenceScores(labels=labels_of({"num_labels": 1})),),
        )
    elif files.chain is Chain.SCORES:
        raise ModelError(f"modules.json describes a cross-encoder, but {name or 'config.json'} gives no scores")


def _labels(files: Files) -> tuple[str, ...]:
    labels = labels_of(files.config)
    if files.needs_weights:
        check_head(files.backbone_folder, len(labels))
    return labels
