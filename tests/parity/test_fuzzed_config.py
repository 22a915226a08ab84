"""config.json with keys changed, added and dropped: a model is served with the rows that its library gives, or refused.

Half of the tests draw changes of keys that the library reads. The others add keys of other code and of older versions,
which the library would pass over without a word.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import pytest

from engine.model import model_folder
from engine.model.coverage import Use
from engine.types import ModelError
from tests.parity.architectures import ARCHITECTURES
from tests.parity.folders import save
from tests.parity.fuzzing import CONFIG, TRIAL, changed, check_rows, drawn, engines_of, rows_or_refusal
from tests.tiers import full_but

pytestmark = pytest.mark.holds("What a model is for")

NUM_CHANGES = 12  # of each architecture
# Key -> a value with which the code that it belongs to gives other rows.
FOREIGN: dict[str, Any] = {
    "position_embedding_type": "relative_key_query",
    "pruned_heads": {"0": [1]},
    "rotary_emb_interleaved": True,
    "rotary_emb_fraction": 0.5,
    "prenorm": True,
    "use_rms_norm": True,
    "parallel_block": True,
    "layer_norm_type": "rms_norm",
    "logn_attention_scale": True,
    "moe_every_n_layers": 2,
    "alibi": True,
    "per_layer_config": {"0": {"hidden_act": "relu"}},
}
OF_CODE = {"AutoModel": "modeling_own.OwnModel"}


@pytest.mark.full
@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_a_change_is_served_as_the_library_does_or_refused(name: str, tmp_path: Path) -> None:
    check_changes(name, tmp_path, range(NUM_CHANGES))


@pytest.mark.nightly
@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_so_are_random_changes(name: str, tmp_path: Path) -> None:
    first = SystemRandom().getrandbits(32)
    print(f"seeds from {first}")
    check_changes(name, tmp_path, range(first, first + NUM_CHANGES))


def check_changes(name: str, tmp_path: Path, seeds: Iterable[int]) -> None:
    folder = save(name, Use.EMBED, tmp_path / "model")
    settings = json.loads((folder / CONFIG).read_text())
    for seed in seeds:
        change = drawn(settings, Random(f"{name} {seed}"))
        copy = changed(folder, tmp_path / str(seed), **change)
        for engine in engines_of(name):
            print(engine, change)  # what fails shows it
            served = rows_or_refusal(name, copy, engine)
            if isinstance(served, str):
                assert any(word in served for word in (*change, CONFIG, str(copy), *TRIAL)), (change, served)
            else:
                check_rows(name, served, copy)


@pytest.mark.parametrize("name", full_but(("BERT", "NomicBERT", "Qwen3"), ARCHITECTURES))
def test_a_key_of_other_code_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    folder = save(name, Use.EMBED, tmp_path / "model")
    for key, value in FOREIGN.items():
        with pytest.raises(ModelError, match=f"'{key}'"):
            model_folder.read(changed(folder, tmp_path / key, **{key: value}))
    copy = changed(folder, tmp_path / "trusted", alibi=True)
    assert "--trust-config-key: alibi" in model_folder.read(copy, trusted_keys=("alibi",)).notes


@pytest.mark.parametrize("name", ["BERT", "Qwen3"])
def test_an_unknown_key_is_named_and_changes_nothing(name: str, tmp_path: Path) -> None:
    folder = save(name, Use.EMBED, tmp_path / "model")
    copy = changed(folder, tmp_path / "more", made_up_key=3, another_one={"a": 1})
    assert any("another_one, made_up_key" in note for note in model_folder.read(copy).notes)
    assert not any("does not read" in note for note in model_folder.read(folder).notes)
    served = rows_or_refusal(name, copy)
    assert not isinstance(served, str), served
    check_rows(name, served, folder)


@pytest.mark.parametrize("name", ["BERT", "NomicBERT", "Qwen2"])
def test_foreign_code_is_refused_unless_it_is_trusted(name: str, tmp_path: Path) -> None:
    folder = save(name, Use.EMBED, tmp_path / "model")
    copy = changed(folder, tmp_path / "code", auto_map=OF_CODE)
    with pytest.raises(ModelError, match=r"the code of modeling_own\.OwnModel"):
        model_folder.read(copy)
    assert model_folder.read(copy, trusted_keys=("auto_map",)).architecture == ARCHITECTURES[name].model_type
