"""Repositories whose code is never run: rows are those of a reading of it, or what it would do is refused by name.

docs/models.md says which repositories have these forms.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.model import model_folder
from engine.model.identity import identify
from engine.model.tasks import Task
from engine.types import ModelError, OutputKind
from tests.engine.engines import load
from tests.engine.folder_files import write
from tests.engine.model.detection.shapes import tokenizer
from tests.parity.fuzzing import CONFIG, TRIAL, changed, drawn
from tests.parity.repositories.own_code import (
    bge,
    decoder,
    gritlm,
    gte,
    jina_bert,
    jina_roberta,
    jina_v5,
    lfm2_bidirec,
    llama_bidirec,
    nomic_moe,
    nv_embed,
    qwen3,
    t5,
)
from tests.parity.repositories.own_code.forms import (
    MEAN,
    OPENVINO,
    SEQLENS,
    TRANSFORMERS,
    Form,
    arbitrary,
    check,
    prompted,
    save,
    sequences,
)
from tests.tiers import full
from wire.parts import EXPANSION_TOKEN

FORMS: dict[str, Form] = {
    name: form
    for module in (
        *(bge, gritlm, gte, jina_bert, jina_roberta, jina_v5, lfm2_bidirec, llama_bidirec, nomic_moe, nv_embed),
        *(qwen3, t5),
    )
    for name, form in module.FORMS.items()
}
BOTH = pytest.mark.parametrize("engine", [TRANSFORMERS, *full(OPENVINO)])
NUM_CHANGES = 30  # of each form


def cases() -> Iterator[Any]:
    """Each form by each engine; the others differ little from the first."""
    for name, form in FORMS.items():
        yield name, form.engines[0]
        yield from full(*((name, engine) for engine in form.engines[1:]))


def texts_of(form: Form) -> tuple[list[list[int]], list[Tensor]]:
    """Arbitrary ones, and what the reading makes of them."""
    texts, weights = sequences(form.config.get("vocab_size", 120), SEQLENS), form.weights
    return texts, [form.row(form.config, weights, ids) for ids in texts]


@pytest.mark.parametrize(("name", "engine"), list(cases()))
def test_rows_are_those_of_the_code(name: str, engine: str, tmp_path: Path) -> None:
    form = FORMS[name]
    texts, expected = texts_of(form)
    loaded = load(engine, form.save(tmp_path / "model"))
    check(loaded, texts, expected, output=form.output)
    assert engine != TRANSFORMERS or loaded.info.notes[0].startswith("packed")


@pytest.mark.parametrize(
    ("name", "key", "value"), [(name, key, value) for name, form in FORMS.items() for key, value in form.refused]
)
def test_a_key_with_which_the_code_gives_other_rows_is_refused_by_name(
    name: str, key: str, value: Any, tmp_path: Path
) -> None:
    """A key with a dot is in an object of the file."""
    place, _, inside = key.partition(".")
    folder = FORMS[name].save(tmp_path / "model", **{place: value})
    with pytest.raises(ModelError, match=inside or key):
        model_folder.read(folder)


@pytest.mark.full
@pytest.mark.holds("What a model is for")
@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if form.is_fuzzed])
def test_a_change_is_served_as_the_code_computes_it_or_refused(name: str, tmp_path: Path) -> None:
    folder = FORMS[name].save(tmp_path / "model")
    for seed in range(NUM_CHANGES):
        change = drawn(FORMS[name].config, Random(f"{name} {seed}"))
        check_change(FORMS[name], changed(folder, tmp_path / str(seed), **change), change)


def check_change(form: Form, folder: Path, change: dict[str, Any]) -> None:
    """Rows of a batch, or one line that names the file and the key."""
    print(change)  # what fails shows it
    ((key, _),) = change.items()
    try:
        loaded = load(TRANSFORMERS, folder)
    except ModelError as error:
        line = str(error)
        names_weight = "weight" in line and str(folder) in line
        names_code = key in ("auto_map", "model_type") and ".json" in line  # what only that code has
        assert "\n" not in line
        assert (
            (CONFIG in line and key in line) or names_weight or names_code or any(words in line for words in TRIAL)
        ), line
        return
    texts, config = sequences(form.config["vocab_size"]), json.loads((folder / CONFIG).read_text())
    check(loaded, texts, [form.row(config, form.weights, ids) for ids in texts])


# --- what single repositories have besides


@BOTH
def test_each_text_of_a_batch_has_its_own_adapter(engine: str, tmp_path: Path) -> None:
    form = FORMS["jina-embeddings-v3"]
    folder, weights = form.save(tmp_path / "model"), form.weights
    assert model_folder.read(folder).adapters == jina_roberta.TASKS
    texts, tasks = sequences(form.config["vocab_size"]), (None, 0, 4, None, 2, 3)
    expected = [jina_roberta.mean(form.config, weights, ids, task=task) for ids, task in zip(texts, tasks, strict=True)]
    check(load(engine, folder), texts, expected, adapters=[[0 if task is None else task + 1] for task in tasks])


@BOTH
@pytest.mark.parametrize("name", jina_v5.FORMS)
def test_each_text_of_a_batch_has_its_own_adapter_of_a_file(name: str, engine: str, tmp_path: Path) -> None:
    form = FORMS[name]
    folder, weights = form.save(tmp_path / "model"), form.weights
    found = model_folder.read(folder)
    assert (found.adapters, found.default_adapter) == (jina_v5.TASKS, "retrieval")
    assert (found.poolings, found.normalize, found.default_prompt) == (("last",), True, "Document: ")
    texts, tasks = sequences(form.config["vocab_size"]), (None, 0, 2, None, 3, 1)
    expected = [jina_v5.last(form.config, weights, ids, task=task) for ids, task in zip(texts, tasks, strict=True)]
    check(load(engine, folder), texts, expected, adapters=[[0 if task is None else task + 1] for task in tasks])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("use_dora", True), ("use_bdlora", True), ("bias", "all"), ("peft_type", "IA3"), ("r", 4), ("r", None)),
        *(("alpha_pattern", {"q_proj": 3}), ("modules_to_save", ["norm"]), ("lora_alpha", "high")),
        *(("init_lora_weights", "pissa"), ("alora_invocation_tokens", [3]), ("use_bdlora", {"nblocks": 2})),
    ],
)
def test_an_adapter_that_peft_computes_otherwise_is_refused_by_its_key(key: str, value: Any, tmp_path: Path) -> None:
    folder = jina_v5.save_adapters(jina_v5.NANO, FORMS["jina-embeddings-v5-text-nano"].save(tmp_path), **{key: value})
    with pytest.raises(ModelError, match="of rank 4" if value == 4 else key):
        model_folder.read(folder)


def test_an_adapter_that_is_not_there_is_named(tmp_path: Path) -> None:
    folder = FORMS["jina-embeddings-v5-text-nano"].save(tmp_path)
    (folder / "adapters" / "clustering" / "adapter_model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"clustering/adapter_model\.safetensors is missing"):
        model_folder.read(folder)


def test_an_adapter_of_a_layer_that_the_model_lacks_is_refused(tmp_path: Path) -> None:
    form = FORMS["jina-embeddings-v5-text-nano"]
    folder = form.save(tmp_path)
    for task in jina_v5.TASKS:
        file = folder / "adapters" / task / "adapter_model.safetensors"
        tensors = {name.replace("layers.1.", "layers.7."): tensor for name, tensor in load_file(file).items()}
        save_file(tensors, file)
    with pytest.raises(ModelError, match=r"layers\.7\..* which the model lacks") as refused:
        load(TRANSFORMERS, folder)
    assert "merges it" not in str(refused.value)


def test_models_with_other_adapters_are_told_apart(tmp_path: Path) -> None:
    form = FORMS["jina-embeddings-v5-text-nano"]
    folders = [form.save(tmp_path / name) for name in ("one", "another")]
    file = folders[1] / "adapters" / "clustering" / "adapter_model.safetensors"
    save_file({name: tensor * 2 for name, tensor in load_file(file).items()}, file)
    one, another = (identify(model_folder.read(folder), flags={}) for folder in folders)
    assert one.weights != another.weights


@pytest.mark.parametrize(("tokens", "last_id"), [((), None), ((qwen3.SEPARATOR,), 3)])
def test_a_model_of_chunks_without_its_token_or_with_others_around_texts_is_refused(
    tokens: tuple[str, ...], last_id: int | None, tmp_path: Path
) -> None:
    folder = FORMS["pplx-embed-context-v1-0.6b"].save(tmp_path)
    assert model_folder.read(folder).chunk_separator_id is not None
    tokenizer(folder, added=tokens, last_id=last_id)
    with pytest.raises(ModelError, match=r"tokenizer\.json (has no token|puts tokens around texts)"):
        model_folder.read(folder)


def test_pplx_rounds_by_its_module_and_its_context_model_without_one(tmp_path: Path) -> None:
    plain = FORMS["pplx-embed-v1-0.6b"].save(tmp_path / "v1")
    assert (model_folder.read(plain).rounds, model_folder.read(plain).normalize) == (True, False)
    assert model_folder.read(FORMS["pplx-embed-context-v1-0.6b"].save(tmp_path / "context")).rounds
    modules = json.loads((plain / "modules.json").read_text())
    write(plain / "modules.json", modules[:-1])
    assert not model_folder.read(plain).rounds
    write(plain / "modules.json", [modules[0], modules[2], modules[1]])
    with pytest.raises(ModelError, match=r"modules\.json lists Transformer, rounding to int8, Pooling"):
        model_folder.read(plain)


def test_voyages_layer_is_behind_a_pooling_that_comes_to_the_same(tmp_path: Path) -> None:
    folder = FORMS["voyage-4-nano"].save(tmp_path)
    found = model_folder.read(folder)
    assert (found.outputs, found.dimensions) == (OutputKind.POOLED, 48)
    write(folder / "1_Pooling" / "config.json", {"pooling_mode_max_tokens": True})
    with pytest.raises(ModelError, match="asks for max pooling"):
        model_folder.read(folder)


def test_vectors_of_the_colbert_that_hides_the_tokens_that_fill_up_a_query(tmp_path: Path) -> None:
    """jina-colbert-v1-en. Other tokens do not attend to the mask tokens with which queries are filled up."""
    config = {**jina_bert.CONFIG, "architectures": ["HF_ColBERT"]}
    weights = arbitrary({**jina_bert.shapes(config, "bert."), "linear.weight": (12, config["hidden_size"])})
    folder = save(tmp_path, config, weights)
    tokenizer(folder)
    write(folder / "artifact.metadata", {"query_maxlen": 32, "dim": 12, "attend_to_mask_tokens": False})
    ids, num_hidden = sequences(config["vocab_size"], (9,))[0], 4
    rows = jina_bert.token_rows(config, weights, ids, num_hidden=num_hidden) @ weights["linear.weight"].T
    expected = rows / rows.norm(dim=1, keepdim=True)
    marks = [[0] * (len(ids) - num_hidden) + [EXPANSION_TOKEN] * num_hidden]
    check(load(TRANSFORMERS, folder), [ids], [expected], output=OutputKind.MULTI_VECTOR, marks=marks)


@BOTH
def test_convolutions_see_the_tokens_that_fill_up_a_query(engine: str, tmp_path: Path) -> None:
    """LFM2.5-ColBERT. Attention does not, and batches without such tokens are packed or padded as ever."""
    config, num_hidden = lfm2_bidirec.CONFIG, 4
    weights = {**arbitrary(lfm2_bidirec.shapes(config)), **arbitrary({"linear.weight": (12, config["hidden_size"])})}
    folder = lfm2_bidirec.save_colbert(tmp_path / "model", config, weights)
    texts = sequences(config["vocab_size"], (9, 12, 9, 7))
    for hidden in (num_hidden, 0):
        rows = [lfm2_bidirec.token_rows(config, weights, ids, num_hidden=hidden) for ids in texts]
        vectors = [each @ weights["linear.weight"].T for each in rows]
        expected = [each / each.norm(dim=1, keepdim=True) for each in vectors]
        marks = [[0] * (len(ids) - hidden) + [EXPANSION_TOKEN] * hidden for ids in texts]
        parts = {"marks": marks} if hidden else {}
        check(load(engine, folder), texts, expected, output=OutputKind.MULTI_VECTOR, **parts)


def test_queries_that_are_filled_up_with_padding_are_refused(tmp_path: Path) -> None:
    """Convolutions see what fills a query up, and no padding; a compiled model tells them by their ids."""
    weights = {**arbitrary(lfm2_bidirec.shapes(lfm2_bidirec.CONFIG)), "linear.weight": torch.zeros(12, 32)}
    config = lfm2_bidirec.CONFIG | {"pad_token_id": 4}  # [MASK]
    with pytest.raises(ModelError, match="fills queries up with the padding token"):
        model_folder.read(lfm2_bidirec.save_colbert(tmp_path / "model", config, weights))


@pytest.mark.parametrize("name", ["Lfm2BidirectionalModel", "Lfm2BidirForSequenceRouting"])
def test_a_class_that_sees_both_ways_is_known_without_auto_map(name: str, tmp_path: Path) -> None:
    folder = FORMS["LFM2.5-Embedding-350M"].save(tmp_path / "model", architectures=[name], auto_map=None)
    if name == "Lfm2BidirectionalModel":
        assert model_folder.read(folder).architecture == "lfm2_bidirec"
        return
    with pytest.raises(ModelError, match=name):
        model_folder.read(folder)


def test_a_fine_tuned_copy_of_gte_without_auto_map_has_the_same_angles(tmp_path: Path) -> None:
    """As of Snowflake/snowflake-arctic-embed-m-v2.0: transformers' gte has no angles of the type ntk."""
    form = FORMS["snowflake-arctic-embed-m-v2.0"]
    own = {key: value for key, value in gte.CONFIG.items() if key != "auto_map"} | {"model_type": "gte"}
    copied = model_folder.read(save(tmp_path / "copy", own, form.weights, modules=form.modules))
    original = model_folder.read(save(tmp_path / "new", gte.CONFIG, form.weights, modules=form.modules))
    assert copied.config["rope_parameters"] == original.config["rope_parameters"]
    assert copied.is_translated


@pytest.mark.parametrize(
    ("form", "mean"),
    [
        (FORMS["GritLM-7B"], partial(decoder.mean, prefix="model.")),
        (Form(config=nv_embed.CONFIG, shapes=nv_embed.SHAPES, row=nv_embed.mean), nv_embed.mean),
    ],
    ids=["GritLM-7B", "NV-Embed-v2"],
)
def test_without_modules_the_mean_leaves_out_the_instruction(form: Form, mean: Any, tmp_path: Path) -> None:
    """And is scaled to length 1, as the codes say."""
    folder, texts, weights = form.save(tmp_path / "model"), sequences(120, (9, 20)), form.weights
    expected = [mean(form.config, weights, ids, first=3) for ids in texts]
    check(load(TRANSFORMERS, folder), texts, expected, marks=prompted(texts, 3))
    found = model_folder.read(folder)
    assert (found.poolings, found.normalize, found.include_prompt) == (("mean",), True, False)
    chosen = model_folder.read(folder, pooling="last-token")
    assert (chosen.poolings, chosen.normalize, chosen.include_prompt) == (("last",), True, False)


def test_nv_embed_has_the_sizes_that_its_published_file_leaves_out(tmp_path: Path) -> None:
    wide: dict[str, Any] = {"hidden_size": 4096, "text_config": nv_embed.TEXT | {"hidden_size": 4096}}
    latent = {"model_type": "latent_attention"}
    folder = FORMS["NV-Embed-v2"].save(tmp_path / "model", **wide, latent_attention_config=latent)
    found = model_folder.read(folder).config
    assert [found[key] for key in ("num_latents", "num_cross_heads", "cross_dim_head")] == [512, 8, 4096]


def test_a_pair_of_nvidias_reranker_is_one_text(tmp_path: Path) -> None:
    """As on the model's card, and in vllm-project/vllm, examples/pooling/score/template/nemotron-rerank.jinja."""
    found = model_folder.read(FORMS["llama-nemotron-rerank-1b-v2"].save(tmp_path / "model"))
    assert found.task is Task.RERANK
    assert found.template is not None
    assert found.template.parts == ("<|begin_of_text|>", "question:{query} \n \n passage:{document}")


def test_the_model_type_alone_tells_nvidias_code(tmp_path: Path) -> None:
    form = FORMS["llama-nemotron-rerank-1b-v2"]
    config = {key: value for key, value in form.config.items() if key != "auto_map"}
    found = model_folder.read(save(tmp_path / "model", config, form.weights))
    assert (found.config["is_causal"], found.config["score_temperature"]) == (False, 0.2)
    with pytest.raises(ModelError, match="nothing has to be trusted"):
        model_folder.read(form.save(tmp_path / "trusted"), trusted_keys=("auto_map",))


def test_instructor_leaves_the_instruction_out_and_is_known_by_its_name(tmp_path: Path) -> None:
    """Its Pooling module does not say it; its own code does (xlang-ai/instructor-embedding, InstructorEmbedding)."""
    form = FORMS["t5"]
    folder = form.save(tmp_path / "models--hkunlp--instructor-large" / "snapshots" / "1a2b")
    assert not model_folder.read(folder).include_prompt
    assert model_folder.read(form.save(tmp_path / "sentence-t5-base")).include_prompt
    texts, weights = sequences(120, (9, 30)), form.weights
    expected = [t5.mean(form.config, weights, ids, first=4) for ids in texts]
    check(load(TRANSFORMERS, folder), texts, expected, marks=prompted(texts, 4))


def test_texts_beyond_the_farthest_distance_of_t5(tmp_path: Path) -> None:
    form = FORMS["t5, gated"]
    texts, weights = sequences(120, (150, 3, 133)), form.weights
    expected = [t5.mean(form.config, weights, ids) for ids in texts]
    check(load(TRANSFORMERS, form.save(tmp_path / "model")), texts, expected)


def test_a_t5_that_answers_with_its_decoder_is_refused(tmp_path: Path) -> None:
    form, config = FORMS["t5"], t5.CONFIG | {"architectures": ["T5ForConditionalGeneration"]}
    with pytest.raises(ModelError, match=r"encoder-decoder.*modules\.json"):
        model_folder.read(save(tmp_path / "model", config, form.weights))
    assert model_folder.read(save(tmp_path / "another", config, form.weights, modules=MEAN)).architecture == "t5"
