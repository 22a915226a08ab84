"""What sequences of a batch begin with alike is computed once where the model allows it, and their rows stay."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModel

from engine.model.tasks import AnswerScore
from engine.transformers import attention, selftest
from engine.transformers.engine import TransformersEngine
from engine.transformers.forward import PackedForward
from engine.types import Batch, OutputKind
from tests.engine import engines
from tests.engine.engines import difference
from tests.engine.tiny_models import (
    GENERATING,
    GQA,
    SCORING_SEQUENCES,
    SHARED,
    Reference,
    WholeReference,
    arbitrary,
    batch,
    save,
    save_whole,
)
from tests.engine.transformers.loaded import load
from tests.engine.transformers.scored_models import choose

SHARING = ("qwen3", "qwen3 with a window", "mistral", "gemma2", "gemma3_text", "gpt2")
NOT_SHARING = ("bert", "modernbert", "llama, bidirectional", "gemma3_text, bidirectional", "mpnet")


@dataclasses.dataclass(frozen=True)
class Alike:
    """Sequences, and with how many tokens each begins as the one before."""

    sequences: list[list[int]]
    shared: list[int]

    @property
    def batch(self) -> Batch:
        return dataclasses.replace(batch(self.sequences), shared=np.array(self.shared, np.int32))

    @property
    def num_unique(self) -> int:
        return sum(map(len, self.sequences)) - sum(self.shared)


def alike() -> Alike:
    """Two prefixes, one of which gets shorter and is followed to its end, and sequences beside that share nothing."""
    first, second, *others = arbitrary((11, 20, 9, 3, 7, 8, 30, 1))
    a, b, c, d, e, f = others
    ends = [[*second[:19], 5], [*second[:19], 6], second[:2] + e]
    sequences = [first + a, first + b, first[:5] + c, d, second, *ends, f]
    return Alike(sequences, [0, 11, 5, 0, 0, 19, 19, 2, 0])


def save_lfm2(folder: Path) -> Path:
    """A model with convolutions, each of which sees the two tokens before."""
    torch.manual_seed(0)
    layers = {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}
    library: Any = AutoModel
    model = library.from_config(AutoConfig.for_model("lfm2", **(SHARED | GQA | layers)))
    model.save_pretrained(folder)
    return folder


def computed_rows(loaded: TransformersEngine, monkeypatch: pytest.MonkeyPatch, one: Batch) -> tuple[int, Any]:
    """How many rows the model ran on, and those of all tokens."""
    numbers: list[int] = []
    row = PackedForward._row

    def counting(self: PackedForward, values: NDArray[Any], num_filler: int) -> torch.Tensor:
        numbers.append(len(values))
        return row(self, values, num_filler)

    monkeypatch.setattr(PackedForward, "_row", counting)
    found = engines.results(loaded, dataclasses.replace(one, outputs=OutputKind.TOKENS))[OutputKind.TOKENS]
    return max(numbers, default=0), found.values


def own_rows(folder: Path, sequences: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    reference = Reference(folder)
    return np.concatenate([reference.token_rows(sequence) for sequence in sequences])


@pytest.mark.parametrize("family", SHARING)
def test_rows_are_those_of_the_class_alone_and_a_prefix_is_computed_once(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, given = save(family, tmp_path / "model"), alike()
    loaded = load(folder)
    assert loaded.info.shares_prefixes
    num_rows, rows = computed_rows(loaded, monkeypatch, given.batch)
    assert num_rows == given.num_unique
    assert difference(rows, own_rows(folder, given.sequences)) <= 1e-5
    loaded.close()


def test_a_prefix_that_gains_nothing_is_not_taken_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save("qwen3", tmp_path / "model")
    sequences = [[5, *ids] for ids in arbitrary((30, 30))]
    loaded = load(folder)
    num_rows, rows = computed_rows(loaded, monkeypatch, Alike(sequences, [0, 1]).batch)
    assert num_rows == 62
    assert difference(rows, own_rows(folder, sequences)) <= 1e-5
    loaded.close()


@pytest.mark.parametrize("family", NOT_SHARING)
def test_a_model_that_looks_ahead_shares_nothing_and_is_right(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, given = save(family, tmp_path / "model"), alike()
    loaded = load(folder)
    assert not loaded.info.shares_prefixes
    num_rows, rows = computed_rows(loaded, monkeypatch, given.batch)
    assert num_rows in (0, sum(map(len, given.sequences)))
    assert difference(rows, own_rows(folder, given.sequences)) <= 1e-5
    loaded.close()


def test_a_convolution_sees_other_tokens_of_the_row(tmp_path: Path) -> None:
    """It is causal, and each sequence needs those right before its own."""
    folder, given = save_lfm2(tmp_path / "model"), alike()
    loaded = load(folder)
    assert not loaded.info.shares_prefixes
    rows = engines.results(loaded, dataclasses.replace(given.batch, outputs=OutputKind.TOKENS))[OutputKind.TOKENS]
    assert difference(rows.values, own_rows(folder, given.sequences)) <= 1e-5
    loaded.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "bert"])
def test_what_the_class_says_of_itself_is_not_asked(
    family: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its configuration and its layers say the contrary of what it does, after that is settled."""
    share, is_causal = selftest._share_prefixes, family == "llama"

    def lying(forward: PackedForward, *others: Any) -> bool:
        forward.model.config.is_causal = not is_causal
        for layer in forward._visibilities:
            layer.is_causal = not is_causal  # type: ignore[assignment]
        return share(forward, *others)

    monkeypatch.setattr(selftest, "_share_prefixes", lying)
    loaded = load(save(family, tmp_path / "model"), dtype=dtype)
    assert loaded.info.shares_prefixes == is_causal
    loaded.close()


@pytest.mark.parametrize("prepacks", [False, True])
def test_scores_of_an_answer(prepacks: bool, tmp_path: Path) -> None:
    folder, given = save_whole("qwen3", tmp_path / "model", GENERATING), alike()
    reference = WholeReference(folder, GENERATING)
    logits = np.stack([reference.scores(sequence)[-1] for sequence in given.sequences])
    choice = choose(folder, AnswerScore(yes_id=11, no_id=7), prepacks=prepacks)
    assert choice.finding.shares_prefixes
    rows = choice.makers[OutputKind.LOGITS](choice.forward(given.batch), given.batch).values
    assert difference(rows, logits[:, [11]] - logits[:, [7]]) <= 1e-5


def test_scores_of_a_classifier(tmp_path: Path) -> None:
    folder = save_whole("qwen3", tmp_path / "model", SCORING_SEQUENCES, num_labels=2)
    given, reference = alike(), WholeReference(folder, SCORING_SEQUENCES)
    loaded = load(folder, task="classify")
    assert loaded.info.shares_prefixes
    rows = engines.rows(loaded, given.batch, OutputKind.LOGITS)
    assert difference(rows, np.stack([reference.scores(sequence) for sequence in given.sequences])) <= 1e-5
    loaded.close()


def test_the_finding_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, cache = save("qwen3", tmp_path / "model"), str(tmp_path / "cache")
    load(folder, cache_dir=cache).close()
    trials: list[int] = []
    may_share = selftest._may_share

    def counting(forward: PackedForward, alike: Batch, makers: Any) -> bool:
        trials.append(alike.num_tokens)
        return may_share(forward, alike, makers)

    monkeypatch.setattr(selftest, "_may_share", counting)
    again = load(folder, cache_dir=cache)
    assert again.info.shares_prefixes
    assert len(trials) == 1  # the longest one is left out
    again.close()
    other = save("bert", tmp_path / "bert")
    load(other, cache_dir=cache).close()
    trials.clear()
    load(other, cache_dir=cache).close()
    assert not trials


@pytest.mark.parametrize("fault", ["aligned at the first query", "a token too far"])
def test_wrong_attention_over_prefixes_is_found(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    visible = attention._visible

    def wrong(query: torch.Tensor, key: torch.Tensor, rule: attention._Rule) -> torch.Tensor:
        seen = visible(query, key, rule)
        if query.shape[2] == key.shape[2]:
            return seen
        return torch.tril(torch.ones_like(seen)) if fault.startswith("aligned") else seen.roll(1, dims=1)

    monkeypatch.setattr(attention, "_visible", wrong)
    loaded = load(save("qwen3", tmp_path / "model"))
    assert not loaded.info.is_padded
    assert not loaded.info.shares_prefixes
    loaded.close()
