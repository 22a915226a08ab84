"""Merged adapters give the rows that PEFT gives, of each kind of adapter and in the layouts of real families."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import IA3Config, LoraConfig, PeftConfig, TaskType
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification

from engine.convert import adapted
from engine.model import model_folder
from engine.model.coverage import Use
from engine.model.lora import read_adapter
from engine.model.tasks import Task
from engine.model.weights import tensors_in
from engine.registry import OPENVINO, TRANSFORMERS
from engine.types import ModelError, OutputKind
from tests.engine.convert.adapters import Adapted
from tests.engine.engines import load, rows
from tests.engine.folder_files import change, write
from tests.engine.tiny_models import Reference, WholeReference, batch
from tests.parity.architectures import ARCHITECTURES
from tests.parity.folders import save
from tokenizer_pool.loading import load as load_tokenizer

# Of PEFT itself: it reads a deprecated attribute, and takes a bias for a matrix that was cut.
pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:`is_gradient:FutureWarning", "ignore:Adapter .default.", "ignore:Setting `save_"
    ),
    pytest.mark.filterwarnings("ignore:fan_in_fan_out", "ignore:.*Unable to fetch remote file"),
]
TEXTS = ["w20 w21 w22", "w23 w24 " * 9]
SEQUENCE = [5, 9, 17, 4, 33, 20, 21]
_RANDOM: Any = {"r": 4, "lora_alpha": 8, "init_lora_weights": False}
_ALL: Any = {**_RANDOM, "target_modules": "all-linear"}
_PATTERNS: Any = {"rank_pattern": {"query": 2, r"layer\.1.*key": 6}, "alpha_pattern": {"layer.0.*": 3}}


def merged(folder: Path, base: Path, out: Path) -> Path:
    own = adapted.adapter_folder(folder)
    assert own is not None
    planned = adapted.plan(folder, read_adapter(own), base)
    out.mkdir()
    adapted.fill(out, planned, report=lambda done, total: None)
    return out


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("BERT", LoraConfig(**_ALL, use_rslora=True, **_PATTERNS)),
        ("BERT", LoraConfig(**_RANDOM, target_modules=["query", "word_embeddings"], bias="all")),
        ("BERT", LoraConfig(r=4, target_modules=["query", "output.dense"], lora_bias=True)),
        ("BERT", IA3Config(target_modules=["key", "output.dense"], feedforward_modules=["output.dense"])),
        ("XLM-RoBERTa", LoraConfig(**_RANDOM, target_modules=["value", "word_embeddings"], use_dora=True)),
        ("ModernBERT", LoraConfig(**_ALL, modules_to_save=["final_norm"])),
        ("NomicBERT", LoraConfig(**_ALL, use_dora=True)),
        ("GTE", LoraConfig(**_RANDOM, target_modules=["q_proj", "v_proj", "up_proj"], bias="lora_only")),
        ("Qwen3", LoraConfig(**_ALL, use_dora=True)),
        ("Llama", IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"])),
        ("GPT-2", LoraConfig(**_ALL)),
        ("GPT-2", IA3Config(target_modules=["c_attn", "mlp.c_proj"], feedforward_modules=["mlp.c_proj"])),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value.peft_type.value),
)
def test_rows_are_those_of_peft(name: str, config: PeftConfig, tmp_path: Path) -> None:
    base = save(name, Use.EMBED, tmp_path / "base")
    expected = Adapted(base, config, tmp_path / "adapter").token_rows(SEQUENCE)
    found = load(TRANSFORMERS, merged(tmp_path / "adapter", base, tmp_path / "merged"))
    np.testing.assert_allclose(rows(found, batch([SEQUENCE]), OutputKind.TOKENS), expected, atol=1e-5, rtol=1e-5)
    assert np.abs(expected - Reference(base).token_rows(SEQUENCE)).max() > 0.1


@pytest.mark.full
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_layers_of_each_architecture_are_found_in_its_checkpoint(name: str, tmp_path: Path) -> None:
    base = save(name, Use.EMBED, tmp_path / "base")
    config = LoraConfig(**_ALL, use_dora=True, bias="all")
    expected = Adapted(base, config, tmp_path / "adapter").token_rows(SEQUENCE)
    found = Reference(merged(tmp_path / "adapter", base, tmp_path / "merged")).token_rows(SEQUENCE)
    np.testing.assert_allclose(found, expected, atol=3e-5, rtol=1e-5)
    assert np.abs(expected - Reference(base).token_rows(SEQUENCE)).max() > 0.1


_SCORES: Any = {**_RANDOM, "target_modules": "all-linear", "task_type": TaskType.SEQ_CLS}


@pytest.mark.parametrize(
    ("name", "use", "config"),
    [
        ("BERT", Use.EMBED, LoraConfig(**_SCORES)),
        ("XLM-RoBERTa", Use.SPARSE, LoraConfig(**_SCORES, bias="all")),
        ("Qwen3", Use.EMBED, LoraConfig(**_SCORES, use_dora=True)),
        ("BERT", Use.CLASSIFY, LoraConfig(**{**_RANDOM, "target_modules": ["key"]}, modules_to_save=["classifier"])),
    ],
)
def test_scores_of_a_head_that_is_saved_are_those_of_peft(
    name: str, use: Use, config: PeftConfig, tmp_path: Path
) -> None:
    base, out = save(name, use, tmp_path / "base"), tmp_path / "merged"
    purpose: Any = AutoModelForSequenceClassification
    own = Adapted(base, config, tmp_path / "adapter", purpose=purpose, num_labels=3)
    read = model_folder.read(merged(tmp_path / "adapter", base, out))
    assert (read.task, read.labels) == (Task.CLASSIFY, ("LABEL_0", "LABEL_1", "LABEL_2"))
    found = rows(load(TRANSFORMERS, out), batch([SEQUENCE]), OutputKind.LOGITS)
    np.testing.assert_allclose(found[0], own.scores(SEQUENCE), atol=1e-5, rtol=1e-5)
    torch.manual_seed(3)
    before = WholeReference(base, purpose).scores(SEQUENCE)
    assert before.shape != found[0].shape or np.abs(before - found[0]).max() > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_base_in_shards_keeps_them_and_loses_no_small_change(dtype: torch.dtype, tmp_path: Path) -> None:
    base, out = save("BERT", Use.EMBED, tmp_path / "base"), tmp_path / "merged"
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(base / "model.safetensors").items()}
    (base / "model.safetensors").unlink()
    parts = {
        "model-00001-of-00002.safetensors": list(tensors)[::2],
        "model-00002-of-00002.safetensors": list(tensors)[1::2],
    }
    for file, names in parts.items():
        save_file({name: tensors[name] for name in names}, base / file)
    index = {"metadata": {}, "weight_map": {name: file for file, names in parts.items() for name in names}}
    (base / "model.safetensors.index.json").write_text(json.dumps(index))
    tiny: Any = 1e-3
    config = LoraConfig(r=2, lora_alpha=tiny, target_modules=["query", "value"], init_lora_weights=False)
    expected = Adapted(base, config, tmp_path / "adapter").token_rows(SEQUENCE)
    merged(tmp_path / "adapter", base, out)
    found = tensors_in(out)
    assert {name: tensor.file.name for name, tensor in found.items()} == index["weight_map"]
    changed = {name for name, tensor in found.items() if name.endswith(("query.weight", "value.weight"))}
    assert {name for name, tensor in found.items() if tensor.dtype == "F32"} == (
        found.keys() if dtype is torch.float32 else changed
    )
    rows_found = rows(load(TRANSFORMERS, out), batch([SEQUENCE]), OutputKind.TOKENS)
    np.testing.assert_allclose(rows_found, expected, atol=1e-5, rtol=1e-5)
    for name in found.keys() - changed:
        assert torch.equal(load_file(found[name].file)[name], tensors[name])
    assert not np.array_equal(load_file(found[min(changed)].file)[min(changed)], tensors[min(changed)].float())


def _more_layers(folder: Path, base: Path) -> None:
    file = folder / "adapter_model.safetensors"
    save_file({name.replace("layer.1.", "layer.7."): tensor for name, tensor in load_file(file).items()}, file)


def _narrower(folder: Path, base: Path) -> None:
    tensors = load_file(base / "model.safetensors")
    tensors["encoder.layer.0.attention.self.query.weight"] = torch.zeros(8, 40)
    save_file(tensors, base / "model.safetensors")


def _integers(folder: Path, base: Path) -> None:
    tensors = load_file(base / "model.safetensors")
    tensors["encoder.layer.0.attention.self.query.weight"] = torch.zeros(40, 40, dtype=torch.int8)
    save_file(tensors, base / "model.safetensors")


def _infinite(folder: Path, base: Path) -> None:
    file = folder / "adapter_model.safetensors"
    save_file({name: tensor * torch.inf for name, tensor in load_file(file).items()}, file)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (_more_layers, r"layer\.7\..*lora_A.*adapter_model\.safetensors changes .*lacks; 'base_model_name_or_path' in"),
        (
            _narrower,
            r"lora_A.* is for a tensor of the shape \[40, 40\], and .*query\.weight' in .* has \[8, 40\]",
        ),
        (_integers, r"is stored as I8; an adapter is merged into plain weights alone"),
        (_infinite, r"lora_A.*adapter_model.safetensors makes .* a tensor that is not finite"),
    ],
)
def test_an_adapter_that_does_not_fit_its_base_is_refused_by_file_and_key(
    harm: Callable[[Path, Path], None], message: str, tmp_path: Path
) -> None:
    base = save("BERT", Use.EMBED, tmp_path / "base")
    Adapted(base, LoraConfig(**{**_RANDOM, "target_modules": ["query"]}), tmp_path / "adapter")
    harm(tmp_path / "adapter", base)
    with pytest.raises(ModelError, match=message):
        merged(tmp_path / "adapter", base, tmp_path / "merged")


@pytest.mark.filterwarnings("ignore:`lora_bias=True` was passed")
def test_a_bias_that_no_layer_can_take_is_to_be_kept_apart(tmp_path: Path) -> None:
    base = save("Qwen3", Use.EMBED, tmp_path / "base")
    config = LoraConfig(**{**_RANDOM, "target_modules": ["o_proj"]}, lora_bias=True)
    Adapted(base, config, tmp_path / "adapter")
    with pytest.raises(ModelError, match=rf"'lora_bias'.*o_proj', which has none .* --lora NAME={tmp_path}/adapter,"):
        merged(tmp_path / "adapter", base, tmp_path / "merged")


def test_an_output_layer_that_is_tied_is_refused(tmp_path: Path) -> None:
    base = save("BERT", Use.SPARSE, tmp_path / "base")
    config = LoraConfig(**{**_RANDOM, "target_modules": ["decoder"]})
    Adapted(base, config, tmp_path / "adapter", purpose=AutoModelForMaskedLM)
    with pytest.raises(ModelError, match=r"predictions\.decoder\.weight', the output layer, .*'target_modules'"):
        merged(tmp_path / "adapter", base, tmp_path / "merged")


@pytest.mark.parametrize(
    "config",
    [
        {"target_modules": ["word_embeddings"]},
        {"target_modules": ["query"], "modules_to_save": ["word_embeddings"]},
    ],
    ids=str,
)
def test_a_vocabulary_that_was_resized_is_named(config: dict[str, Any], tmp_path: Path) -> None:
    base, resized = save("BERT", Use.EMBED, tmp_path / "base"), tmp_path / "resized"
    model: Any = AutoModel.from_pretrained(base)
    model.resize_token_embeddings(model.config.vocab_size + 3)
    model.save_pretrained(resized)
    Adapted(resized, LoraConfig(**{**_RANDOM, **config}), tmp_path / "adapter")
    with pytest.raises(ModelError, match=r"is for .* tokens, .*word_embeddings.weight.*the vocabulary was resized"):
        merged(tmp_path / "adapter", base, tmp_path / "merged")


def test_a_head_that_nobody_has_is_refused(tmp_path: Path) -> None:
    base = save("BERT", Use.EMBED, tmp_path / "base")
    Adapted(base, LoraConfig(**{**_RANDOM, "target_modules": ["query"]}), tmp_path / "adapter")
    change(tmp_path / "adapter" / "adapter_config.json", task_type="SEQ_CLS")
    with pytest.raises(ModelError, match=r"adapter_config\.json is of an adapter for a ForSequence.*'task_type'"):
        merged(tmp_path / "adapter", base, tmp_path / "merged")


def test_a_table_by_which_the_vocabulary_is_scored_too_is_refused(tmp_path: Path) -> None:
    base = save("BERT", Use.SPARSE, tmp_path / "base")
    Adapted(base, LoraConfig(**{**_RANDOM, "target_modules": ["word_embeddings"]}), tmp_path / "adapter")
    with pytest.raises(ModelError, match=r"word_embeddings.lora_embedding_A' in .*'tie_word_embeddings'"):
        merged(tmp_path / "adapter", base, tmp_path / "merged")


def test_openvino_serves_the_copy_as_it_does_any_model(tmp_path: Path) -> None:
    base, out = save("BERT", Use.EMBED, tmp_path / "base"), tmp_path / "merged"
    expected = Adapted(base, LoraConfig(**_ALL, use_dora=True), tmp_path / "adapter").token_rows(SEQUENCE)
    found = load(OPENVINO, merged(tmp_path / "adapter", base, out))
    np.testing.assert_allclose(rows(found, batch([SEQUENCE]))[0], expected.mean(axis=0), atol=1e-5, rtol=1e-5)


def test_what_sentence_transformers_saved_beside_the_adapter_wins(tmp_path: Path) -> None:
    base, own = save("BERT", Use.EMBED, tmp_path / "base"), tmp_path / "adapter"
    write(base / "special_tokens_map.json", {"pad_token": "[PAD]"})
    prompts: Any = {"prompts": {"query": "Query: "}, "default_prompt_name": "query"}
    library: Any = SentenceTransformer(str(base), device="cpu", **prompts)
    torch.manual_seed(3)
    library.add_adapter(LoraConfig(**_RANDOM, target_modules=["query", "value"]))
    library.max_seq_length = 12
    library[1].pooling_mode = "cls"
    library.save(str(own))
    expected = library.encode(TEXTS)
    assert np.abs(expected - SentenceTransformer(str(base), device="cpu").encode(TEXTS)).max() > 0.1

    write(base / "README.md", {"a card": "of the base"})
    out = merged(own, base, tmp_path / "merged")

    found = model_folder.read(out)
    assert (found.poolings, found.max_seqlen, found.default_prompt) == (("cls",), 12, "Query: ")
    assert not (out / "special_tokens_map.json").exists()
    assert "of the base" not in (out / "README.md").read_text()
    tokenizer = load_tokenizer(out, do_lower_case=found.do_lower_case)
    tokenizer.enable_truncation(found.max_seqlen)
    ids = [encoding.ids for encoding in tokenizer.encode_batch([f"Query: {text}" for text in TEXTS])]
    np.testing.assert_allclose(rows(load(TRANSFORMERS, out), batch(ids)), expected, atol=1e-5, rtol=1e-5)


def test_the_transformer_of_a_base_may_lie_in_a_folder_of_its_own(tmp_path: Path) -> None:
    base, own = save("BERT", Use.EMBED, tmp_path / "base"), tmp_path / "adapter"
    expected = Adapted(base, LoraConfig(**_ALL), own).token_rows(SEQUENCE)
    modules = json.loads((base / "modules.json").read_text())
    write(base / "modules.json", [{**modules[0], "path": "0_Transformer"}, *modules[1:]])
    (base / "0_Transformer").mkdir()
    for file in [file for file in base.iterdir() if file.is_file() and file.name != "modules.json"]:
        file.rename(base / "0_Transformer" / file.name)

    out = merged(own, base, tmp_path / "merged")

    found = rows(load(TRANSFORMERS, out), batch([SEQUENCE]))
    np.testing.assert_allclose(found[0], expected.mean(axis=0), atol=1e-5, rtol=1e-5)
    assert (out / "0_Transformer" / "model.safetensors").is_file()
