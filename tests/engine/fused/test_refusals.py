"""What a start is told that the fused engine ends: whose fault it is, and what could serve the model instead."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from transformers import PretrainedConfig

from engine.fused.adapters.adapter import activation_of, check_rope, require
from engine.fused.offer import check_outputs
from engine.model import model_folder
from engine.model.tasks import SequenceScores, Task, TokenWeights
from engine.selftest import selfcheck
from engine.selftest.comparison import not_finite
from engine.types import DeviceTrouble, EngineError, EngineErrorKind, ModelError
from tests.engine.tiny_models import save


@pytest.mark.parametrize(
    ("kind", "is_the_devices", "words"),
    [
        (EngineErrorKind.FAILED, False, "; --engine transformers may"),
        (EngineErrorKind.NON_FINITE, False, "; --engine transformers may"),
        (EngineErrorKind.OUT_OF_MEMORY, True, "; free some memory there, or lower --max-batch-tokens"),
        (EngineErrorKind.FATAL, True, "the GPU is lost to this process"),
    ],
)
def test_whose_fault_it_is(kind: EngineErrorKind, is_the_devices: bool, words: str) -> None:
    error = selfcheck.cannot_run("fused", EngineError(kind, "boom"))
    assert isinstance(error, DeviceTrouble) is is_the_devices
    assert str(error).startswith("the fused engine can't run the model: boom")
    assert words in str(error)


@pytest.mark.parametrize(
    ("engine", "dtype", "words"),
    [
        ("fused", "float16", "; --dtype bfloat16 may serve it"),
        ("transformers", "float16", "; --dtype bfloat16 or float32 may serve it"),
        ("fused", "bfloat16", "; --engine transformers --dtype float32 --quantization none may serve it"),
        ("openvino", "float32", "; --engine transformers --dtype float32 --quantization none may serve it"),
        ("transformers", "float32", "; its weights may be damaged, and no engine would do better"),
    ],
)
def test_rows_that_are_not_finite(engine: str, dtype: str, words: str) -> None:
    assert str(not_finite(engine, dtype)) == f"the model gives rows that are not finite{words}"


def test_a_configuration_that_is_not_for_it_names_another_engine() -> None:
    config = PretrainedConfig()
    config.rope_parameters = {"rope_type": "spiral", "rope_theta": 1e4}
    config.hidden_size = 8
    refused = []
    for asked in (
        lambda: activation_of("sine"),
        lambda: require(config, hidden_size=(16,)),
        lambda: check_rope(config),
    ):
        with pytest.raises(ModelError) as error:
            asked()
        refused.append(str(error.value))
    assert all(message.endswith("; --engine transformers may serve the model") for message in refused)


@pytest.mark.holds("What a model is for")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"is_static": True}, "the fused engine computes no static embeddings; --engine static does"),
        (
            {"task": Task.CLASSIFY, "heads": (SequenceScores(labels=("a",)),)},
            "the fused engine computes embeddings only; this model is for classify (LOGITS); "
            "--engine transformers may serve the model",
        ),
        (
            {"heads": (TokenWeights(unused_ids=()),)},
            "the fused engine computes embeddings only; this model is for embed (SPARSE); "
            "--engine transformers may serve the model",
        ),
        (
            {"include_prompt": False},
            "this model leaves the prompt's tokens out of the pooling (include_prompt), which the fused engine "
            "can't do; "
            "--engine transformers may serve the model",
        ),
        (
            {"poolings": ("max",)},
            "the fused engine pools by one of cls, mean and last-token, not by max; --engine transformers does",
        ),
    ],
)
def test_what_it_gives_no_rows_of(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = model_folder.read(save("bert", tmp_path / "model"))
    check_outputs(folder)
    with pytest.raises(ModelError) as refused:
        check_outputs(dataclasses.replace(folder, **changes))
    assert str(refused.value) == message
