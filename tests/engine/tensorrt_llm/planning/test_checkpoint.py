"""How quantized checkpoints are classified, by the library's rules, and what is refused before it would go wrong."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from engine.machine.cuda_driver import Gpu
from engine.model import model_folder
from engine.model.tasks import AnswerScore
from engine.tensorrt_llm.planning.checkpoint import PLAIN, Checkpoint, check_dtype, check_gpu, classify
from engine.tensorrt_llm.planning.quantization import BLOCKS, FP8, NVFP4, ROWS, ExcludedModules
from engine.tensorrt_llm.quantize.job import quantize
from engine.types import ModelError
from tests.engine import engines
from tests.engine.tensorrt_llm.header_models import HIDDEN, Headers, plain, write_headers
from tests.engine.tensorrt_llm.quantize.models import wide
from tests.engine.tensorrt_llm.quantized_models import (
    ACCEPTED,
    BLOCKWISE,
    ROWWISE,
    compressed,
    modelopt,
    quantized,
    refused,
    write,
)

_Q = "model.layers.0.self_attn.q_proj"
_O = "model.layers.0.self_attn.o_proj"


@pytest.mark.parametrize("case", ACCEPTED)
@pytest.mark.parametrize("prefix", ["", "model."])
def test_each_algorithm(case: str, prefix: str, tmp_path: Path) -> None:
    algorithm, scale, inline, beside = ACCEPTED[case]
    folder = write(tmp_path, quantized(algorithm, prefix=prefix, scale=scale), inline, beside)
    found = classify(folder)
    assert found.algorithm == algorithm
    assert found.note.startswith(f"the weights are stored as {'NVFP4' if algorithm == NVFP4 else 'FP8'} (")


def test_plain_weights(tmp_path: Path) -> None:
    assert classify(write(tmp_path, plain())) == Checkpoint(algorithm=PLAIN)
    assert classify(write(tmp_path, plain(prefix="model."))) == Checkpoint(algorithm=PLAIN)


@pytest.mark.holds("TensorRT-LLM")
@pytest.mark.parametrize(
    ("inline", "beside", "named"),
    [
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, None, "weight_block_size"),
        ({"quant_method": "fp8", "activation_scheme": "static"}, None, "weight_block_size"),
        ({**BLOCKWISE, "weight_block_size": [64, 128]}, None, "weight_block_size"),
        ({"quant_method": "fbgemm_fp8"}, None, "would take them for plain weights"),
        (compressed({"strategy": "tensor"}, {"strategy": "tensor"}), None, "per tensor and tensor"),
        (compressed({"strategy": "channel"}, {"strategy": "tensor"}), None, "per channel and tensor"),
        (compressed({"strategy": "channel"}, None), None, "per channel and None"),
        (
            compressed({"strategy": "block", "block_structure": [128, 128]}, {"strategy": "group", "group_size": 64}),
            None,
            "per block and group",
        ),
        (
            compressed({"strategy": "block", "block_structure": [64, 128]}, {"strategy": "group", "group_size": 128}),
            None,
            "per block and group",
        ),
        (
            compressed(
                {"strategy": "tensor_group", "num_bits": 4},
                {"strategy": "tensor_group"},
                format="nvfp4-pack-quantized",
            ),
            None,
            "NVFP4 as Model Optimizer stores it",
        ),
        (
            {**ROWWISE, "config_groups": {"a": ROWWISE["config_groups"]["group_0"], "b": {"weights": None}}},
            None,
            "config.json has 2",
        ),
        ({**ROWWISE, "ignore": "lm_head"}, None, "a list of names as 'ignore'"),
        ({**ROWWISE, "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, None, "kv_cache_scheme"),
        (None, modelopt("FP8", kv_cache_quant_algo="FP8"), "kv_cache_quant_algo"),
        (None, modelopt("FP8_PB_WO"), "quant_algo 'FP8_PB_WO'"),
        (None, modelopt("NVFP4", group_size=32), "NVFP4 in groups of 16"),
        (None, modelopt("W4A16_AWQ"), "W4A16_AWQ"),
        (None, modelopt("MIXED_PRECISION"), "MIXED_PRECISION"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, None, "hf_quant_config.json, which the folder lacks"),
        ({"quant_algo": "FP8"}, None, "hf_quant_config.json, which the folder lacks"),
    ],
)
def test_what_the_library_would_refuse_or_get_wrong(inline: Any, beside: Any, named: str, tmp_path: Path) -> None:
    assert named in refused(write(tmp_path, quantized(FP8), inline, beside))


def test_where_the_library_does_not_look(tmp_path: Path) -> None:
    assert "would take them for plain weights" in refused(write(tmp_path, quantized(ROWS), compression_config=ROWWISE))


def test_quantized_weights_that_no_file_describes(tmp_path: Path) -> None:
    assert "the model's files do not describe the scales" in refused(write(tmp_path, quantized(FP8)))


@pytest.mark.parametrize(
    ("head", "named"),
    [
        ({"score.weight": ("F8_E4M3", (3, HIDDEN))}, "needs plain numbers in the tensor 'score.weight'"),
        ({}, "looks for the tensor 'score.weight'"),
        ({"score.weight": ("BF16", (3, HIDDEN))}, ""),
    ],
)
def test_the_layer_of_scores_is_plain(head: Headers, named: str, tmp_path: Path) -> None:
    config = {"architectures": ["Qwen3ForSequenceClassification"], "num_labels": 3}
    folder = write(tmp_path, quantized(FP8) | head, None, modelopt("FP8"), **config)
    assert named in refused(folder) if named else classify(folder).algorithm == FP8


@pytest.mark.parametrize("is_tied", [True, False])
def test_the_rows_of_answers_are_plain(is_tied: bool, tmp_path: Path) -> None:
    tensors = quantized(FP8) | {"lm_head.weight": ("F8_E4M3", (100, HIDDEN))}
    folder = write(tmp_path, tensors, None, modelopt("FP8"), tie_word_embeddings=is_tied)
    folder = dataclasses.replace(folder, heads=(AnswerScore(yes_id=1, no_id=2),))
    assert classify(folder).algorithm == FP8 if is_tied else "tensor 'lm_head.weight'" in refused(folder)


def test_what_embedline_quantize_writes_is_read(tmp_path: Path) -> None:
    quantize(wide(tmp_path / "plain"), tmp_path / "fp8", report=lambda *_: None)
    assert classify(model_folder.read(tmp_path / "plain", pooling="mean")).algorithm == PLAIN
    assert classify(model_folder.read(tmp_path / "fp8", pooling="mean")).algorithm == BLOCKS


def test_of_other_architectures_plain_weights_alone(tmp_path: Path) -> None:
    bert: Headers = {"bert.encoder.layer.0.attention.self.query.weight": ("F32", (HIDDEN, HIDDEN))}
    assert classify(write(tmp_path, bert, model_type="bert")).algorithm == PLAIN
    folder = write(tmp_path, quantized(FP8), None, modelopt("FP8"), model_type="bert")
    assert "has no quantized layers for bert" in refused(folder)


def test_blocks_are_computed_in_bfloat16() -> None:
    check_dtype(Checkpoint(algorithm=BLOCKS), "bfloat16")
    check_dtype(Checkpoint(algorithm=FP8), "float16")
    with pytest.raises(ModelError, match="--dtype float16 is not for FP8_BLOCK_SCALES"):
        check_dtype(Checkpoint(algorithm=BLOCKS), "float16")


COMPUTES: dict[str, set[tuple[int, int]]] = {
    PLAIN: {(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0)},
    FP8: {(8, 9), (9, 0), (10, 0), (10, 3), (12, 0)},
    BLOCKS: {(9, 0), (10, 0), (10, 3)},
    ROWS: {(9, 0)},
    NVFP4: {(10, 0), (10, 3), (12, 0)},
}


@pytest.mark.holds("TensorRT-LLM")
@pytest.mark.parametrize("algorithm", COMPUTES)
@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0)])
def test_which_gpu_computes_what(algorithm: str, capability: tuple[int, int]) -> None:
    gpu = Gpu(1, "Some GPU", capability, 1 << 34)
    checkpoint = Checkpoint(algorithm=algorithm)
    if capability in COMPUTES[algorithm]:
        check_gpu(checkpoint, gpu)
        return
    message = engines.refusal(lambda: check_gpu(checkpoint, gpu))
    assert message.startswith(f"cuda:1 (Some GPU, compute capability {capability[0]}.{capability[1]}) ")
    assert ("--engine" in message) or ("plain weights" in message)


@pytest.mark.holds("TensorRT-LLM")
@pytest.mark.parametrize(
    ("case", "changes", "named"),
    [
        ("modelopt", {f"{_O}.weight_scale": None}, "looks for the tensor 'layers.0.self_attn.o_proj.weight_scale'"),
        ("modelopt", {f"{_O}.weight_scale": ("F32", (HIDDEN, 1))}, "to be [] or [1], and it is [256, 1]"),
        ("modelopt", {f"{_O}.weight_scale": ("F8_E8M0", ())}, "it is F8_E8M0"),
        ("modelopt", {f"{_O}.weight": ("F8_E5M2", (HIDDEN, HIDDEN))}, "as F8_E4M3, and it is F8_E5M2"),
        ("modelopt", {f"{_O}.weight": ("F8_E4M3", (HIDDEN, 1, HIDDEN))}, "to be [N, K]"),
        ("modelopt", {f"{_Q}.input_scale": None}, "only some of them have an input_scale"),
        ("modelopt", {f"{_Q}.weight": ("BF16", (HIDDEN, HIDDEN))}, "only some of them are quantized"),
        ("modelopt", {f"{_Q}.weight": None}, "looks for the tensor 'layers.0.self_attn.q_proj.weight'"),
        ("modelopt", {"model.norm.weight": ("F8_E4M3", (HIDDEN,))}, "needs plain numbers in the tensor 'norm.weight'"),
        ("modelopt", {"model.embed_tokens.weight": ("F8_E4M3", (100, HIDDEN))}, "tensor 'embed_tokens.weight'"),
        ("modelopt", {f"{_Q}.bias": ("F8_E4M3", (HIDDEN,))}, "self_attn.q_proj.bias"),
        ("blocks", {f"{_O}.weight_scale_inv": ("F32", (4, 4))}, "to be [2, 2] or [2, 1, 2, 1], and it is [4, 4]"),
        ("blocks", {f"{_O}.weight": ("F8_E4M3", (192, HIDDEN))}, "multiples of 128 for FP8_BLOCK_SCALES"),
        (
            "blocks",
            {f"{_Q}.weight_scale_inv": None, f"{_Q}.weight_scale": ("F32", (2, 2))},
            "the names of their scales differ",
        ),
        ("compressed-tensors, rows", {f"{_O}.weight_scale": ("F32", ())}, "to be [256] or [256, 1], and it is []"),
        ("compressed-tensors, rows", {f"{_O}.weight_scale_inv": ("F32", (256, 1))}, "does not expect"),
        ("modelopt, NVFP4", {f"{_O}.input_scale": None}, "needs static scales of inputs for NVFP4"),
        ("modelopt, NVFP4", {f"{_O}.weight_scale_2": None}, "looks for the tensor"),
        ("modelopt, NVFP4", {f"{_O}.weight_scale": ("F8_E4M3", (256, 8))}, "to be [256, 16], and it is [256, 8]"),
        ("modelopt, NVFP4", {f"{_O}.weight_scale": ("U8", (256, 16))}, "as F8_E4M3, and it is U8"),
    ],
)
def test_foreign_scales_and_tensors_are_named(
    case: str, changes: dict[str, tuple[str, tuple[int, ...]] | None], named: str, tmp_path: Path
) -> None:
    algorithm, scale, inline, beside = ACCEPTED[case]
    tensors: dict[str, Any] = {**quantized(algorithm, scale=scale), **changes}
    message = refused(write(tmp_path, {name: one for name, one in tensors.items() if one}, inline, beside))
    assert named in message
    assert message.startswith("the tensorrt-llm engine ")


def test_a_block_grid_may_have_modelopts_four_dimensions(tmp_path: Path) -> None:
    tensors = quantized(BLOCKS)
    tensors[f"{_O}.weight_scale"] = ("F32", (2, 1, 2, 1))
    assert classify(write(tmp_path, tensors, None, modelopt("fp8_pb_wo"))).algorithm == BLOCKS


def test_every_file_of_the_folder_is_read(tmp_path: Path) -> None:
    folder = write(tmp_path, plain())
    write_headers(tmp_path / "consolidated.safetensors", plain())
    write_headers(tmp_path / "other.safetensors", {"linear.weight": ("F32", (1, HIDDEN))})
    assert classify(folder).algorithm == PLAIN
    write_headers(tmp_path / "older.safetensors", {"model.norm.weight": ("F32", (HIDDEN,))})
    assert "two of them have the tensor 'norm.weight'" in refused(folder)


def test_a_damaged_file_is_said_to_be(tmp_path: Path) -> None:
    folder = write(tmp_path, plain())
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert "is not a safetensors file" in refused(folder)


def test_layers_left_plain_are_as_the_files_say(tmp_path: Path) -> None:
    tensors = quantized(BLOCKS, but="layers.1.mlp", scale="weight_scale_inv")
    names = [f"model.layers.1.mlp.{name}_proj" for name in ("gate", "up", "down")]
    assert classify(write(tmp_path, tensors, {**BLOCKWISE, "modules_to_not_convert": names})).algorithm == BLOCKS
    message = refused(write(tmp_path, tensors, {**BLOCKWISE, "modules_to_not_convert": names[:2]}))
    assert "takes the tensor 'layers.1.mlp.down_proj.weight' for a quantized one, and it is stored plain" in message
    message = refused(write(tmp_path, tensors, {**BLOCKWISE, "modules_to_not_convert": [*names, "model.layers.0.*"]}))
    assert "may take the tensor 'layers.0.self_attn.k_proj.weight' for a plain one" in message
    # Older versions look at no parents, newer ones do.
    assert "for a quantized one" in refused(
        write(tmp_path, tensors, {**BLOCKWISE, "modules_to_not_convert": ["model.layers.1.mlp"]})
    )


@pytest.mark.parametrize(
    ("patterns", "certainly", "maybe"),
    [
        ([], False, False),
        (["lm_head"], False, False),
        (["a.b.c"], True, True),
        (["a.*"], True, True),
        (["a.b"], False, True),
        (["a.b.c.*"], False, True),
        (["re:.*b\\.c$"], False, True),
        (["re:^a.b"], False, True),
        (["re:.*\\.b"], False, True),
        (["re:b"], False, False),
    ],
)
def test_what_versions_make_of_names(patterns: list[str], certainly: bool, maybe: bool) -> None:
    excluded = ExcludedModules(patterns)
    assert (excluded.certainly(["a.b.c"]), excluded.maybe(["a.b.c"])) == (certainly, maybe)


@pytest.mark.parametrize("pattern", ["re:(a*)*b", "re:[ab]", "re:a+", "re:a|b", "re:\\d"])
def test_regular_expressions_of_strangers_are_not_run(pattern: str) -> None:
    with pytest.raises(ModelError, match="regular expression in the model's files"):
        ExcludedModules([pattern])
