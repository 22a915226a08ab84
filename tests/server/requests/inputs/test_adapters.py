"""The adapter of a request's task: which one it is, and how it reaches the engine."""

import json
from typing import Any

import numpy as np
import pytest

from server.dialects.openai import decode
from server.requests.errors import InvalidRequest
from server.requests.models import ModelTable, ServedModel
from server.requests.pipeline import parts_of
from server.requests.prompts import Purpose, adapter_for
from tests.server.edge import new_call, route_of, served_model
from tests.server.requests.embed_requests import a_request, embed
from tokenizer_pool.tasks import TokenizedTexts
from wire.parts import PROMPT_TOKEN, Part

ADAPTERS = ("retrieval.query", "retrieval.passage", "separation", "classification", "text-matching")
PROMPTS = {**dict.fromkeys(ADAPTERS, ""), "retrieval.query": "Represent: "}


def model(**changes: Any) -> ServedModel:
    return served_model(facts={"prompts": PROMPTS}, adapters=ADAPTERS, **changes)


@pytest.mark.holds("Adapters")
@pytest.mark.parametrize(
    ("fields", "adapter"),
    [
        ({}, 0),
        ({"task": "retrieval.query"}, 1),
        ({"task": "text-matching"}, 5),
        ({"input_type": "document"}, 2),
        ({"task": "clustering"}, 3),
        ({"prompt_name": "classification"}, 4),
        ({"prompt_name": "classification", "task": "retrieval.query"}, 4),
        ({"prompt": "Something: "}, 0),
        ({"prompt": "Something: ", "task": "separation"}, 3),
        ({"model": "any-name:retrieval.passage"}, 2),
    ],
)
def test_the_task_chooses_the_adapter(fields: dict[str, Any], adapter: int) -> None:
    call = new_call(models=ModelTable([model()]))
    assert decode(call, json.dumps({"input": "a", **fields}).encode()).adapter == adapter


@pytest.mark.holds("Adapters")
def test_the_default_prompts_adapter_is_for_texts_without_a_task() -> None:
    call = new_call(models=ModelTable([model(default_adapter="retrieval.passage")]))
    assert decode(call, b'{"input":"a"}').adapter == 2
    assert decode(call, b'{"input":"a","task":"retrieval.query"}').adapter == 1
    assert adapter_for(model(), Purpose.QUERY, field="task") == 1
    assert adapter_for(served_model(), Purpose.QUERY, field="task") == 0


V5 = ("retrieval", "text-matching", "clustering", "classification")


@pytest.mark.holds("Adapters")
@pytest.mark.parametrize(
    ("fields", "adapter", "prompt"),
    [
        ({}, "retrieval", "Document: "),
        ({"task": "retrieval"}, "retrieval", "Document: "),
        ({"task": "retrieval.query"}, "retrieval", "Query: "),
        ({"task": "retrieval.passage"}, "retrieval", "Document: "),
        ({"input_type": "query"}, "retrieval", "Query: "),
        ({"prompt_name": "query"}, "retrieval", "Query: "),
        ({"task": "clustering"}, "clustering", "Document: "),
        ({"task": "separation"}, "clustering", "Document: "),
        ({"task": "text-matching", "prompt_name": "query"}, "text-matching", "Query: "),
        ({"input_type": "classification", "prompt": ""}, "classification", ""),
        ({"model": "any-name:clustering"}, "clustering", "Document: "),
    ],
)
def test_prompts_and_adapters_of_different_names(fields: dict[str, Any], adapter: str, prompt: str) -> None:
    """As in jina-embeddings-v5, whose code takes a task and, beside it, the name of a prompt, by itself "document"."""
    prompts = {"query": "Query: ", "document": "Document: "}
    own = served_model(
        facts={"prompts": prompts}, adapters=V5, default_adapter="retrieval", default_prompt="Document: "
    )
    found = decode(new_call(models=ModelTable([own])), json.dumps({"input": "a", **fields}).encode())
    assert (V5[found.adapter - 1], found.prompt) == (adapter, prompt)
    with pytest.raises(InvalidRequest, match=r"task must name one of .*retrieval, "):
        decode(new_call(models=ModelTable([own])), b'{"input":"a","task":"poetry"}')


def test_chats_have_the_default_adapter_and_no_prompt() -> None:
    prompts = {"document": "Document: "}
    own = served_model(
        facts={"prompts": prompts}, adapters=V5, default_adapter="retrieval", default_prompt="Document: "
    )
    body = b'{"messages":[{"role":"user","content":"a"}]}'
    found = decode(new_call(models=ModelTable([own])), body)
    assert (found.adapter, found.prompt) == (1, "")


def test_an_unknown_task_is_refused() -> None:
    call = new_call(models=ModelTable([model()]))
    with pytest.raises(InvalidRequest, match="task"):
        decode(call, b'{"input":"a","task":"poetry"}')


@pytest.mark.parametrize("field", ["task", "input_type", "prompt_name"])
def test_a_task_with_a_prompt_and_no_adapter_is_refused(field: str) -> None:
    few = served_model(facts={"prompts": PROMPTS}, adapters=ADAPTERS[:2])
    with pytest.raises(InvalidRequest, match=f"^{field}: this model has no adapter for 'text-matching', only for retr"):
        decode(new_call(models=ModelTable([few])), json.dumps({"input": "a", field: "text-matching"}).encode())


def test_weaviates_task_type_without_an_adapter_is_refused() -> None:
    few = served_model(facts={"prompts": PROMPTS}, adapters=ADAPTERS[:1])
    assert weaviates(few, "query").adapter == 1
    with pytest.raises(
        InvalidRequest, match=r"^config\.task_type: this model has no adapter for 'document', only for r"
    ):
        weaviates(few, "passage")


def weaviates(model: ServedModel, task_type: str) -> Any:
    body = {"text": "a", "config": {"task_type": task_type}}
    return route_of("/vectors").decode(new_call(models=ModelTable([model])), json.dumps(body).encode())


def test_sequences_say_which_adapter_computes_them() -> None:
    ids, offsets = np.arange(5, dtype=np.int32), np.array([0, 2, 5], np.int32)
    tokens = TokenizedTexts(ids, offsets, np.zeros(2, np.uint8), {Part.MARKS: np.full(5, PROMPT_TOKEN, np.uint8)})
    assert set(parts_of(tokens, a_request())) == {Part.MARKS}
    parts = parts_of(tokens, a_request(adapter=3, query_adapter=1, num_queries=1))
    assert np.frombuffer(parts[Part.ADAPTERS], np.int32).tolist() == [1, 3]
    assert bytes(parts[Part.MARKS]) == bytes([PROMPT_TOKEN] * 5)


@pytest.mark.holds("Adapters")
def test_the_engine_gets_them_with_the_tokens() -> None:
    _, edge = embed(a_request(adapter=2))
    assert set(np.frombuffer(edge.managers.submitted[0].parts[Part.ADAPTERS], np.int32).tolist()) == {2}
    _, edge = embed(a_request())
    assert not edge.managers.submitted[0].parts
