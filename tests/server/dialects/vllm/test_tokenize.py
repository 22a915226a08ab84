"""vLLM's /tokenize and /detokenize: ids of texts and of chats, and texts of ids."""

import json
from typing import Any

import pytest

from engine.types import OutputKind
from server.requests.errors import InvalidRequest, RequestError
from tests.server.asking import ask
from tests.server.edge import Edge, new_call, one_model, route_of
from tokenizer_pool.messages import TextRefusal, TextRefused
from tokenizer_pool.tasks import Chat

decode_tokenize = route_of("/tokenize").decode
decode_embeddings = route_of("/v1/embeddings").decode

HELLO = [{"role": "user", "content": "hi"}]


def answer(path: str, body: dict[str, Any]) -> Any:
    called = ask(path, body, OutputKind.POOLED)
    assert called.status == 200, called.body
    return json.loads(called.body)


@pytest.mark.holds("vLLM's own routes")
def test_ids_of_a_text_and_of_several() -> None:
    assert answer("/tokenize", {"prompt": "ab", "model": "x"}) == {
        "count": 2,
        "max_model_len": 16,
        "tokens": [97, 98],
        "token_strs": None,
    }
    assert answer("/tokenize", {"prompt": "ab", "return_token_strs": True})["token_strs"] == ["a", "b"]
    several = answer("/tokenize", {"prompt": ["ab", "c"], "return_token_strs": True})
    assert (several["count"], several["tokens"]) == ([2, 1], [[97, 98], [99]])
    assert several["token_strs"] == [["a", "b"], ["c"]]


@pytest.mark.holds("vLLM's own routes")
def test_a_word_behind_the_models_name_is_a_prompt() -> None:
    models = one_model(default_prompt="D: ", facts={"prompts": {"query": "Q: "}})
    named = {None: "D: ", "the-model": "D: ", "the-model:query": "Q: "}

    for name, prompt in named.items():
        body = json.dumps({"prompt": "a", "model": name}).encode()
        assert decode_tokenize(new_call(models=models), body).prompt == prompt


@pytest.mark.holds("vLLM's own routes")
def test_the_field_says_whose_body_it_is() -> None:
    assert isinstance(answer("/tokenize", {"inputs": "ab"}), list)
    refused = ask("/tokenize", {"inputs": "ab", "prompt": "cd"}, OutputKind.POOLED)
    assert (refused.status, json.loads(refused.body)["error_type"]) == (422, "Validation")
    missing = ask("/tokenize", {}, OutputKind.POOLED)
    assert json.loads(missing.body)["error"] == "inputs is missing"
    assert ask("/tokenize", {"prompt": ""}, OutputKind.POOLED).error()["type"] == "BadRequestError"


@pytest.mark.holds("vLLM's own routes")
def test_texts_of_ids_under_both_names() -> None:
    assert answer("/detokenize", {"tokens": [5, 6]}) == {"prompt": "5 6", "text": "5 6"}
    assert answer("/detokenize", {"tokens": [[5, 6], [7]]})["text"] == ["5 6", "7"]
    assert ask("/detokenize", {"tokens": "a"}, OutputKind.POOLED).error()["param"] == "tokens"


@pytest.mark.holds("Chats")
def test_a_chat_is_rendered_and_gets_no_special_tokens() -> None:
    asked: list[Any] = []

    async def render(chats: list[Chat], **_: Any) -> list[str]:
        asked.append(chats)
        return ["user: hi\n"]

    def prepare(edge: Edge) -> None:
        edge.tokenizers.render = render  # type: ignore[method-assign,assignment]

    def look(edge: Edge) -> None:
        ((texts, how),) = edge.tokenizers.asked
        assert (list(texts), how["add_special_tokens"], how["prompt"]) == (["user: hi\n"], False, "")

    called = ask("/tokenize", {"messages": HELLO}, OutputKind.POOLED, before=prepare, look=look)

    assert json.loads(called.body)["count"] == 9
    assert asked == [[Chat('[{"role":"user","content":"hi"}]', add_generation_prompt=True)]]


@pytest.mark.holds("Chats")
def test_a_model_without_a_template_says_so() -> None:
    async def render(*_: Any, **__: Any) -> list[str]:
        raise TextRefused(TextRefusal.NO_TEMPLATE, -1)

    def prepare(edge: Edge) -> None:
        edge.tokenizers.render = render  # type: ignore[method-assign]

    error = ask("/tokenize", {"messages": HELLO}, OutputKind.POOLED, before=prepare).error()
    assert (error["param"], "no chat template" in error["message"]) == ("messages", True)


PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


def decoded(body: dict[str, Any]) -> Any:
    return decode_tokenize(new_call(), json.dumps(body).encode())


def test_chats_become_plain_messages() -> None:
    request = decoded({"messages": [{"role": "user", "content": PARTS}, {"role": "assistant", "content": None}]})
    messages = [{"role": "user", "content": "a\nb"}, {"role": "assistant", "content": ""}]
    assert json.loads(request.items[0].messages) == messages
    several = decoded({"messages": [HELLO, HELLO], "continue_final_message": True})
    hello = Chat(json.dumps(HELLO, separators=(",", ":")), continue_final_message=True)
    assert (several.items, several.is_single) == ([hello, hello], False)
    assert decoded({"messages": HELLO, "add_generation_prompt": False, "add_special_tokens": True}).add_special_tokens


@pytest.mark.holds("Chats")
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [HELLO, []]}, "messages[1]"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
        ({"messages": [HELLO] * 5}, "messages"),
        ({"messages": HELLO, "chat_template": "{{ messages }}"}, "chat_template"),
        (
            {"messages": HELLO, "add_generation_prompt": True, "continue_final_message": True},
            "continue_final_message",
        ),
        ({"messages": [{"role": "user", "content": "a" * 2_000_000}]}, "messages"),
        ({"messages": HELLO, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"messages": HELLO, "chat_template_kwargs": {"add_generation_prompt": True}}, "chat_template_kwargs"),
        ({"messages": HELLO, "chat_template_kwargs": {"a": "b" * 2_000_000}}, "chat_template_kwargs"),
        ({"messages": HELLO, "chat_template_kwargs": [1]}, "chat_template_kwargs"),
        ({"prompt": "hi", "chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
        ({"prompt": HELLO}, "prompt[0].text"),
    ],
)
def test_chats_that_are_refused(body: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        decoded(body)
    assert refused.value.param == param


@pytest.mark.holds("Chats")
@pytest.mark.parametrize(("kwargs", "is_given"), [({"enable_thinking": False}, True), ({}, True), (None, False)])
def test_what_the_template_gets_besides_goes_with_each_chat(kwargs: Any, is_given: bool) -> None:
    request = decoded({"messages": [HELLO, HELLO], "chat_template_kwargs": kwargs})
    assert [json.loads(chat.template_kwargs) for chat in request.items] == [kwargs if is_given else {}] * 2


@pytest.mark.holds("Chats")
@pytest.mark.parametrize("path", ["/tokenize", "/v1/embeddings"])
def test_a_name_that_changes_nothing_is_refused(path: str) -> None:
    async def render(*_: Any, **__: Any) -> list[str]:
        raise TextRefused(TextRefusal.UNUSED, 0)

    def prepare(edge: Edge) -> None:
        edge.tokenizers.render = render  # type: ignore[method-assign]

    body = {"messages": HELLO, "chat_template_kwargs": {"enable_thinkin": False}}
    error = ask(path, body, OutputKind.POOLED, before=prepare).error()
    assert (error["param"], "template does not use" in error["message"]) == ("chat_template_kwargs", True)


def embedded(body: dict[str, Any]) -> Any:
    return decode_embeddings(new_call(), json.dumps(body).encode())


@pytest.mark.holds("Chats")
def test_chats_as_input_are_those_of_messages() -> None:
    fields = {"dimensions": 4, "add_generation_prompt": True, "chat_template_kwargs": {"a": 1}}
    for chats in (HELLO, [HELLO], [HELLO, [*HELLO, {"role": "assistant", "content": PARTS}]]):
        by_input, by_messages = (embedded({name: chats, **fields}) for name in ("input", "messages"))
        assert (by_input.items, by_input.is_single) == (by_messages.items, by_messages.is_single)
        assert (by_input.dimensions, by_input.add_special_tokens) == (4, False)
        assert (by_input.field, by_messages.field) == ("input", "messages")


@pytest.mark.parametrize(
    "items", ['a "role"', ["role", '"role"'], [{"text": "a", "role": "user"}], [{"text": '"role"'}, "b"]], ids=str
)
def test_texts_with_the_word_are_no_chats(items: Any) -> None:
    request = embedded({"input": items})
    assert all(isinstance(item, str) for item in request.items)


@pytest.mark.holds("Chats")
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": HELLO, "messages": HELLO}, "messages"),
        ({"input": [*HELLO, "a"]}, "input[0].text"),
        ({"input": [HELLO, []]}, "input[1]"),
        ({"input": [{"role": "user", "content": [{"type": "image_url"}]}]}, "input[0].content[0]"),
        ({"input": [HELLO] * 5}, "input"),
        ({"input": HELLO, "prompt_name": "query"}, "prompt_name"),
        ({"input": HELLO, "chat_template": "a"}, "chat_template"),
        ({"input": "a", "chat_template_kwargs": {"b": 1}}, "chat_template_kwargs"),
        ({"input": [{"content": "a" * 2_000_000, "role": "user"}]}, "input"),
        ({"input": [[{"role": "user", "content": "a" * 2_000_000}]]}, "input"),
    ],
)
def test_chats_as_input_that_are_refused(body: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        embedded(body)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input_type": "query"}, "input_type is not supported with chats"),
        ({"prompt": "a"}, "prompt is not supported with chats"),
    ],
)
def test_a_field_of_texts_is_refused_beside_chats(fields: dict[str, Any], message: str) -> None:
    for name in ("input", "messages"):
        with pytest.raises(InvalidRequest) as refused:
            embedded({name: HELLO, **fields})
        assert refused.value.message == message


def test_a_number_of_too_many_digits_for_a_template_is_refused() -> None:
    body = '{"input":[{"role":"user"}],"chat_template_kwargs":{"a":%s}}'
    with pytest.raises(InvalidRequest) as refused:
        decode_embeddings(new_call(), (body % ("1" * 5_000)).encode())
    assert refused.value.param == "chat_template_kwargs"
    decode_embeddings(new_call(), (body % ("1" * 4_000)).encode())


def test_a_large_text_with_the_word_is_no_chat() -> None:
    request = embedded({"input": [{"role": "user", "text": "a" * 2_000_000}]})
    assert len(request.texts[0]) == 2_000_000


def test_a_text_that_is_the_word_is_no_chat() -> None:
    assert decoded({"prompt": "messages"}).texts == ["messages"]
    with pytest.raises(InvalidRequest):
        decoded({"messages": None})
