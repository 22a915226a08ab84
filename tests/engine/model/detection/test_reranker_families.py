"""Whose template a reranker is asked with, told by its folder or by the start and never guessed; and each question."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.model import model_folder
from engine.model.detection.templates import template_name
from engine.model.model_folder import ModelFolder
from engine.model.tasks import Activation, AnswerScore, Task
from tests.engine.folder_files import change, write
from tests.engine.model.detection import shapes
from tests.engine.model.sentence_folder import refusal

# The beginning of Qwen/Qwen3-Reranker-0.6B's card. Its base model is a plain language model; its heading tells.
QWEN3_CARD = """---
license: apache-2.0
base_model:
- Qwen/Qwen3-0.6B-Base
library_name: transformers
pipeline_tag: text-ranking
---
# Qwen3-Reranker-0.6B

<p align="center">
"""
# Of tomaarsen/Qwen3-Reranker-0.6B-seq-cls, and of mixedbread's and ZeroEntropy's models made into classifiers.
CONVERTED_CARD = """---
tags: [transformers, text-ranking]
base_model: {base}
---
# A title
"""
EMBEDDING_CARD = """---
tags:
- sentence-transformers
- feature-extraction
---
# Qwen3-Embedding-0.6B

There is Qwen3-Reranker-0.6B too.
"""


def reranker(folder: Path, card: str = "", *, architecture: str = "Qwen3ForCausalLM") -> None:
    """With the chat template of a language model, in a folder whose name says nothing."""
    shapes.qwen3_reranker(folder)
    write(folder / "tokenizer_config.json", {"chat_template": "{%- if tools %}# Tools{% endif %}"})
    model_type = architecture.partition("For")[0].lower()
    change(folder / "config.json", architectures=[architecture], model_type=model_type, num_labels=1)
    if card:
        (folder / "README.md").write_text(card)


def test_a_reranker_in_a_folder_of_another_name_is_told_by_its_card(tmp_path: Path) -> None:
    reranker(tmp_path, QWEN3_CARD)
    found = model_folder.read(tmp_path)
    assert (found.task, found.task_source) == (Task.RERANK, "README.md names Qwen3-Reranker")
    assert found.heads == (AnswerScore(yes_id=5, no_id=6),)


@pytest.mark.parametrize(
    ("architecture", "base", "family"),
    [
        ("Qwen3ForSequenceClassification", "Qwen/Qwen3-Reranker-0.6B", "Qwen3-Reranker"),
        ("Qwen2ForSequenceClassification", "'mixedbread-ai/mxbai-rerank-base-v2'", "mxbai-rerank-v2"),
        ("Qwen3ForSequenceClassification", "\n- zeroentropy/zerank-2-reranker", "zerank"),
    ],
)
def test_a_classifier_is_told_by_the_model_that_it_was_made_from(
    tmp_path: Path, architecture: str, base: str, family: str
) -> None:
    reranker(tmp_path, CONVERTED_CARD.format(base=base), architecture=architecture)
    assert template_name(model_folder.read(tmp_path).template) == family


@pytest.mark.parametrize(
    ("architecture", "flags", "part"),
    [
        ("Qwen3ForCausalLM", {}, "give --task embed, or --task rerank with --template (Qwen3-Reranker, zerank, "),
        ("Qwen3ForCausalLM", {"task": "rerank"}, "give it as --template: Qwen3-Reranker, zerank, ctxl-rerank-v2, or"),
        ("Qwen3ForSequenceClassification", {}, "give --task rerank and --template (Qwen3-Reranker, zerank, "),
        ("Qwen2ForSequenceClassification", {}, "--template (mxbai-rerank-v2, none, or a file)"),
    ],
)
def test_where_nothing_tells_the_start_asks(
    tmp_path: Path, architecture: str, flags: dict[str, Any], part: str
) -> None:
    reranker(tmp_path, architecture=architecture)
    assert part in refusal(tmp_path, **flags)


def test_a_classifier_that_was_trained_anew_is_asked_for(tmp_path: Path) -> None:
    """Its trainer may have put pairs together in another way than its base model does."""
    card = CONVERTED_CARD.format(base="Qwen/Qwen3-Reranker-0.6B").replace("text-ranking", "generated_from_trainer")
    reranker(tmp_path, card, architecture="Qwen3ForSequenceClassification")
    assert "--template" in refusal(tmp_path)


@pytest.mark.parametrize(
    "say",
    [
        lambda folder: (folder / "README.md").write_text("---\ntags:\n- reward-model\n---\n"),
        lambda folder: change(folder / "config.json", _name_or_path="Skywork/Skywork-Reward-V2-Qwen3-0.6B"),
        lambda folder: change(folder / "config.json", sentence_transformers={"version": "5.1.0"}),
    ],
)
def test_reward_models_and_cross_encoders_have_no_template(tmp_path: Path, say: Callable[[Path], object]) -> None:
    reranker(tmp_path, architecture="Qwen3ForSequenceClassification")
    say(tmp_path)
    assert model_folder.read(tmp_path).template is None


@pytest.mark.parametrize("flags", [{}, {"task": "embed"}, {"pooling": "last-token"}])
def test_an_embedding_model_of_the_same_class_embeds(tmp_path: Path, flags: dict[str, Any]) -> None:
    reranker(tmp_path, "" if flags else EMBEDDING_CARD)
    assert model_folder.read(tmp_path, **flags).task is Task.EMBED


def test_a_listwise_reranker_is_refused(tmp_path: Path) -> None:
    """jina-reranker-v3 under a class of transformers; its projector would be passed over."""
    reranker(tmp_path, QWEN3_CARD)
    write(tmp_path / "added_tokens.json", {"<|embed_token|>": 30, "<|rerank_token|>": 31})
    assert "a listwise reranker, which is not supported" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("more", "flags"),
    [
        ({"auto_map": {"AutoModel": "modeling.JinaForRanking"}}, {}),
        ({"auto_map": {"AutoModel": "modeling.JinaForRanking"}}, {"trusted_keys": ["auto_map"]}),
        ({}, {}),
        ({}, {"task": "embed"}),
    ],
)
def test_a_listwise_reranker_is_refused_by_its_class(
    tmp_path: Path, more: dict[str, Any], flags: dict[str, Any]
) -> None:
    """Its rows are no embeddings either: a request's documents see each other."""
    shapes.config(tmp_path, "qwen3", "JinaForRanking", **more)
    shapes.weights(tmp_path / "model.safetensors")
    assert "JinaForRanking: a listwise reranker, which is not supported: it scores all" in refusal(tmp_path, **flags)


@pytest.mark.parametrize(
    ("name", "card", "part"),
    [
        (
            "model",
            "---\npipeline_tag: text-ranking\n---\n# Model\n",
            "README.md says 'text-ranking', and nothing in the",
        ),
        ("org-rerank-LW", "", "its name says 'rerank', and nothing in the folder says how the model gives scores"),
    ],
)
def test_a_reranker_without_scores_is_no_embedding_model(tmp_path: Path, name: str, card: str, part: str) -> None:
    """Such as writes the order of its documents: LightOn-rerank-LW."""
    folder = tmp_path / name
    folder.mkdir()
    reranker(folder, card, architecture="Qwen2ForConditionalGeneration")
    assert part in refusal(folder)
    assert "--template" not in refusal(folder)
    change(folder / "config.json", architectures=["LlamaForCausalLM"], model_type="llama")
    assert "or --task rerank with --template (Qwen3-Reranker, " in refusal(folder)
    assert model_folder.read(folder, task="embed").task is Task.EMBED
    assert model_folder.read(folder, pooling="mean").task is Task.EMBED
    (folder / "README.md").write_text(EMBEDDING_CARD)
    assert model_folder.read(folder).task is Task.EMBED


def test_a_template_from_a_file(tmp_path: Path) -> None:
    folder, file = tmp_path / "m", tmp_path / "template.json"
    folder.mkdir()
    reranker(folder)
    parts = ["Q {query}", "D {document}"]
    write(file, {"parts": parts, "yes": "hello"})
    found = model_folder.read(folder, template=str(file))
    assert found.template is not None
    assert (found.template.parts, found.template.instruction) == (tuple(parts), "")
    assert (found.heads, found.task_source) == ((AnswerScore(yes_id=10, no_id=None),), "--template")
    change(folder / "config.json", architectures=["Qwen3ForSequenceClassification"])
    scored = model_folder.read(folder, template=str(file))
    assert scored.template == found.template


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (None, "is neither a file nor one of Qwen3-Reranker"),
        ({"parts": ["{query}"], "yes": "yes"}, "is not a template with one query and one document"),
        ({"parts": ["{query}{document}"]}, 'needs "yes": "TOKEN" in it'),
        ({"parts": ["{query}{document}"], "yes": 5}, "is not a token's text"),
        ({"parts": ["{query}{document}"], "yes": "absent"}, "tokenizer.json has no token 'absent'"),
    ],
)
def test_wrong_files_of_templates(tmp_path: Path, content: object, part: str) -> None:
    folder, file = tmp_path / "m", tmp_path / "template.json"
    folder.mkdir()
    reranker(folder)
    if content is not None:
        write(file, content)
    assert part in refusal(folder, template=str(file))


def test_a_template_is_for_rerankers(tmp_path: Path) -> None:
    shapes.embedding(tmp_path)
    assert "--template is for rerankers, and this model is for embed" in refusal(tmp_path, template="zerank")
    reranker(tmp_path)
    (tmp_path / "modules.json").unlink()
    assert "a generative reranker needs one" in refusal(tmp_path, template="none")


def test_the_flag_outranks_the_folder(tmp_path: Path) -> None:
    shapes.qwen3_reranker(tmp_path)
    assert template_name(model_folder.read(tmp_path, template="ZERANK").template) == "zerank"
    change(tmp_path / "config.json", architectures=["Qwen3ForSequenceClassification"], num_labels=1)
    assert model_folder.read(tmp_path, template="none").template is None


def test_a_card_elsewhere_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    reranker(folder)
    (tmp_path / "README.md").write_text(QWEN3_CARD)
    (folder / "README.md").symlink_to(tmp_path / "README.md")
    assert "--template" in refusal(folder)


FILLED = {"{instruction}": "Do it.", "{query}": "why?", "{document}": "because"}


def asked(folder: ModelFolder, *, leave_out: str = "") -> str:
    """The parts in one text; `leave_out`: the place whose part is left out."""
    assert folder.template is not None
    parts = [part for part in folder.template.parts if not leave_out or leave_out not in part]
    text = "".join(parts)
    for place, filling in FILLED.items():
        text = text.replace(place, filling)
    return text


def test_qwen3_reranker_is_asked_as_its_model_card_says(tmp_path: Path) -> None:
    shapes.qwen3_reranker(tmp_path)
    assert asked(model_folder.read(tmp_path)) == (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        "<Instruct>: Do it.\n<Query>: why?\n<Document>: because<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


@pytest.mark.parametrize("leave_out", ["", "{instruction}"])
def test_mxbai_rerank_is_asked_as_its_library_does(tmp_path: Path, leave_out: str) -> None:
    shapes.mxbai_reranker(tmp_path)
    instruction = "" if leave_out else "instruction: Do it.\n"
    assert asked(model_folder.read(tmp_path), leave_out=leave_out) == (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        f"<|im_start|>user\n{instruction}query: why?\ndocument: because\n"
        "You are a search relevance expert who evaluates how well documents match search queries. For each "
        "query-document pair, carefully analyze the semantic relationship between them, then provide your binary "
        "relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:<|im_end|>\n<|im_start|>assistant\n"
    )


def test_bge_reranker_gemma_is_asked_as_its_library_does(tmp_path: Path) -> None:
    shapes.gemma_reranker(tmp_path)
    assert asked(model_folder.read(tmp_path, template="bge-reranker-v2-gemma")) == (
        "<bos>A: why?\nB: because\nGiven a query A and a passage B, determine whether the passage contains an answer "
        "to the query by providing a prediction of either 'Yes' or 'No'."
    )


@pytest.mark.parametrize("name", ["zerank-2-reranker", "zerank-1-small"])
def test_zerank_has_the_query_in_the_systems_turn(tmp_path: Path, name: str) -> None:
    """As its chat template puts a system's and a user's message (zeroentropy/zerank-2, modeling_zeranker.py)."""
    shapes.qwen3_reranker(tmp_path)
    code = {"AutoConfig": "modeling_zeranker.ZEConfig"}
    change(tmp_path / "config.json", _name_or_path=f"zeroentropy/{name}", auto_map=code)
    write(tmp_path / "tokenizer_config.json", {"chat_template": "stock"})
    found = model_folder.read(tmp_path)
    assert (
        asked(found)
        == "<|im_start|>system\nwhy?<|im_end|>\n<|im_start|>user\nbecause<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (found.heads, found.activation) == ((AnswerScore(yes_id=7, no_id=None),), Activation.IDENTITY)


@pytest.mark.parametrize("leave_out", ["", "{instruction}"])
def test_ctxl_rerank_has_the_document_first(tmp_path: Path, leave_out: str) -> None:
    """As its card does: format_prompts of ContextualAI/ctxl-rerank-v2-instruct-multilingual-1b."""
    shapes.qwen3_reranker(tmp_path)
    write(tmp_path / "tokenizer_config.json", {})
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["!"] = 12
    write(tmp_path / "tokenizer.json", tokenizer)
    found = model_folder.read(tmp_path, template="ctxl-rerank-v2")
    instruction = "" if leave_out else " Do it."
    assert asked(found, leave_out=leave_out) == (
        "Check whether a given document contains information helpful to answer the query.\n"
        f"<Document> because\n<Query> why?{instruction} ??"
    )
    assert found.heads == (AnswerScore(yes_id=12, no_id=None),)


_WORDS = 'Note that the answer can only be "yes" or "no".'


@pytest.mark.parametrize(
    ("pair", "is_own"),
    [
        (
            "{{ messages | map(attribute='role') | list == ['document', 'query'] }}",
            True,
        ),
        ("{{ messages[0].content }}", False),
    ],
)
def test_a_chat_template_with_places_for_a_pair_is_what_is_asked(tmp_path: Path, pair: str, is_own: bool) -> None:
    """It may have another order or other words than the family's, as sentence-transformers would render it."""
    reranker(tmp_path)
    write(tmp_path / "tokenizer_config.json", {"chat_template": f"{_WORDS} {pair}"})
    found = model_folder.read(tmp_path)
    assert found.task_source == "its chat template is that of Qwen3-Reranker"
    assert found.template is not None
    assert (found.template.chat is not None) == is_own
