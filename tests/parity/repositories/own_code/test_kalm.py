"""KaLM-Reranker-V1: scores are those of a reading of its code, documents and questions of all lengths side by side."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.model import model_folder
from engine.model.detection.templates import template_name
from engine.model.tasks import Activation, AnswerScore, Task
from engine.types import ModelError, OutputKind
from tests.engine.engines import load
from tests.engine.folder_files import change, write
from tests.engine.model.detection.shapes import tokenizer
from tests.parity.repositories.own_code import kalm
from tests.parity.repositories.own_code.forms import TRANSFORMERS, arbitrary, check, save
from tests.tiers import full

NEW = "model.encoder.text_model."  # as transformers 5.23 calls the encoder's weights
# Tokens of documents and questions: around chunks and windows, and a question without a document.
LENGTHS = ((5, 9), (0, 7), (1, 1), (40, 3), (3, 30), (4, 5), (17, 17), (8, 2), (9, 12), (90, 2), (2, 70))
OPTIONS = "kalm_cross_encoder_config.json"
CROSS_ENCODER = {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.activation.Sigmoid"}


def saved(folder: Path, *, text: str = "model.encoder.") -> Path:
    """As the repositories are since they are sentence-transformers' too."""
    save(folder, kalm.CONFIG, arbitrary(kalm.shapes(text)))
    tokenizer(folder)
    write(folder / OPTIONS, {"query_max_length": 512, "document_max_length": 1024, "encoder_chunk_size": 4})
    kind = "kalm_cross_encoder.KaLMCrossEncoderModule"
    (folder / "modules.json").write_text(f'[{{"idx": 0, "name": "0", "path": "", "type": "{kind}"}}]')
    write(folder / "config_sentence_transformers.json", CROSS_ENCODER)
    return folder


def pairs() -> list[tuple[list[int], list[int]]]:
    numbers = np.random.default_rng(3)
    drawn = [[numbers.integers(4, 99, length).tolist() for length in lengths] for lengths in LENGTHS]
    return [(document, [kalm.BOS, *question]) for document, question in drawn]


@pytest.mark.parametrize(("text", "chunk"), [("model.encoder.", 4), *full((NEW, 4), (NEW, None), (NEW, 3))])
def test_scores_are_those_of_the_code(text: str, chunk: int | None, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", text=text)
    write(folder / OPTIONS, {"encoder_chunk_size": chunk})
    weights = arbitrary(kalm.shapes(text))
    expected = [kalm.score(weights, *pair, text=text, chunk=chunk or 1) for pair in pairs()]
    loaded = load(TRANSFORMERS, folder)
    assert loaded.info.notes[0].startswith("padded")
    check(loaded, [document + question for document, question in pairs()], expected, output=OutputKind.LOGITS)


def test_it_is_a_reranker_with_the_template_of_its_card(tmp_path: Path) -> None:
    found = model_folder.read(saved(tmp_path / "model"))
    assert (found.task, found.activation, found.architecture) == (Task.RERANK, Activation.SIGMOID, "kalm_reranker")
    assert found.heads == (AnswerScore(yes_id=kalm.YES, no_id=kalm.NO),)
    assert template_name(found.template) == "KaLM-Reranker-V1"
    assert found.template is not None
    assert found.template.instruction == "Given a query, retrieve documents that answer the query."
    filled = "".join(found.template.parts).format(document="D", instruction="I", query="Q")
    assert filled == (
        "<Document>: D<bos><start_of_turn>user\nJudge whether the Document meets the requirements based on the Query "
        'and the Instruct provided. Note that the answer can only be "yes" or "no".\n\n<Instruct>: I\n<Query>: Q'
        "<end_of_turn>\n<start_of_turn>model\n\n\n\n"
    )
    with pytest.raises(ModelError, match="no embeddings"):
        model_folder.read(tmp_path / "model", task="embed")


def test_older_snapshots_are_told_by_their_name(tmp_path: Path) -> None:
    folder = tmp_path / "KaLM-Reranker-V1-Nano"
    saved(folder)
    for name in (OPTIONS, "modules.json", "config_sentence_transformers.json"):
        (folder / name).unlink()
    found = model_folder.read(folder)
    assert (found.task, found.config["encoder_chunk_size"]) == (Task.RERANK, 4)
    folder = folder.rename(tmp_path / "t5gemma-2-270m-270m")
    with pytest.raises(ModelError, match="encoder-decoder model"):
        model_folder.read(folder)


def test_its_instructions_can_be_others(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    change(folder / OPTIONS, system_instruction="Is it so?")
    change(folder / "config_sentence_transformers.json", prompts={"web": "Find it."}, default_prompt_name="web")
    template = model_folder.read(folder).template
    assert template is not None
    assert template.parts[2] == "user\nIs it so?\n\n<Instruct>: {instruction}\n<Query>: {query}"
    assert template.instruction == "Find it."
    change(folder / OPTIONS, system_instruction="Is {query} so?")
    with pytest.raises(ModelError, match="'system_instruction'"):
        model_folder.read(folder)


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("decoder", "attn_logit_softcapping", 50.0),
        ("decoder", "use_bidirectional_attention", True),
        ("decoder", "rope_interleaved", True),
        ("encoder", "attn_logit_softcapping", 50.0),
    ],
)
def test_what_the_librarys_layers_pass_over_is_refused(part: str, key: str, value: Any, tmp_path: Path) -> None:
    changed = {**kalm.CONFIG[part], key: value}
    if part == "encoder":
        changed = {**kalm.CONFIG[part], "text_config": {**kalm.CONFIG[part]["text_config"], key: value}}
    folder = saved(tmp_path / "model")
    change(folder / "config.json", **{part: changed})
    with pytest.raises(ModelError, match=key):
        model_folder.read(folder)


def test_openvino_refuses_it_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no form for an encoder and a decoder"):
        load("openvino", saved(tmp_path / "model"))
