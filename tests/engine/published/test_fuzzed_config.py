"""config.json of models with code of their own, a key changed: rows as the reading has them with it, or a refusal."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest
from torch import Tensor
from transformers.activations import ACT2FN

from engine.types import ModelError
from tests.engine.published import (
    decoder,
    reading,
    test_gte,
    test_jina_bert,
    test_jina_roberta,
    test_llama_bidirec,
    test_nomic_moe,
)
from tests.engine.published.folders import Weights, arbitrary, save, sequences
from tests.parity.fuzzing import CONFIG, TRIAL, changed, drawn

pytestmark = [pytest.mark.full, pytest.mark.holds("What a model is for")]

NUM_CHANGES = 30  # of each form
_MEAN = {"Transformer": "", "Pooling:mean": "1_Pooling"}
_DEFAULTS = {"layer_norm_eps": 1e-12, "layer_norm_epsilon": 1e-5}  # of the authors' code
_GATED = {"geglu": "gelu", "reglu": "relu"}
_EPS, _HEADS = {"layer_norm_eps": "EPS"}, {"num_attention_heads": "N"}
Config = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One published model."""

    module: ModuleType  # of its reading
    config: Config
    weights: Callable[[], Weights]
    row: Callable[[Config, Weights, list[int]], Tensor]  # of a text
    modules: Mapping[str, str] = field(default_factory=lambda: _MEAN)
    activations: tuple[str, ...] = ()  # keys that name one
    names: Mapping[str, str]  # key -> the reading's name for it; other keys change nothing, or `row` reads them


def _of_jina_roberta(_: Config, weights: Weights, ids: list[int]) -> Tensor:
    return test_jina_roberta.token_rows(test_jina_roberta.of_task(weights, None), ids).mean(0)


FORMS = {
    "jina-embeddings-v3": Form(
        module=test_jina_roberta,
        config=test_jina_roberta.V3,
        weights=lambda: arbitrary(test_jina_roberta.with_adapters(test_jina_roberta.shapes())),
        row=_of_jina_roberta,
        modules={"custom_st.Transformer": "", "Pooling:mean": "1_Pooling"},
        names={**_EPS, **_HEADS, "rotary_emb_base": "THETA"},
    ),
    "jina-embeddings-v2": Form(
        module=test_jina_bert,
        config=test_jina_bert.CONFIG,
        weights=test_jina_bert.weights,
        row=lambda _, weights, ids: test_jina_bert.token_rows(weights, ids).mean(0),
        activations=("feed_forward_type",),
        names={**_EPS, **_HEADS},
    ),
    "gte-multilingual-base": Form(
        module=test_gte,
        config=test_gte.CONFIG,
        weights=lambda: test_gte.weights("new."),
        row=lambda config, weights, ids: test_gte.token_rows(config, weights, ids).mean(0),
        activations=("hidden_act",),
        names={**_EPS, **_HEADS},
    ),
    "nomic-embed-text-v2-moe": Form(
        module=test_nomic_moe,
        config=test_nomic_moe.CONFIG,
        weights=test_nomic_moe.weights,
        row=lambda _, weights, ids: test_nomic_moe.token_rows(weights, ids).mean(0),
        names={"layer_norm_epsilon": "EPS", "n_head": "N", "moe_top_k": "CHOSEN", "rotary_emb_base": "THETA"},
    ),
    "llama-nemotron-embed-1b-v2": Form(
        module=decoder,
        config=test_llama_bidirec.CONFIG,
        weights=lambda: arbitrary(decoder.shapes(test_llama_bidirec.CONFIG)),
        row=lambda config, weights, ids: decoder.token_rows(weights, config, ids).mean(0),
        names={},
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_change_is_served_as_the_code_computes_it_or_refused(name: str, tmp_path: Path) -> None:
    form = FORMS[name]
    weights = form.weights()
    folder = save(tmp_path / "model", form.config, weights, modules=form.modules)
    for seed in range(NUM_CHANGES):
        change = drawn(form.config, Random(f"{name} {seed}"))
        check_change(form, weights, changed(folder, tmp_path / str(seed), **change), change)


def check_change(form: Form, weights: Weights, folder: Path, change: Config) -> None:
    """Rows of a batch, as one forward pass of the engine gives them; or one line that names the file and the key."""
    print(change)  # what fails shows it
    (one, _), ((key, value),) = reading.together_and_alone(sequences(form.config["vocab_size"])), change.items()
    try:
        found, _ = reading.computed(reading.TRANSFORMERS, folder, one)
    except ModelError as error:
        line = str(error)
        names_weight = "weight" in line and str(folder) in line
        names_code = key in ("auto_map", "model_type") and ".json" in line  # what only that code has
        assert "\n" not in line
        assert (
            (CONFIG in line and key in line) or names_weight or names_code or any(words in line for words in TRIAL)
        ), line
        return
    with pytest.MonkeyPatch.context() as patch:
        if key in form.names:
            patch.setattr(form.module, form.names[key], _DEFAULTS[key] if value is ... else value)
        if key in form.activations and value is not ...:
            patch.setattr(reading, "gelu", ACT2FN[_GATED.get(value, value)])
        config = json.loads((folder / CONFIG).read_text())
        expected = [form.row(config, weights, ids) for ids in reading.ids_of(one)]
    assert reading.difference(found, expected) < 1e-5
