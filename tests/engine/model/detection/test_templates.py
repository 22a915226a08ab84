"""The questions that generative rerankers are asked, against what their own libraries make of a pair."""

from pathlib import Path

import pytest

from engine.model import model_folder
from engine.model.model_folder import ModelFolder
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
    assert asked(model_folder.read(tmp_path, task="rerank")) == (
        "<bos>A: why?\nB: because\nGiven a query A and a passage B, determine whether the passage contains an answer "
        "to the query by providing a prediction of either 'Yes' or 'No'."
    )
