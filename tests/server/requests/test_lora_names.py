"""The names of LoRA adapters among those of models: which is meant, and what metrics and the log call it."""

import json

import pytest

from server.requests.errors import InvalidRequest, ModelNotFound, NotReady
from server.requests.models import ModelTable
from server.requests.work import Trace
from tests.server.dialects.test_lora_on_every_route import with_loras
from tests.server.edge import answered, ready_state, served_model

pytestmark = pytest.mark.holds("Adapters")

PROMPTS = {"query": "Q: "}
BASE = served_model(name="base", facts={"prompts": PROMPTS})
LAW = served_model(name="law", parent="base", lora=1, facts={"prompts": PROMPTS})
OTHER = served_model(index=1, name="other")
PARENTS = {"law": "base"}


def test_an_exact_name_comes_first_then_the_models_and_its_own_then_a_word() -> None:
    """The name of a model may have colons of its own."""
    odd = served_model(index=3, name="base:law:v2")
    mail = served_model(index=1, name="mail", parent="other", lora=1)
    plain = served_model(index=2, name="plain")
    table = ModelTable([BASE, LAW, OTHER, mail, odd, plain], names=["base", "other", "plain", "base:law:v2"])
    for name, model in {
        "law": LAW,
        "base:law": LAW,
        "base:law:v2": odd,
        "base": BASE,
        "other": OTHER,
    }.items():
        assert table.choose(name) is model
    assert table.choose("law:query", with_prompt=True) is LAW
    assert table.choose("base:law:query", with_prompt=True) is LAW
    assert table.choose("base:query", with_prompt=True) is BASE
    assert table.choose("base:latest", with_prompt=True) is BASE
    assert table.choose("plain:anything", with_prompt=True) is plain  # it has no adapter that this could be
    for wrong in ("other:law", "base:other", "law:v2", "base:law:v3"):
        with pytest.raises(ModelNotFound):
            table.choose(wrong, with_prompt=True)


@pytest.mark.parametrize("is_strict", [False, True])
def test_one_model_with_adapters_takes_no_other_name(is_strict: bool) -> None:
    table = ModelTable([BASE, LAW], names=["base"], is_strict=is_strict)
    assert table.choose(None) is BASE
    for name in ("gpt", "lwa", "gpt:query", "LAW"):
        with pytest.raises(ModelNotFound):
            table.choose(name, with_prompt=True)
    if not is_strict:
        assert table.choose("") is BASE  # as good as none


@pytest.mark.parametrize("is_strict", [False, True])
def test_ollamas_word_is_taken_where_prompts_are_not(is_strict: bool) -> None:
    table = ModelTable([BASE, LAW, OTHER], names=["base", "other"], is_strict=is_strict)
    for name, model in {"law:latest": LAW, "base:law:latest": LAW, "base:latest": BASE, "other:latest": OTHER}.items():
        assert table.choose(name) is model
    for wrong in ("law:query", "base:query", "law:", "lwa:latest", "other:law:latest", "law:latest:latest", ":latest"):
        with pytest.raises(ModelNotFound):
            table.choose(wrong)


def test_a_path_names_it_too() -> None:
    table = ModelTable([BASE, LAW], names=["base"])
    assert table.named("law").choose("base") is LAW
    assert table.named("base").choose_lora("law", "ignored") is LAW
    with pytest.raises(InvalidRequest, match="lora_path differs from model"):
        ModelTable([BASE, LAW, OTHER]).named("other").choose_lora("law", None)


@pytest.mark.holds("A model never answers for another")
def test_an_adapter_whose_model_is_loading_is_not_another() -> None:
    table = ModelTable([OTHER], names=["base", "other"], parents=PARENTS)
    for name in ("law", "base:law", "law:query"):
        with pytest.raises(NotReady):
            table.choose(name, with_prompt=True)
    with pytest.raises(NotReady):
        table.choose_lora("law", None)
    with pytest.raises(ModelNotFound):
        table.choose("mail")
    assert table.own_name("base:law") == "law"


def test_metrics_have_the_models_name_and_the_log_both() -> None:
    traces: list[Trace] = []
    loaded = with_loras(ready_state())
    called = answered(
        "POST",
        "/v1/embeddings",
        {"model": "mail", "input": "a"},
        loaded=loaded,
        before=lambda edge: edge.change(finished=traces.append),
    )
    assert json.loads(called.body)["model"] == "mail"
    assert [(trace.model, trace.lora) for trace in traces] == [("the-model", "mail")]
