"""Windows, chunks and blocks of attention, packed beside hostile neighbours: as the library computes each text alone.

The self-test at a load sees no window that is longer than its sequences. So the first test holds the packed forward
itself: where it is right for sequences within a window, it must be right for all others.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModel, PreTrainedModel

from engine.fused.adapters import ADAPTERS
from engine.model.coverage import Use
from engine.model.detection.backbone import padding_idx_of
from engine.transformers import attention
from engine.transformers.forward import PackedForward
from engine.types import ModelError, OutputKind
from tests.engine.engines import load
from tests.engine.fused.model import models
from tests.engine.tiny_models import batch
from tests.parity.architectures import ARCHITECTURES
from tests.parity.engines import compute
from tests.parity.folders import CLASSES, save_transformer
from tests.parity.texts import Text
from tests.parity.twins import LEAKING, NUM_POSITIONS, OTHERS, SIZE, UNK, texts, twin
from tests.tiers import full_but

pytestmark = pytest.mark.holds("What a model is for")

MIN_COSINE = 0.9999
COMMON = (
    "BERT",
    "ModernBERT",
    "Qwen3",
    "Gemma 2",
    "EmbeddingGemma",
    "Llama 4",
    "Llama 4 without scales",
    "Cohere 2",
    "ESM, rotary",
)
COMMON_TWO_WAYS = ("Mistral, bidirectional", "Qwen3, bidirectional")
SERVED = [*ARCHITECTURES, *OTHERS]
# What OpenVINO has no form for, such as most layers of experts, or computes otherwise; with what it says.
CONVERTS_NOT, DIFFERS, FAILS = "openvino can't convert", "rows are not the original's", "the compiled model fails"
NOT_OPENVINO = {
    "GPT-OSS": CONVERTS_NOT,
    "Mixtral": CONVERTS_NOT,
    "Qwen3 MoE": CONVERTS_NOT,
    "DeepSeek V3, bidirectional": CONVERTS_NOT,
    "Recurrent Gemma": DIFFERS,
    "Longformer": DIFFERS,
    "Mamba": FAILS,
    "DeBERTa": FAILS,
}
NOT_FUSED = (
    "Mistral, bidirectional",
    "Ministral 3, bidirectional",
    "Qwen3, bidirectional",
)  # windows without causality

Rows = NDArray[np.float32]


def saved(name: str, folder: Path) -> Path:
    save_transformer(twin(name), CLASSES[Use.EMBED], folder, num_labels=2)
    return folder


def alone(folder: Path, sequences: list[list[int]]) -> list[Rows]:
    """By the library, one at a time."""
    model: Any = AutoModel.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        return [model(input_ids=torch.tensor([each])).last_hidden_state[0].numpy() for each in sequences]


def least_cosine(found: list[Rows], expected: list[Rows]) -> float:
    """Of a token; 1 where both rows are zero, as those of padding can be."""
    a, b = np.concatenate(found).astype(np.float64), np.concatenate(expected).astype(np.float64)
    assert a.shape == b.shape
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    is_same = np.abs(a - b).max(axis=1) < 1e-6
    return float(np.where(is_same, 1.0, (a * b).sum(axis=1) / np.maximum(lengths, 1e-12)).min())


def packed_rows(forward: PackedForward, sequences: list[list[int]]) -> list[Rows]:
    one = batch(sequences)
    return np.split(forward(one).numpy(), one.cu_seqlens[1:-1])


@pytest.mark.parametrize("name", full_but((*COMMON, *COMMON_TWO_WAYS), SERVED))
def test_packed_is_right_beyond_each_window_or_wrong_within_it(name: str, tmp_path: Path) -> None:
    folder = saved(name, tmp_path / "model")
    model: PreTrainedModel = AutoModel.from_pretrained(folder, dtype=torch.float32)
    longest = model.config.to_dict().get("max_position_embeddings", 512) - 2
    if not model._can_set_attn_implementation():
        return  # it is never packed
    attention.register()
    model.set_attn_implementation(attention.PACKED)
    forward = PackedForward(model, padding_idx=padding_idx_of(model.config.model_type, model.config.to_dict()))
    short = texts(SIZE - 3)
    try:
        is_right = least_cosine(packed_rows(forward, short), alone(folder, short)) >= MIN_COSINE
    except Exception:  # what the self-test sees, too
        return
    if is_right:
        long = texts(longest)
        assert least_cosine(packed_rows(forward, long), alone(folder, long)) >= MIN_COSINE


def check_engine(engine_name: str, folder: Path) -> str:
    """Its first note."""
    engine = load(engine_name, folder, pooling="mean")
    try:
        sequences = texts(engine.limits.max_seqlen)
        found = compute(engine, [Text(tuple(each)) for each in sequences], OutputKind.TOKENS)
    finally:
        engine.close()
    assert least_cosine([each[OutputKind.TOKENS] for each in found], alone(folder, sequences)) >= MIN_COSINE
    return engine.info.notes[0]


@pytest.mark.parametrize("name", full_but(COMMON, SERVED))
def test_transformers(name: str, tmp_path: Path) -> None:
    check_engine("transformers", saved(name, tmp_path / "model"))


@pytest.mark.parametrize("name", full_but(("Llama 4",), [name for name in SERVED if name not in NOT_OPENVINO]))
def test_openvino(name: str, tmp_path: Path) -> None:
    check_engine("openvino", saved(name, tmp_path / "model"))


@pytest.mark.full
@pytest.mark.parametrize("name", NOT_OPENVINO)
def test_what_openvino_cannot_compute_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=NOT_OPENVINO[name]):
        load("openvino", saved(name, tmp_path / "model"), pooling="mean")


@pytest.mark.parametrize("name", full_but(("ConvBERT", "FNet"), LEAKING))
def test_what_mixes_padding_into_rows_is_run_one_by_one(name: str, tmp_path: Path) -> None:
    assert check_engine("transformers", saved(name, tmp_path / "model")).startswith("one by one")


@pytest.mark.full
@pytest.mark.parametrize("name", LEAKING)
def test_what_mixes_padding_into_rows_is_not_compiled(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"{DIFFERS}|{FAILS}"):
        load("openvino", saved(name, tmp_path / "model"), pooling="mean")


def test_a_head_that_asks_for_more_than_rows(tmp_path: Path) -> None:
    save_transformer(twin("Longformer"), CLASSES[Use.RERANK], tmp_path / "model", num_labels=1)
    with pytest.raises(ModelError, match="LongformerForSequenceClassification can't be run on its own: AttributeErr"):
        load("transformers", tmp_path / "model")


@pytest.mark.parametrize("name", full_but(COMMON, [name for name in SERVED if twin(name).model_type in ADAPTERS]))
def test_fused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its forwards, by what its kernels mean."""
    monkeypatch.setattr(models, "NUM_POSITIONS", NUM_POSITIONS)
    folder = saved(name, tmp_path / "model")
    if name in NOT_FUSED:
        with pytest.raises(ModelError, match="sliding_window for a bidirectional"):
            models.load_fused(folder)
        return
    sequences = [[number or UNK for number in each] for each in texts(100)]  # the row of word 0 is poisoned there
    rows = models.load_fused(folder).token_rows(sequences)
    ends = np.cumsum([len(each) for each in sequences])[:-1]
    assert least_cosine(np.split(rows, ends), alone(folder, sequences)) >= MIN_COSINE


def test_fused_has_no_adapter_for_chunks(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="llama4_text"):
        load("fused", saved("Llama 4", tmp_path / "model"), pooling="mean")
