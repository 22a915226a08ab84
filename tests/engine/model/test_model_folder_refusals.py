"""What reading a model folder refuses: wrong files, missing weights, code."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from engine.model import model_folder
from tests.engine.folder_files import change, write
from tests.engine.model.sentence_folder import BERT, refusal


@pytest.mark.parametrize(
    ("name", "fields", "part"),
    [
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}, "'query'"),
        ("config_sentence_transformers.json", {"model_type": "CrossEncoder"}, "Transformer, Pooling"),
        ("config_sentence_transformers.json", {"model_type": "Oracle"}, "Oracle"),
        ("config_sentence_transformers.json", {"prompts": []}, "'prompts' in config_sentence_transformers.json"),
        ("sentence_bert_config.json", {"max_seq_length": "long"}, "'max_seq_length'"),
        ("sentence_bert_config.json", {"max_seq_length": -5}, "'max_seq_length'"),
        ("sentence_bert_config.json", {"tokenizer_args": {"add_eos_token": True}}, "add_eos_token among"),
        ("sentence_bert_config.json", {"config_args": {"num_hidden_layers": 1}}, "'num_hidden_layers' among"),
        ("sentence_bert_config.json", {"model_kwargs": {"rotary_scaling_factor": 2}}, "'rotary_scaling_factor' in"),
        ("sentence_bert_config.json", {"processing_kwargs": {"text": {"add_special_tokens": False}}}, "'add_special"),
        ("sentence_bert_config.json", {"query_length": 8}, "'query_length' in"),
        ("sentence_bert_config.json", {"tokenizer_name_or_path": "another"}, "'tokenizer_name_or_path' in"),
        ("sentence_bert_config.json", {"do_lower_case": "no"}, "'do_lower_case' in"),
        ("sentence_bert_config.json", {"max_length": 8}, "'max_length' in"),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "Transformer module"),
        ("sentence_bert_config.json", {"modality_config": {"message": {"method": "forward"}}}, "Transformer module"),
        ("config.json", {"model_type": None}, "model_type"),
        ("config.json", {"model_type": "no-such-thing"}, "'no-such-thing'"),
        ("config.json", {"vocab_size": None}, "vocab_size"),
        ("config.json", {"hidden_size": "384"}, "'hidden_size'"),
        ("config.json", {"hidden_size": True}, "'hidden_size'"),
        ("config.json", {"is_encoder_decoder": True}, "encoder-decoder"),
        ("config.json", {"model_type": ["bert"]}, "model_type"),
        ("config.json", {"num_hidden_layers": 0}, "'num_hidden_layers'"),
        ("config.json", {"max_position_embeddings": -1}, "'max_position_embeddings'"),
        ("config.json", {"is_decoder": "no"}, "'is_decoder'"),
        ("config.json", {"rope_parameters": {"rope_theta": 1.0}}, "'rope_parameters'"),
        (
            "config.json",
            {"model_type": "mistral", "layer_types": ["full_attention", "sliding_attention"]},
            "layer_types",
        ),
        ("config.json", {"model_type": "roberta", "max_position_embeddings": 2}, "max_position_embeddings"),
        ("config.json", {"model_type": "roberta", "text_config": {"pad_token_id": 5}}, "has a text_config"),
        ("config.json", {"model_type": "new"}, "'new'"),
        ("adapter_config.json", {"peft_type": "LORA"}, "adapter"),
    ],
)
def test_a_wrong_field_is_named(folder: Path, name: str, fields: dict[str, Any], part: str) -> None:
    change(folder / name, **fields)
    assert part in refusal(folder)


def test_a_roberta_that_says_it_has_no_padding_is_refused(folder: Path) -> None:
    """transformers' own model fails at its first text."""
    write(folder / "config.json", {**BERT, "model_type": "roberta", "pad_token_id": None})
    assert "'pad_token_id' in config.json is no token id, and roberta numbers positions from it" in refusal(folder)


@pytest.mark.parametrize("name", ["config.json", "modules.json", "1_Pooling/config.json", "tokenizer_config.json"])
def test_a_file_that_is_not_json_is_named(folder: Path, name: str) -> None:
    (folder / name).write_text("{'no': json}")
    assert name in refusal(folder)


@pytest.mark.parametrize("name", ["config.json", "1_Pooling/config.json", "sentence_bert_config.json"])
def test_a_file_that_holds_no_object_is_named(folder: Path, name: str) -> None:
    (folder / name).write_text("[1]")
    assert name in refusal(folder)


def test_a_folder_without_config_or_no_folder_at_all(tmp_path: Path) -> None:
    assert "config.json" in refusal(tmp_path)
    assert "is not a folder" in refusal(tmp_path / "nowhere")


@pytest.mark.holds("No data is run as code")
def test_weights_that_can_run_code_are_named_and_not_read(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    message = refusal(folder)
    assert "no model.safetensors" in message
    assert "pytorch_model.bin" in message
    assert message.endswith(f": embedline convert {folder} OUT")
    (folder / "pytorch_model.bin").unlink()
    assert "no model.safetensors" in refusal(folder)
    assert not model_folder.read(folder, needs_weights=False).normalize


def test_a_missing_shard_is_named(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    write(folder / "model.safetensors.index.json", {"weight_map": shards})
    assert "model-00002-of-00002.safetensors" in refusal(folder)


@pytest.mark.parametrize(
    ("first", "second", "part"),
    [
        ("a", "b", ""),
        ("a", "c", "says that 'b' is in '2.safetensors', which lacks it; fetch"),
        ("b", "a", "says that 'a' is in '1.safetensors', which lacks it; it is in 2.safetensors; fetch"),
        ("ab", "b", "1.safetensors and 2.safetensors both hold the tensor 'b'; fetch"),
    ],
)
def test_an_index_that_does_not_match_its_files_is_refused(folder: Path, first: str, second: str, part: str) -> None:
    """Engines would differ in what they read."""
    (folder / "model.safetensors").unlink()
    save_file({name: np.zeros(2, np.float32) for name in first}, folder / "1.safetensors")
    save_file({name: np.zeros(2, np.float32) for name in second}, folder / "2.safetensors")
    shards = {"a": "1.safetensors", "b": "2.safetensors"}
    write(folder / "model.safetensors.index.json", {"weight_map": shards})
    if part:
        assert part in refusal(folder)
    else:
        assert model_folder.read(folder).pooling == "mean"


def test_a_tokenizers_code_is_noted(folder: Path) -> None:
    write(folder / "tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["tokenizing.Tokenizer", None]}})
    assert model_folder.read(folder).notes == ("auto_map in tokenizer_config.json is not followed",)


@pytest.mark.parametrize(
    ("model_type", "code", "part"),
    [
        ("bert", "modeling.Model", "the code of modeling.Model"),
        ("bert", "modeling_hf_nomic_bert.NomicBertModel", "the code of modeling_hf"),  # another architecture's
        ("nomic_bert", "someone/else--modeling_hf_nomic_bert.NomicBertModel", "the code of someone/else--modeling_hf"),
        ("mistral", "modeling_own.MistralForCausalLM", "the code of modeling_own.MistralForCausalLM"),
        ("qwen2", "modeling_own.Qwen2Model", "the code of modeling_own.Qwen2Model"),
        ("qwen2", "modeling.Qwen2Model", "the code of modeling.Qwen2Model"),  # without is_causal
        ("no-such-thing", "modeling.Model", "the code of modeling.Model"),
        ("bert", "jinaai/jina-bert-flash-implementation--modeling_lora.X", "no form of it"),
    ],
)
def test_unknown_code_is_refused_by_its_name(folder: Path, model_type: str, code: str, part: str) -> None:
    change(folder / "config.json", model_type=model_type, auto_map={"AutoModel": code})
    message = refusal(folder)
    assert part in message
    assert "never run" in message


def test_without_transformers_no_architecture_is_judged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(folder / "config.json", model_type="no-such-thing")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert model_folder.read(folder).architecture == "no-such-thing"
