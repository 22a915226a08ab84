"""What the library is told, of several versions' worth of arguments, and which GPU it is shown."""

import dataclasses
import logging
from pathlib import Path

import pytest

from engine.machine.cuda_driver import Gpu
from engine.tensorrt_llm.engine import hide_other_gpus
from engine.tensorrt_llm.loading import NO_TELEMETRY, buckets, llm_arguments
from engine.tensorrt_llm.offer import TensorRTLLMConfig
from engine.tensorrt_llm.planning.checkpoint import Checkpoint
from engine.tensorrt_llm.planning.plan import ours
from engine.types import ModelError
from tests.engine.tensorrt_llm.header_models import write_model

FIELDS = frozenset(
    (
        "encode_only",
        "skip_tokenizer_init",
        "dtype",
        "max_batch_size",
        "max_num_tokens",
        "max_seq_len",
        "attn_backend",
        "model_kwargs",
        "cuda_graph_config",
        "trust_remote_code",
    )
)


@pytest.fixture
def chosen(tmp_path: Path) -> TensorRTLLMConfig:
    folder = dataclasses.replace(write_model(tmp_path), max_seqlen=96)
    return TensorRTLLMConfig(
        folder=folder,
        model_class=ours(folder),
        weights=folder.weights_folder,
        checkpoint=Checkpoint(algorithm=""),
        version="1.4.0rc1",
        gpu=Gpu(0, "NVIDIA H100", (9, 0), 80 << 30),
        dtype="bfloat16",
        max_num_tokens=4096,
        max_num_seqs=32,
        records_graphs=False,
        memory_share=1.0,
        notes=(),
    )


def test_what_is_said(chosen: TensorRTLLMConfig) -> None:
    """Sequences are whole: what is a batch's limit here is one there, under the library's names."""
    assert llm_arguments(chosen, FIELDS) == {
        "encode_only": True,
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "max_batch_size": 32,
        "max_num_tokens": 4096,
        "max_seq_len": 96,
        "attn_backend": "TRTLLM",
        "model_kwargs": {**chosen.model_class.model_kwargs, "dtype": "bfloat16", "torch_dtype": "bfloat16"},
        "cuda_graph_config": None,
        "trust_remote_code": False,
    }


def test_what_it_computes_in_is_said_where_the_library_reads_it(chosen: TensorRTLLMConfig) -> None:
    """It builds layers in the type that the configuration has, under one name or the other, and not in its argument."""
    config = llm_arguments(dataclasses.replace(chosen, dtype="float16"), FIELDS)["model_kwargs"]
    assert (config["dtype"], config["torch_dtype"]) == ("float16", "float16")


def test_a_class_that_computes_in_a_type_of_its_own_is_left_to_it(chosen: TensorRTLLMConfig) -> None:
    model_class = dataclasses.replace(chosen.model_class, takes_token_types=True)
    assert (
        llm_arguments(dataclasses.replace(chosen, model_class=model_class), FIELDS)["model_kwargs"]
        == model_class.model_kwargs
    )


def test_graphs_are_handed_on(chosen: TensorRTLLMConfig) -> None:
    graph_config = object()
    assert llm_arguments(chosen, FIELDS, graph_config=graph_config)["cuda_graph_config"] is graph_config


def test_nothing_else_that_a_version_knows_is_touched(chosen: TensorRTLLMConfig) -> None:
    assert set(llm_arguments(chosen, {*FIELDS, "kv_cache_config", "telemetry_config"})) == FIELDS


@pytest.mark.parametrize("name", ["skip_tokenizer_init", "attn_backend", "cuda_graph_config"])
def test_what_a_version_does_not_know_is_left_out_and_told(
    name: str, chosen: TensorRTLLMConfig, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "embedline.engine"):
        assert set(llm_arguments(chosen, FIELDS - {name})) == FIELDS - {name}
    assert [record.message for record in caplog.records] == [f"tensorrt_llm 1.4.0rc1 does not accept {name}"]


@pytest.mark.parametrize("name", ["encode_only", "model_kwargs", "max_seq_len", "trust_remote_code"])
def test_without_what_is_needed_it_is_refused(name: str, chosen: TensorRTLLMConfig) -> None:
    with pytest.raises(ModelError, match=rf"^tensorrt_llm 1\.4\.0rc1 takes no {name}; "):
        llm_arguments(chosen, FIELDS - {name})


def test_every_word_against_telemetry_that_is_known_is_said() -> None:
    assert NO_TELEMETRY == {"TRTLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "TELEMETRY_DISABLED": "1"}


def test_small_shapes_alone() -> None:
    assert buckets(max_num_seqs=32, max_num_tokens=16_384, max_seqlen=8192) == {
        "batch_sizes": [1, 2, 4, 8],
        "num_tokens": [32, 64, 128, 256, 512, 1024],
        "seq_lens": [32, 64, 128, 256, 512],
    }


def test_none_is_larger_than_a_limit() -> None:
    assert buckets(max_num_seqs=5, max_num_tokens=300, max_seqlen=128) == {
        "batch_sizes": [1, 2, 4],
        "num_tokens": [32, 64, 128, 256],
        "seq_lens": [32, 64, 128],
    }


@pytest.mark.parametrize("limit", [1, 7, 31, 33, 1000])
def test_there_is_always_one(limit: int) -> None:
    """An empty list, or none, would leave the library without graphs, of which it only warns."""
    found = buckets(max_num_seqs=limit, max_num_tokens=limit, max_seqlen=limit)

    for sizes in found.values():
        assert sizes
        assert max(sizes) <= limit
        assert sorted(set(sizes)) == sizes


@pytest.mark.parametrize(
    ("device", "before", "after"),
    [
        ("cuda:0", None, "0"),
        ("cuda:3", None, "3"),
        ("cuda:1", "", "1"),
        ("cuda:1", "6,4,2", "4"),  # numbers of devices are places in the list, as CUDA has it
        ("cuda:1", "GPU-5f3a, GPU-9c1b", "GPU-9c1b"),
        ("cuda:0", "MIG-1d2e", "MIG-1d2e"),
        ("cuda:0", "2,-1,3", "2"),  # CUDA takes what is before the first that is none
    ],
)
def test_one_of_the_list(device: str, before: str | None, after: str) -> None:
    environ = {} if before is None else {"CUDA_VISIBLE_DEVICES": before}
    hide_other_gpus(device, environ)
    assert environ == {"CUDA_VISIBLE_DEVICES": after}
