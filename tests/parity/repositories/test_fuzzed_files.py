"""Changed files in the form of each repository: rows as the library's with the same change, or a line that names it.

tests/parity/test_fuzzed_config.py and test_fuzzed_weights.py do this with models as transformers saves them. These have
the keys and names of weights that are published, and words of their authors' code.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine.model import model_folder
from engine.model.known_code.table import find
from engine.types import ModelError
from tests.engine.engines import load
from tests.parity.fuzzing import CONFIG, TRIAL, changed, drawn
from tests.parity.repositories.facts import Repository
from tests.parity.repositories.folders import save_small, small
from tests.parity.repositories.test_rows import check, forms
from tests.parity.test_fuzzed_config import FOREIGN, OF_CODE

pytestmark = pytest.mark.holds("What a model is for")

NUM_CHANGES = 6  # of each form
_FILE = "model.safetensors"
_FEW = ("sentence-transformers/all-MiniLM-L6-v2", "Qwen/Qwen3-Embedding-0.6B")
# NomicBERT's words for what the library calls otherwise. Its other keys mean nothing to the library.
_OF_NOMIC = {
    "n_head": "num_attention_heads",
    "layer_norm_epsilon": "layer_norm_eps",
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_inner": "intermediate_size",
    "type_vocab_size": "type_vocab_size",
}


def each() -> Iterator[Any]:
    """A repository of each form that the library's own layers serve."""
    for repository, *_ in forms().values():
        marks = [] if repository.name in _FEW else [pytest.mark.full]
        if repository.table is None:
            yield pytest.param(repository, marks=marks, id=repository.name)


def saved(repository: Repository, path: Path) -> Path:
    """The small model. Its folder's name may be what tells its template."""
    return save_small(repository, path / repository.name.rpartition("/")[2])


def with_change(repository: Repository, change: Mapping[str, Any]) -> Repository:
    """The small repository with other settings, for the reference."""
    own = small(repository)
    config = {key: value for key, value in {**own.config, **change}.items() if value is not ...}
    library = own.library and with_same_words(own.library, change)
    return replace(own, files={**own.files, CONFIG: config}, library=library)


def with_same_words(library: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """The library's settings with the change, if it is of a key that means the same to both."""
    changed = {**library, **{key: value for key, value in change.items() if key in library}, **of_nomic(change)}
    return {key: value for key, value in changed.items() if value is not ...}


def of_nomic(change: Mapping[str, Any]) -> dict[str, Any]:
    """The same in the library's words."""
    found = {_OF_NOMIC[key]: value for key, value in change.items() if key in _OF_NOMIC and value is not ...}
    if "rotary_emb_base" in change:
        found["rope_parameters"] = {"rope_type": "default", "rope_theta": change["rotary_emb_base"]}
    return found


def check_change(repository: Repository, folder: Path, change: Mapping[str, Any]) -> None:
    """Rows as the reference's, or a refusal that names the file and the key, or a weight that does not fit it."""
    print(repository.name, change)  # what fails shows it
    try:
        engine = load("transformers", folder)
    except ModelError as error:
        check_line(str(error), folder, change)
        return
    try:
        check(engine, with_change(repository, change), folder)
    finally:
        engine.close()


def check_line(line: str, folder: Path, change: Mapping[str, Any]) -> None:
    """A key that is missing need not be named: the library's default may not fit the others."""
    ((key, value),) = change.items()
    names_weight = "weight" in line and (_FILE in line or str(folder) in line)
    names_module = "Dense/config.json needs rows of" in line or (key == "auto_map" and CONFIG in line)
    assert "\n" not in line
    named = (key, *value) if key == "text_config" and isinstance(value, dict) else (key,)
    names_key = any(name in line for name in named)
    names_it = (CONFIG in line and (names_key or value is ...)) or names_weight or names_module
    assert names_it or any(words in line for words in TRIAL), line


@pytest.mark.full
@pytest.mark.parametrize("repository", list(each()))
def test_a_change_of_a_key_is_served_as_the_library_does_or_refused(repository: Repository, tmp_path: Path) -> None:
    folder = saved(repository, tmp_path)
    for seed in range(NUM_CHANGES):
        change = drawn(small(repository).config, Random(f"{repository.name} {seed}"))
        check_change(repository, changed(folder, tmp_path / str(seed) / folder.name, **change), change)


@pytest.mark.parametrize("repository", list(each()))
def test_a_key_that_is_not_known_is_named(repository: Repository, tmp_path: Path) -> None:
    """Of known code it is refused, else noted; and no code that is not known is run."""
    folder = saved(repository, tmp_path)
    is_known = find(dict(repository.config)) is not None
    copies = {key: {key: value} for key, value in {**FOREIGN, "auto_map": OF_CODE, "made_up_key": 3}.items()}
    for key, change in copies.items():
        copy = changed(folder, tmp_path / key / folder.name, **change)
        if key == "made_up_key" and not is_known:
            assert any(key in note for note in model_folder.read(copy).notes)
            continue
        with pytest.raises(ModelError, match=f"{'[a-z_]+' if is_known else key}'? in {CONFIG}"):
            model_folder.read(copy)
