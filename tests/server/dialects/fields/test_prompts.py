"""What goes before a text: by prompt_name, prompt, input_type, task, or a word behind the model's name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from server.dialects.openai import decode
from server.requests.errors import InvalidRequest, ModelNotFound
from server.requests.models import ModelTable, ServedModel
from server.requests.prompts import Purpose, in_words, library_differences, prompt_for
from server.requests.work import EmbedRequest
from tests.engine.transformers.routed_models import same_for_both
from tests.server.edge import new_call, one_model, served_model

BOTH = {"query": "Q: ", "document": "D: "}
NOMIC = {"search_query": "sq: ", "search_document": "sd: ", "classification": "cl: ", "clustering": "ct: "}
JINA = {"retrieval.query": "rq: ", "retrieval.passage": "rp: ", "text-matching": "tm: ", "separation": "se: "}
GEMMA = {"query": "q: ", "document": "d: ", "Classification": "C: ", "Clustering": "K: ", "STS": "S: "}
STELLA = {"s2p_query": "s2p: ", "s2s_query": "s2s: "}
CUSTOM = {"code": "code: "}
EMPTY = {"query": "", "document": ""}  # as sentence-transformers writes them for a model that has none


def model_with(prompts: dict[str, str], **changes: Any) -> ServedModel:
    return served_model(facts={"prompts": prompts}, **changes)


def asked(prompts: dict[str, str], given: Any = "a", default_prompt: str = "", **fields: Any) -> EmbedRequest:
    models = ModelTable([model_with(prompts, default_prompt=default_prompt)])
    return decode(new_call(models=models), json.dumps({"input": given, **fields}).encode())


def refused(prompts: dict[str, str], given: Any = "a", **fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        asked(prompts, given, **fields)
    assert caught.value.message.startswith(str(caught.value.param))
    return caught.value


@pytest.mark.holds("Prompts")
@pytest.mark.parametrize(
    ("prompts", "word", "prompt"),
    [
        (BOTH, "query", "Q: "),
        (BOTH, "search_query", "Q: "),
        (BOTH, "retrieval.query", "Q: "),
        (BOTH, "passage", "D: "),
        (BOTH, "search_document", "D: "),
        (BOTH, "retrieval.passage", "D: "),
        (NOMIC, "query", "sq: "),
        (NOMIC, "document", "sd: "),
        (NOMIC, "classification", "cl: "),
        (NOMIC, "separation", "ct: "),
        (JINA, "query", "rq: "),
        (JINA, "document", "rp: "),
        (JINA, "text-matching", "tm: "),
        (JINA, "clustering", "se: "),
        (GEMMA, "search_query", "q: "),
        (GEMMA, "classification", "C: "),
        (GEMMA, "clustering", "K: "),
        (GEMMA, "text-matching", "S: "),
        (STELLA, "query", "s2p: "),
        (STELLA, "text-matching", "s2s: "),
        (STELLA, "document", ""),  # only queries have a prompt
        ({"passage": "P: "}, "query", ""),
        (CUSTOM, "code", "code: "),  # the model's own name for it
        (CUSTOM, "query", "default: "),  # it tells neither side
        ({}, "query", "default: "),
        ({}, "classification", "default: "),
        (EMPTY, "query", "default: "),
        (EMPTY, "classification", "default: "),
        ({"own": ""}, "own", ""),
        (BOTH, None, "default: "),
    ],
)
def test_a_purpose_finds_the_models_prompt(prompts: dict[str, str], word: str | None, prompt: str) -> None:
    for field in ("input_type", "task"):
        assert asked(prompts, default_prompt="default: ", **{field: word}).prompt == prompt
    name = "any-name" if word is None else f"any-name:{word}"
    assert asked(prompts, default_prompt="default: ", model=name).prompt == prompt


@pytest.mark.holds("Prompts")
@pytest.mark.parametrize("prompts", [{}, BOTH])
def test_an_unknown_purpose_is_refused(prompts: dict[str, str]) -> None:
    for field in ("input_type", "task"):
        error = refused(prompts, **{field: "nonsense"})
        assert error.param == field
        assert "search_query" in error.message
        assert "nonsense" not in error.message


@pytest.mark.holds("Prompts")
def test_a_purpose_that_a_model_with_prompts_has_none_for_is_refused() -> None:
    error = refused(BOTH, input_type="clustering")
    assert (error.param, "document, query" in error.message) == ("input_type", True)


@pytest.mark.holds("Prompts")
def test_a_prompt_may_be_a_text_and_outranks_the_purpose() -> None:
    assert asked(BOTH, prompt="My own: ").prompt == "My own: "
    assert asked(BOTH, prompt="", default_prompt="D: ").prompt == ""
    assert asked(BOTH, prompt="My own: ", input_type="query", model="m:document").prompt == "My own: "
    assert asked(BOTH, prompt_name="document", task="query").prompt == "D: "
    assert asked(BOTH, input_type="query", model="m:document").prompt == "Q: "


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": "a", "prompt_name": "query"}, "prompt"),
        ({"input_type": "query", "task": "query"}, "task"),
        ({"prompt": "x" * 129}, "prompt"),
        ({"prompt_name": "nonsense"}, "prompt_name"),
        ({"prompt": "x", "input_type": "nonsense"}, "input_type"),
        ({"prompt": 5}, "prompt"),
        ({"input_type": ["query"]}, "input_type"),
    ],
)
def test_what_can_not_be_is_refused(fields: dict[str, Any], param: str) -> None:
    assert refused(BOTH, **fields).param == param


@pytest.mark.parametrize("field", ["prompt", "prompt_name", "input_type", "task"])
def test_ids_take_no_prompt(field: str) -> None:
    assert refused(BOTH, [5, 6], **{field: "query"}).param == field


def test_ids_and_a_purpose_without_a_prompt_go_together() -> None:
    assert asked({}, [5, 6], input_type="query").prompt == ""
    assert asked({"query": "Q: "}, [5, 6], input_type="document").prompt == ""
    assert refused(BOTH, [5, 6], model="m:query").param == "model"


@pytest.mark.holds("Prompts")
def test_the_word_behind_a_name_chooses_among_several_models() -> None:
    models = ModelTable([model_with(BOTH, name="org/one"), model_with({}, name="two:v2", index=1)], is_strict=True)

    def prompt(name: str) -> tuple[str, str]:
        request = decode(new_call(models=models), json.dumps({"input": "a", "model": name}).encode())
        return request.model.name, request.prompt

    assert prompt("org/one:query") == ("org/one", "Q: ")
    assert prompt("org/one") == ("org/one", "")
    assert prompt("org/one:latest") == ("org/one", "")
    assert prompt("two:v2") == ("two:v2", "")
    assert prompt("two:v2:passage") == ("two:v2", "")
    for unknown in ("three:query", "two:query", "query", ":query"):
        with pytest.raises(ModelNotFound):
            prompt(unknown)
    for word in ("nonsense", ""):
        with pytest.raises(InvalidRequest, match=r"^model must name one of "):
            prompt(f"org/one:{word}")


def test_only_routes_with_prompts_take_a_word_behind_the_name() -> None:
    with pytest.raises(ModelNotFound):
        ModelTable([served_model(name="one"), served_model(name="two", index=1)]).choose("one:query")


@pytest.mark.holds("Prompts")
def test_a_single_model_takes_any_name_with_a_colon() -> None:
    for name in ("other:v1", "http://somewhere", "the-model:latest"):
        assert asked(BOTH, model=name).prompt == ""
    assert one_model().choose("a:b", with_prompt=True).name == "the-model"


def test_each_purpose_has_names_of_its_own() -> None:
    names = [name for purpose in Purpose for name in purpose.value]
    assert len(set(names)) == len(names)
    assert prompt_for(model_with(BOTH), Purpose.SIMILARITY) is None


# What sentence-transformers 6 writes where the authors' files have the rest: it fills in what is not there.
FILLED = {"query": "", "document": ""}


@pytest.mark.holds("Prompts")
@pytest.mark.parametrize(
    ("prompts", "default", "word", "prompt"),
    [
        ({**FILLED, "query": "Q: ", "passage": "P: "}, "", "document", "P: "),
        ({**FILLED, "query": "Q: ", "corpus": "P: "}, "Q: ", "document", "P: "),
        ({**FILLED, "search_query": "Q: "}, "", "query", "Q: "),
        ({**FILLED, "search_query": "Q: "}, "Q: ", "document", ""),
        ({**FILLED, "search": "S: "}, "S: ", "query", "S: "),
        ({**FILLED, "search": "S: "}, "S: ", "document", "S: "),
        ({**FILLED, "query": "Q: "}, "Q: ", "document", ""),
        (FILLED, "", "query", ""),
        (FILLED, "D: ", "document", "D: "),
    ],
)
def test_an_empty_prompt_says_nothing(prompts: dict[str, str], default: str, word: str, prompt: str) -> None:
    assert asked(prompts, default_prompt=default, input_type=word).prompt == prompt
    assert asked(prompts, default_prompt=default, prompt_name="query").prompt == prompts.get("query", "")


@pytest.mark.parametrize(
    ("prompts", "default", "differing"),
    [
        ({}, "", []),
        (BOTH, "Q: ", []),
        (FILLED, "", []),
        ({"query": "Q: "}, "Q: ", []),
        ({"query": "Q: ", "passage": "P: "}, "", ["has '' before a document (encode_document), and here it is 'P: '"]),
        (
            {"search": "S: "},
            "S: ",
            [f"has '' before a {word} (encode_{word}), and here it is 'S: '" for word in ("query", "document")],
        ),
    ],
)
def test_where_the_library_takes_other_prompts(prompts: dict[str, str], default: str, differing: list[str]) -> None:
    found = library_differences(model_with(prompts, default_prompt=default))
    assert found == [f"sentence-transformers 6.2 {each}" for each in differing]


@pytest.mark.parametrize(
    ("prompts", "default"),
    [
        *(
            (prompts, None)
            for prompts in ({}, {"query": "w9 "}, {"query": "w9 ", "passage": "w10 "}, {"corpus": "w9 "})
        ),
        *(
            ({"search": "w9 "}, "search"),
            ({"query": "w9 ", "document": "w10 "}, "query"),
            ({"passage": "w9 "}, "passage"),
        ),
    ],
)
def test_that_is_what_the_library_does(prompts: dict[str, str], default: str | None, tmp_path: Path) -> None:
    """What the library puts before a text is read off its rows."""
    saved = same_for_both(tmp_path / "model")
    saved.prompts, saved.default_prompt_name = dict(prompts), default
    saved.save_pretrained(str(tmp_path / "again"), create_model_card=False)
    library = SentenceTransformer(str(tmp_path / "again"), device="cpu")
    model = model_with(prompts, default_prompt=prompts.get(default or "", ""))
    differing = library_differences(model)
    for word, encode in (("query", library.encode_query), ("document", library.encode_document)):
        ours = asked(prompts, default_prompt=model.default_prompt, input_type=word).prompt
        is_same = np.allclose(encode("w5 w6 w7"), library.encode("w5 w6 w7", prompt=ours), atol=1e-6)
        assert is_same == (not any(f"encode_{word}" in line for line in differing))


@pytest.mark.holds("Prompts")
@pytest.mark.parametrize(
    ("prompts", "default", "said"),
    [
        (
            BOTH,
            "",
            'prompts query, document: send queries with "input_type": "query", which puts \'Q: \' before each, and '
            "documents with \"document\", which puts 'D: '; a text without input_type gets nothing",
        ),
        (
            STELLA | {"s2p_query": "i" * 500},
            "d: ",
            'prompts s2p_query, s2s_query: send queries with "input_type": "query", which puts '
            f"'{'i' * 199}…' before each, and documents with \"document\", which puts nothing; a text without "
            "input_type gets 'd: '",
        ),
        (
            {"Query": "Q: ", "retrieval": "R: "},
            "",
            "prompts Query, retrieval: by its name none of these is for queries or for documents, and nothing is put "
            'before either: choose one by "prompt_name", or by its name as "input_type"',
        ),
        (
            {"query": "", "document": "", "Query": "Q: "},
            "",
            "prompts Query: by its name none of these is for queries or for documents, and nothing is put before "
            'either: choose one by "prompt_name", or by its name as "input_type"',
        ),
        (
            {"Query": "Q: "},
            "Q: ",
            'prompts Query: send queries with "input_type": "query", which puts \'Q: \' before each, and documents '
            "with \"document\", which puts 'Q: '; a text without input_type gets 'Q: '",
        ),
    ],
    ids=["both", "long", "other names", "an empty side", "a default of another name"],
)
def test_prompts_in_words(prompts: dict[str, str], default: str, said: str) -> None:
    assert in_words(model_with(prompts, default_prompt=default)) == said
