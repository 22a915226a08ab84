"""What a model folder says, and each way in which one can be wrong. Needs no torch."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from engine.model import model_folder
from engine.model.model_folder import ModelFolder
from engine.model.tasks import Task
from engine.types import ModelError
from tests.engine.folder_files import change, write
from tests.engine.model.detection import shapes
from tests.engine.model.sentence_folder import BERT, NORMALIZE, POOLING, TRANSFORMER, refusal


def test_the_packaged_minilm(minilm_folder: Path) -> None:
    assert model_folder.read(minilm_folder) == ModelFolder(
        path=minilm_folder,
        architecture="bert",
        config=json.loads((minilm_folder / "config.json").read_text()),
        is_translated=False,
        architectures=("BertModel",),
        hidden_size=384,
        vocab_size=30522,
        max_seqlen=256,
        max_seqlen_source="sentence_bert_config.json",
        padding_idx=None,
        do_lower_case=False,
        poolings=("mean",),
        pooling_source="1_Pooling/config.json",
        steps=(),
        normalize=True,
        prompts={},
        default_prompt_name=None,
        include_prompt=True,
        notes=(),
        task=Task.EMBED,
        task_source="modules.json",
    )


def test_reading_imports_neither_torch_nor_transformers(folder: Path) -> None:
    """Importing them takes seconds, and the supervisor reads folders too."""
    code = (
        "import sys; from engine.model import model_folder; from engine.store import model_source; "
        "model_folder.read(sys.argv[1]); "
        "print(sorted({'torch', 'transformers', 'huggingface_hub', 'safetensors'} & set(sys.modules)))"
    )
    root = str(Path(__file__).resolve().parents[3])
    printed = subprocess.run(
        [sys.executable, "-P", "-c", code, str(folder)], env={"PYTHONPATH": root}, capture_output=True, check=True
    )
    assert printed.stdout == b"[]\n"


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": ["lasttoken"]}, "last"),
        ({"pooling_mode": "mean", "pooling_mode_cls_token": True}, "mean"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode": "mean_sqrt_len_tokens"}, "mean_sqrt_len_tokens"),
        ({"pooling_mode_weightedmean_tokens": True, "pooling_mode_mean_tokens": False}, "weightedmean"),
        ({"pooling_mode": ["mean", "cls"]}, "mean+cls"),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": True}, "mean+last"),
        ({}, "mean"),
    ],
)
def test_pooling_is_what_the_pooling_module_says(folder: Path, config: dict[str, Any], pooling: str) -> None:
    write(folder / "1_Pooling" / "config.json", config)
    read = model_folder.read(folder)
    assert read.pooling == pooling
    assert read.dimensions == 32 * len(pooling.split("+"))


@pytest.mark.parametrize(
    ("asked", "pooling"), [("cls", "cls"), ("mean", "mean"), ("last-token", "last"), ("last", "last")]
)
def test_pooling_can_be_overruled(folder: Path, asked: str, pooling: str) -> None:
    write(folder / "1_Pooling" / "config.json", {"pooling_mode_max_tokens": True})
    assert model_folder.read(folder, pooling=asked).pooling == pooling


@pytest.mark.parametrize(
    ("config", "part"),
    [
        ({"pooling_mode_attention": True}, "'pooling_mode_attention'"),
        ({"pooling_mode": "attention"}, "'attention'"),
        ({"pooling_mode": ["cls", "attention"]}, "'attention'"),
        ({"pooling_mode": 3}, "'3'"),
        ({"pooling_mode": []}, "'pooling_mode' in 1_Pooling/config.json"),
        ({"pooling_mode": None}, "'None'"),
        ({"pooling_mode_cls_token": "no"}, "'pooling_mode_cls_token' in 1_Pooling/config.json"),
        ({"include_prompt": "no"}, "'include_prompt' in 1_Pooling/config.json"),
        ({"window": 8}, "'window' in 1_Pooling/config.json"),
    ],
)
def test_a_pooling_that_is_not_supported_is_named(folder: Path, config: dict[str, Any], part: str) -> None:
    write(folder / "1_Pooling" / "config.json", config)
    assert part in refusal(folder)


def test_an_unknown_override_names_the_flag(folder: Path) -> None:
    assert "--pooling asks for pooling 'attention'" in refusal(folder, pooling="attention")


@pytest.mark.parametrize(
    ("modules", "part"),
    [
        ([TRANSFORMER, POOLING, {**NORMALIZE, "type": "sentence_transformers.models.LSTM"}], "LSTM"),
        ([{**TRANSFORMER, "type": "sse.SSE"}, POOLING], "names 'sse.SSE', which is code"),
        ([TRANSFORMER, POOLING, {**NORMALIZE, "type": "custom_st.Normalize"}], "'custom_st.Normalize'"),
        ([TRANSFORMER, NORMALIZE, POOLING], "Transformer, Normalize, Pooling"),
        ([TRANSFORMER], "Transformer"),
        ([], "nothing"),
        ([TRANSFORMER, {**POOLING, "path": "../elsewhere"}], "out of the folder"),
        ([TRANSFORMER, {**POOLING, "path": "/etc"}], "out of the folder"),
        ([TRANSFORMER, {**POOLING, "path": "2_Pooling"}], "2_Pooling/config.json"),
        ({"0": TRANSFORMER}, "not a list"),
        ([TRANSFORMER, "Pooling"], "not a list"),
        ([{"path": ""}, POOLING], "'None'"),
        ([TRANSFORMER, {**POOLING, "path": 1}], "'path' of a module in modules.json"),
        ([TRANSFORMER, {**POOLING, "name": "0"}], "two modules of one name"),
    ],
)
def test_modules_that_are_not_supported_are_named(folder: Path, modules: Any, part: str) -> None:
    write(folder / "modules.json", modules)
    assert part in refusal(folder)


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({}, "mean"),
        ({"architectures": ["MistralForCausalLM"]}, "last"),
        ({"architectures": ["LlamaForCausalLM"], "is_causal": False}, "mean"),
        ({"architectures": []}, "mean"),
    ],
)
def test_without_modules_it_is_done_as_sentence_transformers_does(
    folder: Path, config: dict[str, Any], pooling: str
) -> None:
    (folder / "modules.json").unlink()
    change(folder / "config.json", **config)
    read = model_folder.read(folder)
    assert (read.pooling, read.normalize) == (pooling, False)
    assert any("no modules.json" in note for note in read.notes)


def test_the_shortest_of_what_is_said_and_what_is_possible_is_the_length(folder: Path) -> None:
    assert model_folder.read(folder).max_seqlen == 64
    write(folder / "tokenizer_config.json", {"model_max_length": 1e30})
    assert model_folder.read(folder).max_seqlen == 64
    write(folder / "tokenizer_config.json", {"model_max_length": 60})
    assert model_folder.read(folder).max_seqlen == 60
    write(folder / "sentence_bert_config.json", {"max_seq_length": 62})
    assert model_folder.read(folder).max_seqlen == 62
    change(folder / "sentence_bert_config.json", tokenizer_args={"model_max_length": 50})
    assert model_folder.read(folder).max_seqlen == 50


def test_options_of_the_transformer_that_change_no_row_are_taken(folder: Path) -> None:
    change(
        folder / "sentence_bert_config.json",
        config_kwargs={"hidden_size": 32, "unpad_inputs": False},
        model_args={"attn_implementation": "eager", "torch_dtype": "float16"},
        processing_kwargs={"text": {"padding": True}, "chat_template": {"add_generation_prompt": True}},
        query_length=None,
    )
    assert model_folder.read(folder).hidden_size == 32


def test_a_length_beyond_the_positions_is_cut_and_noted(folder: Path) -> None:
    write(folder / "sentence_bert_config.json", {"max_seq_length": 512})
    read = model_folder.read(folder)
    assert read.max_seqlen == 64
    assert any("64 tokens" in note for note in read.notes)


@pytest.mark.parametrize(
    ("model_type", "pad_token_id", "padding_idx", "max_seqlen"),
    [
        ("roberta", 1, 1, 62),
        ("xlm-roberta", None, 1, 62),
        ("mpnet", 1, 1, 62),
        ("roberta", 0, 0, 63),
        ("bert", 0, None, 64),
    ],
)
def test_roberta_and_its_kin_lose_positions_to_padding(
    folder: Path, model_type: str, pad_token_id: int | None, padding_idx: int | None, max_seqlen: int
) -> None:
    change(folder / "config.json", model_type=model_type, pad_token_id=pad_token_id)
    read = model_folder.read(folder)
    assert (read.padding_idx, read.max_seqlen) == (padding_idx, max_seqlen)


def test_longrope_ends_where_one_sequence_would_change_the_others(folder: Path) -> None:
    rope = {"type": "longrope", "long_factor": [1.0], "short_factor": [1.0]}
    sizes = {"model_type": "llama", "architectures": ["LlamaModel"], "original_max_position_embeddings": 32}
    change(folder / "config.json", rope_scaling=rope, **sizes)
    read = model_folder.read(folder)
    assert read.max_seqlen == 32
    assert any("longrope" in note for note in read.notes)


def test_a_length_that_nobody_says_is_512(folder: Path) -> None:
    change(folder / "config.json", max_position_embeddings=None)
    read = model_folder.read(folder)
    assert read.max_seqlen == 512
    assert any("512" in note for note in read.notes)


def test_other_names_for_the_sizes_and_a_text_part_are_understood(folder: Path) -> None:
    change(folder / "config.json", hidden_size=None, dim=48, max_position_embeddings=None, n_positions=40)
    assert (model_folder.read(folder).hidden_size, model_folder.read(folder).max_seqlen) == (48, 40)
    text = {**BERT, "model_type": "other", "vocab_size": 7}
    write(folder / "config.json", {"model_type": "gemma3", "text_config": text})
    assert (model_folder.read(folder).vocab_size, model_folder.read(folder).architecture) == (7, "gemma3")


@pytest.mark.holds("Prompts")
def test_prompts_and_lower_case(folder: Path) -> None:
    write(folder / "sentence_bert_config.json", {"max_seq_length": None, "do_lower_case": True})
    prompts = {"query": "query: ", "document": "", "unset": None}
    write(folder / "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": "query"})
    read = model_folder.read(folder)
    assert read.do_lower_case
    assert read.prompts == {"query": "query: ", "document": ""}
    assert (read.default_prompt_name, read.default_prompt) == ("query", "query: ")


def test_a_switch_that_old_files_have_as_null_is_off(folder: Path) -> None:
    write(folder / "sentence_bert_config.json", {"max_seq_length": 8, "do_lower_case": None})
    assert not model_folder.read(folder).do_lower_case


def test_a_default_prompt_counts_only_beside_modules_json(folder: Path) -> None:
    """As in sentence-transformers, whose classes read it nowhere else."""
    write(folder / "config_sentence_transformers.json", {"prompts": {"q": "q: "}, "default_prompt_name": "q"})
    assert model_folder.read(folder).default_prompt == "q: "
    (folder / "modules.json").unlink()
    read = model_folder.read(folder)
    assert (read.default_prompt_name, read.prompts) == (None, {"q": "q: "})


def test_keys_that_the_library_does_not_read_are_noted(folder: Path) -> None:
    write(folder / "config_sentence_transformers.json", {"truncate_dims": 8})
    assert "sentence-transformers does not read: truncate_dims" in model_folder.read(folder).notes[-1]


def test_how_much_of_a_row_is_kept(folder: Path) -> None:
    """Each of its own kind of rows: a library class reads one of them, only beside modules.json."""
    write(folder / "config_sentence_transformers.json", {"truncate_dim": 16, "max_active_dims": 8})
    read = model_folder.read(folder)
    assert (read.truncate_dim, read.max_active_dims) == (16, None)
    assert read.dimensions > 16  # a request may ask for all

    (folder / "modules.json").unlink()
    assert model_folder.read(folder).truncate_dim is None


@pytest.mark.parametrize("key", ["truncate_dim", "max_active_dims"])
@pytest.mark.parametrize("wrong", [0, -1, True, 16.0, "16"])
def test_what_is_no_number_to_cut_rows_to_is_refused(folder: Path, key: str, wrong: object) -> None:
    write(folder / "config_sentence_transformers.json", {key: wrong})
    with pytest.raises(ModelError, match=f"{key} in config_sentence_transformers.json is not a whole number from 1"):
        model_folder.read(folder)


@pytest.mark.parametrize(
    ("name", "fields", "part"),
    [
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}, "'query'"),
        ("config_sentence_transformers.json", {"model_type": "CrossEncoder"}, "Transformer, Pooling"),
        ("config_sentence_transformers.json", {"model_type": "Oracle"}, "Oracle"),
        ("config_sentence_transformers.json", {"prompts": []}, "'prompts' in config_sentence_transformers.json"),
        ("config_sentence_transformers.json", {"prompts": {"document": None, "query": 5}}, "'query' is not a text"),
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
        (
            "sentence_bert_config.json",
            {"modality_config": {"message": {"method": "forward"}}},
            "Transformer module",
        ),
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


@pytest.mark.parametrize(("model_type", "has_way_on"), [("bert", True), ("no-such-thing", False)])
def test_trust_is_offered_where_transformers_has_a_class(folder: Path, model_type: str, has_way_on: bool) -> None:
    change(folder / "config.json", model_type=model_type, auto_map={"AutoModel": "modeling.Model"})
    assert ("--trust-config-key auto_map" in refusal(folder)) == has_way_on
    assert ("has no class for 'no-such-thing'" in refusal(folder)) != has_way_on


def test_without_transformers_no_architecture_is_judged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(folder / "config.json", model_type="no-such-thing")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert model_folder.read(folder).architecture == "no-such-thing"


@pytest.mark.parametrize(
    ("said", "cut"),
    [
        ({}, ", and cuts a text to 2560 characters and then to 512 tokens"),
        ({"max_length": 100}, ", and cuts a text to 500 characters and then to 100 tokens"),
        ({"max_length": None}, ""),
    ],
)
def test_what_model2vec_itself_does_with_a_text(tmp_path: Path, said: dict[str, Any], cut: str) -> None:
    """Five characters is the median of the words' lengths."""
    shapes.model2vec(tmp_path)
    write(tmp_path / "config.json", {"model_type": "model2vec", "normalize": True, **said})
    (note,) = model_folder.read(tmp_path).notes
    assert note == (
        "unknown tokens count in the mean, as in sentence-transformers; model2vec's own code leaves them out" + cut
    )
