"""The questions that generative rerankers are asked, against what their own libraries make of a pair."""

import json
from pathlib import Path

import pytest

from engine.model import model_folder
from engine.model.model_folder import ModelFolder
from engine.model.tasks import Activation, AnswerScore
from tests.engine.folder_files import change, write
from tests.engine.model.detection import shapes

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
    change(tmp_path / "config.json", _name_or_path=f"zeroentropy/{name}")
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
