"""Which model a request is for."""

import pytest

from server.requests.errors import ModelNotFound, NotReady
from server.requests.models import ModelTable
from tests.server.edge import served_model

ONE, TWO = served_model(name="one"), served_model(index=1, name="two")


@pytest.mark.holds("Requests and answers")
def test_one_model_answers_to_any_name() -> None:
    table = ModelTable([ONE], names=["one"])
    assert [table.choose(name) for name in ("one", "gpt", "", None)] == [ONE] * 4


@pytest.mark.holds("Requests and answers")
def test_unless_names_are_taken_at_their_word() -> None:
    table = ModelTable([ONE], names=["one"], is_strict=True)
    assert [table.choose(name) for name in ("one", None)] == [ONE] * 2
    for name in ("gpt", ""):
        with pytest.raises(ModelNotFound):
            table.choose(name)


def test_several_models_are_chosen_by_name() -> None:
    table = ModelTable([ONE, TWO], names=["one", "two"])
    assert [table.choose(name) for name in ("one", "two")] == [ONE, TWO]
    for name in ("gpt", "", None):
        with pytest.raises(ModelNotFound) as refused:
            table.choose(name)
        assert ("several models" in refused.value.message) == (name is None)


@pytest.mark.holds("A model never answers for another")
def test_a_model_that_is_loading_is_not_another() -> None:
    table = ModelTable([TWO], names=["one", "two"])
    assert table.choose("two") is TWO
    with pytest.raises(NotReady):
        table.choose("one")
    with pytest.raises(ModelNotFound):
        table.choose("gpt")
