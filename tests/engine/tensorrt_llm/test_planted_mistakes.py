"""Mistakes that an engine like this one could have, planted in its own functions: each must show as wrong rows.

The stand-in holds nothing of the engine's, so nothing there makes up for one. Most of them give rows that look well:
the engine loads, finds each sequence's row the same alone and together, and only transformers knows better.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.tensorrt_llm import engine
from engine.tensorrt_llm.library import models
from engine.tensorrt_llm.library.models import attend_to_all, link_norms, pool, score_rows
from engine.tensorrt_llm.planning.head import PlannedHead
from engine.types import ModelError
from tests.engine.tensorrt_llm.models import Model, answering, embedding, scoring, with_options
from tests.engine.tensorrt_llm.parity import TOLERANCE, distance
from tests.engine.tensorrt_llm.stand_in import library

PLAINLY_WRONG = 1e-3  # far above what rounding does
BIDIRECTIONAL, CAUSAL, SCORES, ANSWERS = "bidirectional llama", "causal qwen3", "mistral scores", "qwen2 answers"
GRAPHS = "bidirectional llama with graphs"

Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Model]]:
    folder = tmp_path_factory.mktemp("models")
    bidirectional = embedding("llama", folder / "a", "mean", is_causal=False)
    with library():
        yield {
            BIDIRECTIONAL: bidirectional,
            GRAPHS: with_options(bidirectional, tensorrt_llm_cuda_graphs=True),
            CAUSAL: embedding("qwen3", folder / "b", "last"),
            SCORES: scoring("mistral", folder / "c"),
            ANSWERS: answering("qwen2", folder / "d", tie_word_embeddings=False),
        }


def in_models(name: str, wrong: Any) -> Plant:
    return lambda patch: patch.setattr(models, name, wrong)


def another_head(**fields: Any) -> Plant:
    right = PlannedHead.from_config
    return lambda patch: patch.setattr(
        PlannedHead, "from_config", lambda config: dataclasses.replace(right(config), **fields)
    )


def yes_and_no_swapped(patch: pytest.MonkeyPatch) -> None:
    right = PlannedHead.from_config

    def wrong(config: Any) -> PlannedHead:
        head = right(config)
        return dataclasses.replace(head, yes_id=head.no_id, no_id=head.yes_id)

    patch.setattr(PlannedHead, "from_config", wrong)


def only_the_first_layer(found: Iterable[Any], mask: Any) -> None:
    attend_to_all(list(found)[:1], mask)


def its_own_norm(backbone: Any) -> None:
    for layer in backbone.layers:
        layer.next_layer_layernorm = layer.input_layernorm


def the_last_norm_forgotten(backbone: Any) -> None:
    link_norms(backbone)
    backbone.layers[-1].next_layer_layernorm = None


def the_token_before(token_rows: Tensor, seq_lens: Tensor, kind: str) -> Tensor:
    ends = torch.cumsum(seq_lens, dim=0)
    return token_rows[torch.maximum(ends - 2, ends - seq_lens)].float()


def starts_for_ends(token_rows: Tensor, seq_lens: Tensor, kind: str) -> Tensor:
    return token_rows[torch.cumsum(seq_lens, dim=0) - seq_lens].float()


def mean_of_padded(token_rows: Tensor, seq_lens: Tensor, kind: str) -> Tensor:
    return pool(token_rows, seq_lens, kind) * (seq_lens / seq_lens.max())[:, None]


def the_neighbours_first_token_counts(token_rows: Tensor, seq_lens: Tensor, kind: str) -> Tensor:
    """searchsorted without `right`."""
    ends = torch.cumsum(seq_lens, dim=0)
    owners = torch.searchsorted(ends, torch.arange(len(token_rows)))
    sums = torch.zeros(len(ends), token_rows.shape[1]).index_add_(0, owners, token_rows)
    return sums / seq_lens[:, None]


def padding_counts_for_the_last(token_rows: Tensor, seq_lens: Tensor, kind: str) -> Tensor:
    """A recorded shape has more tokens than its sequences."""
    ends = torch.cumsum(seq_lens, dim=0)
    owners = torch.searchsorted(ends, torch.arange(len(token_rows)), right=True).clamp(max=len(ends) - 1)
    sums = torch.zeros(len(ends), token_rows.shape[1]).index_add_(0, owners, token_rows)
    return sums / seq_lens[:, None]


def a_number_is_read_back(token_rows: Tensor, seq_lens: Tensor, kind: str) -> Tensor:
    return pool(token_rows[: int(seq_lens.sum())], seq_lens, kind)


def no_rows(weights: Any, head: PlannedHead, *, is_tied: bool) -> None:
    return None


def rows_of_the_embedding(weights: Any, head: PlannedHead, *, is_tied: bool) -> Tensor | None:
    return score_rows(weights, head, is_tied=True)


def whole_models_alone(filtered: Any, prefix: str, weights: Any) -> Any:
    return filtered(prefix, weights)


def without_prefix_in_layers_alone(filtered: Any, prefix: str, weights: Any) -> Any:
    return filtered(prefix.replace("model.layers", "layers"), weights)


def bounds_off_by_one(patch: pytest.MonkeyPatch) -> None:
    def wrong(batch: Any, pad_id: int | None) -> list[list[int]]:
        ids, ends = batch.token_ids.tolist(), batch.cu_seqlens.tolist()
        return [ids[start:end] for start, end in zip([0, *ends[1:-1]], [end + 1 for end in ends[1:]], strict=True)]

    patch.setattr(engine, "_sequences", wrong)


# What it is, where it is planted, and the model that it is wrong about.
HIDDEN: list[tuple[str, Plant, str]] = [
    ("a causal mask where tokens see each other", in_models("attend_to_all", lambda found, mask: None), BIDIRECTIONAL),
    ("the full mask in the first layer alone", in_models("attend_to_all", only_the_first_layer), BIDIRECTIONAL),
    ("the full mask where it is causal", another_head(is_causal=False), CAUSAL),
    ("the token before the last one", in_models("pool", the_token_before), CAUSAL),
    ("starts taken for ends", in_models("pool", starts_for_ends), CAUSAL),
    ("another pooling than the model's", another_head(pooling="mean"), CAUSAL),
    ("norms that are not linked", in_models("link_norms", lambda backbone: None), BIDIRECTIONAL),
    ("each layer followed by its own norm", in_models("link_norms", its_own_norm), BIDIRECTIONAL),
    ("the last norm forgotten", in_models("link_norms", the_last_norm_forgotten), BIDIRECTIONAL),
    ("a score layer that was not loaded", in_models("score_rows", no_rows), SCORES),
    ("yes and no swapped", yes_and_no_swapped, ANSWERS),
    ("yes alone", another_head(no_id=None), ANSWERS),
    ("the embedding for the vocabulary's scores", in_models("score_rows", rows_of_the_embedding), ANSWERS),
]
# These the library refuses, or they come out differently in different batches, which the engine itself finds.
NOTICED: list[tuple[str, Plant, str]] = [
    (
        "a table of tokens that was not loaded",
        in_models("with_or_without_prefix", without_prefix_in_layers_alone),
        CAUSAL,
    ),
    ("a mean of padded sequences", in_models("pool", mean_of_padded), BIDIRECTIONAL),
    ("the neighbour's first token counts", in_models("pool", the_neighbours_first_token_counts), BIDIRECTIONAL),
    ("padding that counts for the last sequence", in_models("pool", padding_counts_for_the_last), GRAPHS),
    ("a number that is read back while a graph is recorded", in_models("pool", a_number_is_read_back), GRAPHS),
    ("one token too many", bounds_off_by_one, CAUSAL),
    ("a prefix that the file has not", in_models("with_or_without_prefix", whole_models_alone), CAUSAL),
]


@pytest.mark.parametrize("model", [BIDIRECTIONAL, GRAPHS, CAUSAL, SCORES, ANSWERS])
def test_without_a_mistake_rows_are_right(model: str, known: dict[str, Model]) -> None:
    assert distance(known[model]) <= TOLERANCE


@pytest.mark.holds("TensorRT-LLM rows equal transformers' rows")
@pytest.mark.parametrize(("plant", "model"), [rest for _, *rest in HIDDEN], ids=[name for name, *_ in HIDDEN])
def test_a_mistake_shows(plant: Plant, model: str, known: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert distance(known[model]) > PLAINLY_WRONG


@pytest.mark.parametrize(("plant", "model"), [rest for _, *rest in NOTICED], ids=[name for name, *_ in NOTICED])
def test_a_mistake_ends_the_start(
    plant: Plant, model: str, known: dict[str, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(ModelError, match=r"rows depend on the batch|not finite|can't (run|load) the model"):
        distance(known[model])
