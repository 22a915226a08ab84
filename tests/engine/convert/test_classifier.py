"""A generative reranker made a classifier: its scores are the reranker's, and its template is found again."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from engine.convert import classifier
from engine.convert.classifier import Classifier
from engine.model import model_folder
from engine.model.model_folder import ModelFolder
from engine.model.tasks import Activation, AnswerScore, SequenceScores, Task
from engine.transformers.loading import load_model
from engine.transformers.selftest import choose_forward
from engine.types import ModelError, OutputKind
from tests.engine.engines import difference
from tests.engine.folder_files import change, write
from tests.engine.model.detection import shapes
from tests.engine.tiny_models import GENERATING, WholeReference, arbitrary, save_whole
from tests.engine.transformers.scored_models import SEQLENS, compute

YES, NO = shapes.WORDS.index("yes"), shapes.WORDS.index("no")


def reranker(folder: Path, *, family: str = "qwen3", chat: str = shapes.QWEN3_CHAT, **others: Any) -> Path:
    save_whole(family, folder, GENERATING, **others)
    shapes.tokenizer(folder)
    write(folder / "tokenizer_config.json", {"chat_template": chat, "pad_token": "[PAD]"})
    return folder


def scores(found: ModelFolder, sequences: list[list[int]]) -> NDArray[np.float32]:
    """[B, 1], by our own engine."""
    choice = choose_forward(load_model(found, dtype=torch.float32), found)
    return compute(choice, OutputKind.LOGITS, sequences).values


@pytest.mark.parametrize("is_tied", [True, False])
def test_scores_are_those_of_the_reranker(is_tied: bool, tmp_path: Path) -> None:
    original = reranker(tmp_path / "model", tie_word_embeddings=is_tied)

    done = classifier.convert(original, tmp_path / "out")

    assert done == Classifier(tmp_path / "out", "Qwen3-Reranker", (YES, NO))
    before, after = model_folder.read(original), model_folder.read(done.folder)
    assert (before.heads, after.heads) == (
        (AnswerScore(yes_id=YES, no_id=NO),),
        (SequenceScores(labels=("LABEL_0",)),),
    )
    assert after.task is Task.RERANK
    assert after.activation is Activation.SIGMOID
    assert after.template == before.template
    sequences = arbitrary(SEQLENS)
    expected = scores(before, sequences)
    assert difference(scores(after, sequences), expected) <= 1e-5
    theirs = AutoModelForSequenceClassification.from_pretrained(done.folder, dtype=torch.float32)
    with torch.inference_mode():
        rows = [theirs(torch.tensor([sequence])).logits[0].numpy() for sequence in sequences]
    assert difference(np.stack(rows), expected) <= 1e-5
    assert np.ptp(expected) > 0.1
    assert "lm_head.weight" not in load_file(done.folder / "model.safetensors")


def test_an_answer_of_one_token(tmp_path: Path) -> None:
    """Gemma's reranker has no chat template, so that only what is noted tells the classifier how to ask."""
    original = reranker(tmp_path / "bge-reranker-v2-gemma", family="gemma", chat="")

    done = classifier.convert(original, tmp_path / "out")

    before, after = model_folder.read(original), model_folder.read(done.folder)
    sequences = arbitrary(SEQLENS)
    logits = np.stack([WholeReference(original, GENERATING).scores(sequence)[-1] for sequence in sequences])
    assert difference(scores(after, sequences), logits[:, [shapes.WORDS.index("Yes")]]) <= 1e-5
    assert after.template == before.template
    assert after.template is not None


def test_shards_and_lower_dtypes(tmp_path: Path) -> None:
    """The head keeps float32, the rest is as it was, and the index names what there is."""
    original = tmp_path / "model"
    model = GENERATING.from_pretrained(reranker(tmp_path / "whole", tie_word_embeddings=False), dtype=torch.bfloat16)
    model.save_pretrained(original, max_shard_size="20KB")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (original / name).write_bytes((tmp_path / "whole" / name).read_bytes())
    shards = sorted(original.glob("model-*.safetensors"))
    assert len(shards) > 1

    out = classifier.convert(original, tmp_path / "out").folder

    tensors = {name: tensor for shard in shards for name, tensor in load_file(out / shard.name).items()}
    rows = model.lm_head.weight.detach().float()
    assert torch.equal(tensors["score.weight"], (rows[YES] - rows[NO])[None])
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == tensors.keys()
    assert index["metadata"]["total_size"] == sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    assert tensors.keys() == model.state_dict().keys() - {"lm_head.weight"} | {"score.weight"}
    for name in tensors.keys() - {"score.weight"}:
        assert torch.equal(tensors[name], model.state_dict()[name])
    assert model_folder.read(out).task is Task.RERANK


def test_what_sentence_transformers_has_saved(tmp_path: Path) -> None:
    """Its modules go, as they tell it to generate; the instruction that it has is kept with the template."""
    original = reranker(tmp_path / "model")
    shapes.logit_score(tmp_path / "shape")
    names = ("modules.json", "s1/config.json", shapes.CONFIG, "sentence_bert_config.json", "chat_template.jinja")
    for name in names:
        (original / name).parent.mkdir(exist_ok=True)
        (original / name).write_bytes((tmp_path / "shape" / name).read_bytes())
    change(original / shapes.CONFIG, prompts={"own": "Find it"}, default_prompt_name="own")
    before = model_folder.read(original, template="Qwen3-Reranker")
    assert before.template is not None
    assert before.template.instruction == "Find it"
    assert "name one that it can by --template" in refusal(original, tmp_path / "out")

    out = classifier.convert(original, tmp_path / "out", template="Qwen3-Reranker").folder

    after = model_folder.read(out)
    assert after.template == before.template
    assert {file.name for file in out.iterdir()}.isdisjoint(name.split("/")[0] for name in names[:-1])


def refusal(folder: Path, out: Path) -> str:
    with pytest.raises(ModelError) as refused:
        classifier.convert(folder, out)
    assert not out.exists()
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_what_is_no_generative_reranker(tmp_path: Path) -> None:
    shapes.cross_encoder(tmp_path / "scores")
    assert "is for generative rerankers" in refusal(tmp_path / "scores", tmp_path / "out")
    shapes.embedding(tmp_path / "embeds")
    assert "--task rerank: the model is not for this" in refusal(tmp_path / "embeds", tmp_path / "out")


def test_weights_that_are_not_as_they_should_be(tmp_path: Path) -> None:
    shapes.qwen3_reranker(tmp_path / "model")  # which has no vocabulary
    assert "needs the rows of the vocabulary" in refusal(tmp_path / "model", tmp_path / "out")
    shapes.weights(tmp_path / "model" / "model.safetensors", lm_head__weight=(3, shapes.HIDDEN_SIZE))
    assert "has no plain rows for the tokens 5, 6" in refusal(tmp_path / "model", tmp_path / "out")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"\xff" * 32)
    assert "safetensors" in refusal(tmp_path / "model", tmp_path / "out")
    (tmp_path / "model" / "model.safetensors").unlink()
    assert "convert the model without this flag first" in refusal(tmp_path / "model", tmp_path / "out")


@pytest.mark.parametrize(
    "noted",
    [{"parts": ["{query}"], "instruction": ""}, {"parts": "{query}{document}", "instruction": ""}, {"parts": [1]}, [1]],
)
def test_a_template_that_is_none_is_refused(noted: Any, tmp_path: Path) -> None:
    shapes.reward(tmp_path)
    change(tmp_path / "config.json", embedline_template=noted)
    with pytest.raises(ModelError, match="'embedline_template' in"):
        model_folder.read(tmp_path)


def test_the_original_is_as_it_was(tmp_path: Path) -> None:
    original = reranker(tmp_path / "model")
    before = {file.name: file.read_bytes() for file in original.iterdir()}
    classifier.convert(original, tmp_path / "out")
    assert {file.name: file.read_bytes() for file in original.iterdir()} == before
