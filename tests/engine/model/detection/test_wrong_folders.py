"""Folders that can't be, whether by accident or by an attacker: each is refused with one line, and no link followed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.model import model_folder
from engine.model.model_folder import check_special_tokens
from engine.model.tasks import Activation, SequenceScores, Task, TokenVectors
from engine.types import ModelError, OutputKind
from tests.engine.folder_files import change, write
from tests.engine.model.detection import shapes
from tests.engine.model.sentence_folder import refusal
from wire import files

pytestmark = pytest.mark.holds("What a model is for")

Build = Callable[[Path], None]
BERT_FILE = "sentence_bert_config.json"
LABELS: list[tuple[dict[str, Any], str]] = [
    ({"id2label": {"0": "a", "2": "b"}}, "does not number its 2 labels"),
    ({"id2label": {"0": "a"}, "num_labels": 7}, "1 labels, and num_labels is 7"),
    ({"id2label": {"0": "a", "1": "b"}}, "'classifier.out_proj.weight' in model.safetensors gives 7 scores"),
    ({"id2label": None}, "config.json names 2 labels"),
    ({"id2label": ["a"]}, "'id2label'"),
    ({"problem_type": "guessing"}, "problem_type"),
    ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}}, "Tanh"),
]


@pytest.mark.parametrize(
    ("fields", "activation"),
    [
        ({}, Activation.SIGMOID),
        ({"problem_type": "single_label_classification"}, Activation.SOFTMAX),
        ({"problem_type": "regression"}, Activation.IDENTITY),
        ({"problem_type": None}, Activation.SOFTMAX),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, Activation.IDENTITY),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.activation.Softmax"}, Activation.SOFTMAX),
        ({"sentence_transformers": {"activation_fn": "theirs.Activation"}}, Activation.SIGMOID),
    ],
)
def test_the_activation_is_the_models_own(tmp_path: Path, fields: dict[str, Any], activation: Activation) -> None:
    shapes.classifier(tmp_path)
    change(tmp_path / "config.json", **fields)
    found = model_folder.read(tmp_path)
    assert found.activation is activation
    assert any("never run" in note for note in found.notes) == ("theirs" in str(fields))


@pytest.mark.parametrize(
    ("build", "task", "part"),
    [
        (shapes.embedding, "rerank", "--task rerank: the model is not for this; it is for embed (modules.json)"),
        (shapes.embedding, "sparse", "--task sparse needs a …ForMaskedLM"),
        (shapes.classifier, "rerank", "classify (config.json: RobertaForSequenceClassification with 7 labels)"),
        (shapes.classifier, "token-classify", "--task token-classify"),
        (shapes.cross_encoder, "late-interaction", "--task late-interaction"),
        (shapes.pylate, "classify", "late-interaction"),
        (shapes.static, "rerank", "embed (modules.json)"),
    ],
)
def test_a_task_that_the_model_has_no_head_for(tmp_path: Path, build: Build, task: str, part: str) -> None:
    build(tmp_path)
    assert part in refusal(tmp_path, task=task)


def test_how_to_ask_another_generative_model_is_not_known(tmp_path: Path) -> None:
    shapes.gemma_reranker(tmp_path)
    change(tmp_path / "config.json", model_type="llama", architectures=["LlamaForCausalLM"])
    assert model_folder.read(tmp_path).task is Task.EMBED
    assert "whose template this LlamaForCausalLM is asked with; give it as" in refusal(tmp_path, task="rerank")


@pytest.mark.parametrize(
    ("build", "task", "outputs"),
    [
        (shapes.cross_encoder, "classify", OutputKind.LOGITS),
        (shapes.cross_encoder, "embed", OutputKind.POOLED | OutputKind.TOKENS),
        (shapes.masked_lm, "sparse", OutputKind.SPARSE),
        (shapes.bge_m3, "sparse", OutputKind.SPARSE | OutputKind.MULTI_VECTOR),
        (shapes.bge_m3, "late-interaction", OutputKind.SPARSE | OutputKind.MULTI_VECTOR),
        (
            shapes.bge_m3,
            "embed",
            OutputKind.POOLED | OutputKind.TOKENS | OutputKind.SPARSE | OutputKind.MULTI_VECTOR,
        ),
    ],
)
def test_the_flag_outranks_the_files(tmp_path: Path, build: Build, task: str, outputs: OutputKind) -> None:
    build(tmp_path)
    found = model_folder.read(tmp_path, task=task)
    assert (found.task, found.outputs) == (task, outputs)
    assert found.task_source.startswith(f"--task {task}")


def test_a_cross_encoder_with_a_chat_template_has_an_activation_too(tmp_path: Path) -> None:
    shapes.logit_score(tmp_path)
    assert model_folder.read(tmp_path).activation is Activation.SIGMOID
    change(tmp_path / shapes.CONFIG, activation_fn="torch.nn.modules.linear.Identity")
    assert model_folder.read(tmp_path).activation is Activation.IDENTITY


def test_splade_is_for_sparse_alone(tmp_path: Path) -> None:
    shapes.masked_lm(tmp_path)
    assert "--pooling splade is for --task sparse" in refusal(tmp_path, pooling="splade", task="embed")
    shapes.cross_encoder(tmp_path)
    assert "--pooling splade needs a …ForMaskedLM" in refusal(tmp_path, pooling="splade")


def test_a_reranker_converted_to_a_classifier_is_still_asked_by_its_template(tmp_path: Path) -> None:
    shapes.qwen3_reranker(tmp_path)
    change(tmp_path / "config.json", architectures=["Qwen3ForSequenceClassification"], num_labels=1)
    found = model_folder.read(tmp_path)
    assert found.heads == (SequenceScores(labels=("LABEL_0",)),)
    assert found.template is not None
    assert any("{document}" in part for part in found.template.parts)


@pytest.mark.parametrize("name", ["sparse_linear.safetensors", "colbert_linear.safetensors"])
def test_broken_heads_beside_the_model(tmp_path: Path, name: str) -> None:
    shapes.bge_m3(tmp_path)
    shapes.weights(tmp_path / name, weight=(3, 5))
    assert name in refusal(tmp_path)
    (tmp_path / name).write_bytes((1 << 40).to_bytes(8, "little") + b"{}")
    assert f"{name} is not a safetensors file" in refusal(tmp_path)
    (tmp_path / name).unlink()
    assert len(model_folder.read(tmp_path).heads) == 1


def test_heads_that_can_run_code_are_not_read(tmp_path: Path) -> None:
    shapes.bge_m3(tmp_path)
    for name in ("sparse_linear", "colbert_linear"):
        (tmp_path / f"{name}.safetensors").unlink()
        (tmp_path / f"{name}.pt").write_bytes(b"\x80\x04canary")
    found = model_folder.read(tmp_path)
    assert found.heads == ()
    assert any("embedline convert" in note for note in found.notes)


@pytest.mark.parametrize("build", [shapes.cross_encoder, shapes.stanford_colbert, shapes.static])
def test_oversized_headers(tmp_path: Path, build: Build) -> None:
    build(tmp_path)
    (file,) = tmp_path.rglob("model.safetensors")
    file.write_bytes((1 << 40).to_bytes(8, "little") + b"{}")
    assert f"{file} is not a safetensors file" in refusal(tmp_path)


def test_colbert_without_its_layer_or_its_markers(tmp_path: Path) -> None:
    shapes.stanford_colbert(tmp_path)
    change(tmp_path / "artifact.metadata", query_token_id="[unused7]")
    assert "'[unused7]'" in refusal(tmp_path)
    shapes.stanford_colbert(tmp_path)
    shapes.weights(tmp_path / "model.safetensors", bert__x=(1,))
    assert "'linear.weight'" in refusal(tmp_path)


@pytest.mark.parametrize(("said", "skips"), [(None, True), (True, True), (False, False)])
def test_colbert_skips_punctuation_unless_its_file_says_otherwise(
    said: bool | None, skips: bool, tmp_path: Path
) -> None:
    shapes.stanford_colbert(tmp_path)
    change(tmp_path / "artifact.metadata", mask_punctuation=said)
    late = model_folder.read(tmp_path).late
    assert late is not None
    assert bool(late.skipped_ids) is skips


def test_a_prefix_that_is_no_token_is_words(tmp_path: Path) -> None:
    shapes.pylate(tmp_path)
    change(tmp_path / shapes.CONFIG, query_prefix="search: ", document_prefix="", do_query_expansion=False)
    found = model_folder.read(tmp_path)
    assert found.late is not None
    assert (found.late.query_marker_id, found.late.document_marker_id, found.late.expansion_id) == (None, None, None)
    assert found.prompts == {"query": "search: "}
    assert isinstance(found.heads[0], TokenVectors)


def test_late_modules_whose_weights_are_missing(tmp_path: Path) -> None:
    shapes.pylate(tmp_path)
    (tmp_path / "d1" / "model.safetensors").unlink()
    assert "d1 has no model.safetensors" in refusal(tmp_path)


def test_wrong_tokens_of_an_answer(tmp_path: Path) -> None:
    shapes.logit_score(tmp_path)
    change(tmp_path / "s1" / "config.json", true_token_id="yes")
    assert "true_token_id" in refusal(tmp_path)
    change(tmp_path / "s1" / "config.json", true_token_id=5, false_token_id=-1)
    assert "true_token_id" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("build", "name", "fields", "part"),
    [
        (shapes.splade, "p1/config.json", {"top_k": 8}, "'top_k' in p1/config.json"),
        (shapes.logit_score, "s1/config.json", {"bias": 1.0}, "'bias' in s1/config.json"),
        (shapes.logit_score, "s1/config.json", {"module_input_name": "logits"}, "'module_input_name' in s1"),
        (
            shapes.logit_score,
            BERT_FILE,
            {"processing_kwargs": {"chat_template": {"restore_suffix": False}}},
            "'restore_suffix' in sentence_bert_config.json",
        ),
        (
            shapes.logit_score,
            BERT_FILE,
            {"processing_kwargs": {"chat_template": {"chat_template": "another"}}},
            "'chat_template' in sentence_bert_config.json",
        ),
        (
            shapes.logit_score,
            BERT_FILE,
            {"modality_config": {"message": {"method": "forward", "method_output_name": "logits", "format": "html"}}},
            "'format' of 'message' in 'modality_config'",
        ),
        (shapes.multi_vector, "m2/config.json", {"skip": []}, "'skip' in m2/config.json"),
        (shapes.multi_vector, "m2/config.json", {"skiplist_tasks": ["query", "document"]}, "MultiVectorMask"),
        (shapes.multi_vector, "m2/config.json", {"skiplist_words": 3}, "skiplist_words"),
        (shapes.multi_vector, BERT_FILE, {"query_expansion": {"strategy": "most", "length": 4}}, "query_expansion"),
        (shapes.multi_vector, BERT_FILE, {"query_expansion": {"strategy": "min"}}, "query_expansion"),
        (
            shapes.multi_vector,
            BERT_FILE,
            {"query_expansion": {"strategy": "min", "length": 4, "width": 8}},
            "'width' in query_expansion",
        ),
        (
            shapes.multi_vector,
            BERT_FILE,
            {"query_expansion": {"strategy": "min", "length": 8}, "query_length": 4},
            "query_length in the Transformer module",
        ),
        (shapes.multi_vector, "d1/config.json", {"module_input_name": "sentence_embedding"}, "only token_embeddings"),
        *((shapes.classifier, "config.json", fields, part) for fields, part in LABELS),
        # values of a kind that nothing is made for
        (shapes.embedding, "config.json", {"architectures": 5}, ""),
        (shapes.splade, "config.json", {"architectures": {"a": 5}}, ""),
        (shapes.classifier, "config.json", {"problem_type": []}, ""),
        (shapes.embedding, shapes.CONFIG, {"default_prompt_name": []}, ""),
        (shapes.qwen3_reranker, "tokenizer.json", {"model": {"vocab": {"yes": [], "no": 1}}}, ""),
        (shapes.pylate, "tokenizer.json", {"added_tokens": [{"content": "[Q] ", "id": float("inf")}]}, ""),
    ],
)
def test_a_field_that_is_refused(tmp_path: Path, build: Build, name: str, fields: dict[str, Any], part: str) -> None:
    build(tmp_path)
    change(tmp_path / name, **fields)
    assert part in refusal(tmp_path)


def test_an_answer_that_is_no_token(tmp_path: Path) -> None:
    shapes.qwen3_reranker(tmp_path)
    write(tmp_path / "tokenizer.json", {"model": {"vocab": {"hello": 0}}})
    assert "no token 'yes'" in refusal(tmp_path)
    write(tmp_path / "tokenizer.json", {"model": {"vocab": [["hello"]]}})
    assert "vocabulary" in refusal(tmp_path)


def test_links_out_of_the_folder(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "model", tmp_path / "elsewhere"
    shapes.embedding(folder)
    elsewhere.mkdir()
    (folder / "README.md").symlink_to(elsewhere / "README.md")
    (folder / "vocab.json").symlink_to("tokenizer.json")
    assert model_folder.read(folder).pooling == "cls"
    (folder / "p1").rename(elsewhere / "p1")
    (folder / "p1").symlink_to(elsewhere / "p1")
    assert f"{folder}/p1 is a link out of" in refusal(folder)
    (folder / "p1").unlink()
    (folder / "config.json").rename(elsewhere / "config.json")
    (folder / "config.json").symlink_to("../elsewhere/config.json")
    assert f"{folder}/config.json is a link out of" in refusal(folder)


def test_the_hubs_own_links_are_followed(tmp_path: Path) -> None:
    repository = tmp_path / "models--a--mxbai-rerank-base-v2"
    snapshot = repository / "snapshots" / "0123"
    shapes.mxbai_reranker(snapshot)
    change(snapshot / "config.json", _name_or_path=None)
    (repository / "blobs").mkdir()
    for number, file in enumerate(sorted(snapshot.iterdir())):
        file.rename(repository / "blobs" / str(number))
        file.symlink_to(f"../../blobs/{number}")
    assert model_folder.read(snapshot).task_source == "its name is that of mxbai-rerank-v2"


def test_a_class_that_only_the_folders_code_has(tmp_path: Path) -> None:
    shapes.config(tmp_path, "qwen3", "OtherForRanking", auto_map={"AutoModel": "modeling.OtherForRanking"})
    shapes.weights(tmp_path / "model.safetensors")
    assert "needs the code of modeling.OtherForRanking" in refusal(tmp_path)


def test_a_shard_elsewhere(tmp_path: Path) -> None:
    shapes.embedding(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    write(tmp_path / "model.safetensors.index.json", {"weight_map": {"a": "../model.safetensors"}})
    assert "names a file that is not in its folder" in refusal(tmp_path)


def test_special_tokens_beyond_the_embedding_table(tmp_path: Path) -> None:
    shapes.embedding(tmp_path)
    shapes.tokenizer(tmp_path, last_id=31)
    check_special_tokens(model_folder.read(tmp_path))
    shapes.tokenizer(tmp_path, last_id=32)
    with pytest.raises(ModelError, match=r"the token 32 .* 32 rows"):
        check_special_tokens(model_folder.read(tmp_path))
    pair = {"type": "Sequence", "processors": [{"type": "BertProcessing", "sep": ["[SEP]", 40], "cls": ["[CLS]", 2]}]}
    change(tmp_path / "tokenizer.json", post_processor=pair)
    with pytest.raises(ModelError, match="the token 40"):
        check_special_tokens(model_folder.read(tmp_path))


def test_modules_so_deep_that_links_are_not_looked_at(tmp_path: Path) -> None:
    shapes.embedding(tmp_path)
    shapes.modules(tmp_path, root=shapes.MODULE + "Transformer", **{"a/b/c": shapes.MODULE + "Pooling"})
    assert "more than 2 folders deep" in refusal(tmp_path)


def test_files_that_only_attackers_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes.model2vec(tmp_path)
    weights, deep = tmp_path / "model.safetensors", b"[" * 100_000
    shapes.weights(weights, embeddings=(32, 8), mapping=())
    assert "has no table of embeddings" in refusal(tmp_path)
    weights.write_bytes(len(deep).to_bytes(8, "little") + deep)
    assert "is not a safetensors file" in refusal(tmp_path)
    (tmp_path / "config.json").write_bytes(deep)
    assert "config.json is nested too deeply" in refusal(tmp_path)
    monkeypatch.setattr(files, "MAX_WHOLE_BYTES", 10)
    assert "config.json is too large" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", shapes.CONFIG])
def test_a_link_to_itself(tmp_path: Path, name: str) -> None:
    shapes.embedding(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).symlink_to(name)
    assert refusal(tmp_path).endswith(f"{name} is a link to itself")


@pytest.mark.parametrize("name", ["model.safetensors", "d2/model.safetensors"])
def test_weights_that_are_cut_short(tmp_path: Path, name: str) -> None:
    shapes.embedding(tmp_path)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[:-1])
    assert f"{name} is cut short: it has {len(whole) - 1} of {len(whole)} bytes" in refusal(tmp_path)
    (tmp_path / name).write_bytes(whole + b"more")
    assert f"{name} has {len(whole) + 4} bytes, and its header tells of {len(whole)}" in refusal(tmp_path)
    model_folder.read(tmp_path, needs_weights=False)


def test_markers_beyond_the_embedding_table(tmp_path: Path) -> None:
    shapes.pylate(tmp_path)
    late = model_folder.read(tmp_path).late
    assert late is not None
    largest = max(late.query_marker_id or 0, late.document_marker_id or 0, late.expansion_id or 0)
    change(tmp_path / "config.json", vocab_size=largest + 1)
    check_special_tokens(model_folder.read(tmp_path))
    change(tmp_path / "config.json", vocab_size=largest)
    with pytest.raises(ModelError, match=f"the token {largest} "):
        check_special_tokens(model_folder.read(tmp_path))
