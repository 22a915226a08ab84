"""What is made of token rows, against sentence-transformers and transformers' own classes with heads."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Pooling

from engine.tensorrt_llm.planning.head import POOLINGS, HeadKind, PlannedHead
from tests.engine.tensorrt_llm.packed_rows import packed, rows_by
from tests.engine.tiny_models import (
    GENERATING,
    HIDDEN_SIZE,
    SCORING_SEQUENCES,
    WholeReference,
    arbitrary,
    save,
    save_whole,
)

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
SEQLENS = (5, 17, 1, 30, 9)
ATOL = 1e-5
YES, NO = 11, 7
_MODES = {"last": "lasttoken"}


def head(kind: HeadKind, **others: Any) -> PlannedHead:
    return PlannedHead(**{"kind": kind, "pooling": "last", "is_causal": True, "num_outputs": 1, **others})


@pytest.mark.parametrize(
    "sent",
    [
        head(HeadKind.EMBED, pooling="mean", is_causal=False, num_outputs=1024),
        head(HeadKind.SCORE, num_outputs=3),
        head(HeadKind.ANSWER, yes_id=9693, no_id=2152),
        head(HeadKind.ANSWER, yes_id=15),
    ],
    ids=lambda sent: sent.kind,
)
def test_it_comes_through_json(sent: PlannedHead) -> None:
    """As it may be written to a configuration's file on the way."""
    config = sent.to_config()

    assert PlannedHead.from_config(json.loads(json.dumps(config))) == sent
    assert all(type(value) in (str, bool, int, type(None)) for value in config.values())


def test_another_kind_is_no_head() -> None:
    with pytest.raises(ValueError, match="not a valid HeadKind"):
        PlannedHead.from_config({**head(HeadKind.EMBED).to_config(), "kind": "other"})


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("family", [*FAMILIES, "llama, bidirectional"])
def test_embeddings_are_those_of_sentence_transformers(family: str, pooling: str, tmp_path: Path) -> None:
    folder, sequences = save(family, tmp_path / "model"), arbitrary(SEQLENS)
    token_rows, metadata = packed(folder, sequences)
    parts = torch.split(token_rows, metadata.seq_lens_cuda.tolist())
    padded = torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(part)) for part in parts], batch_first=True)
    reference = Pooling(HIDDEN_SIZE, pooling_mode=_MODES.get(pooling, pooling))
    expected = reference({"token_embeddings": padded, "attention_mask": mask})["sentence_embedding"]

    found = rows_by(head(HeadKind.EMBED, pooling=pooling, num_outputs=HIDDEN_SIZE), folder, sequences)

    torch.testing.assert_close(found, expected, rtol=0, atol=ATOL)


@pytest.mark.parametrize("num_labels", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_the_sequence_classifier(family: str, num_labels: int, tmp_path: Path) -> None:
    folder = save_whole(family, tmp_path / "model", SCORING_SEQUENCES, num_labels=num_labels)
    sequences, reference = arbitrary(SEQLENS), WholeReference(folder, SCORING_SEQUENCES)

    found = rows_by(head(HeadKind.SCORE, num_outputs=num_labels), folder, sequences)

    expected = np.stack([reference.scores(sequence) for sequence in sequences])
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=ATOL)


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("no_id", [NO, None])
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_the_next_tokens_scores(family: str, no_id: int | None, is_tied: bool, tmp_path: Path) -> None:
    folder = save_whole(family, tmp_path / "model", GENERATING, tie_word_embeddings=is_tied)
    sequences, reference = arbitrary(SEQLENS), WholeReference(folder, GENERATING)
    logits = np.stack([reference.scores(sequence)[-1] for sequence in sequences])
    expected = logits[:, YES] - (0 if no_id is None else logits[:, no_id])

    found = rows_by(head(HeadKind.ANSWER, yes_id=YES, no_id=no_id), folder, sequences, is_tied=is_tied)

    np.testing.assert_allclose(found.numpy(), expected[:, None], rtol=0, atol=ATOL)
