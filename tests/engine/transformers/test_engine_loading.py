"""What the transformers engine loads, what it refuses, and when it pads."""

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModel

from engine.model import model_folder
from engine.transformers import selftest
from engine.transformers.forward import PackedForward, PaddedForward
from engine.transformers.loading import load_model
from engine.types import (
    Batch,
)
from tests.engine.engines import refusal
from tests.engine.folder_files import change
from tests.engine.tiny_models import arbitrary, save
from tests.engine.transformers.loaded import load, raw_rows, rows


def test_a_byte_order_mark_that_transformers_does_not_read_is_named(tiny: Path) -> None:
    (tiny / "config.json").write_bytes(b"\xef\xbb\xbf" + (tiny / "config.json").read_bytes())
    assert "config.json begins with a byte order mark" in refusal(lambda: load(tiny))


def test_a_tiny_model_in_bfloat16(tiny: Path) -> None:
    sequences = arbitrary((5, 9, 3))
    half, whole = load(tiny, dtype="bfloat16"), load(tiny, dtype="float32")
    assert (half.info.dtype, whole.info.dtype) == ("bfloat16", "float32")
    half_rows, whole_rows = rows(half, sequences), rows(whole, sequences)
    assert 0.99 < (half_rows * whole_rows).sum(axis=1).min() < 0.999999
    half.close()
    whole.close()


@pytest.mark.parametrize(("name", "value"), [("dtype", "float8"), ("device", "tpu"), ("pooling", "median")])
def test_an_impossible_option_is_named(tiny: Path, name: str, value: str) -> None:
    assert repr(value) in refusal(lambda: load(tiny, **{name: value}))


def test_limits_leave_room_for_the_longest_sequence(tiny: Path) -> None:
    loaded = load(tiny, max_num_tokens=16)
    assert loaded.limits.max_num_tokens == loaded.limits.max_seqlen == 64
    loaded.close()


def test_without_a_limit_the_engine_has_its_own(tiny: Path) -> None:
    loaded = load(tiny, max_num_tokens=None)
    assert loaded.limits.max_num_tokens >= 4096
    loaded.close()


def test_weights_of_another_architecture_are_refused(tiny: Path) -> None:
    change(tiny / "config.json", num_hidden_layers=5)
    assert "missing" in refusal(lambda: load(tiny))
    change(tiny / "config.json", num_hidden_layers=3, hidden_size=64)
    assert str(tiny) in refusal(lambda: load(tiny))


def test_a_missing_pooler_is_not_missed(tmp_path: Path) -> None:
    """Many files lack it, and no row comes from it."""
    folder = save("bert", tmp_path / "model")
    model = AutoModel.from_pretrained(folder, add_pooling_layer=False)
    shutil.rmtree(folder)
    model.save_pretrained(folder)
    load(folder).close()


def test_a_broken_weight_file_is_refused(tiny: Path) -> None:
    (tiny / "model.safetensors").write_bytes(b"\x00" * 100)
    assert str(tiny) in refusal(lambda: load(tiny))


def test_quantized_weights_are_refused(tiny: Path) -> None:
    change(tiny / "config.json", quantization_config={"quant_method": "fp8"})
    assert "only the fused engine reads them" in refusal(lambda: load(tiny))
    change(tiny / "config.json", quantization_config={"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"})
    assert "remove that entry, or take --engine fused" in refusal(lambda: load(tiny))


def test_a_configuration_cannot_choose_attention_or_outputs(tiny: Path) -> None:
    change(
        tiny / "config.json",
        attn_implementation="somebody/kernel",
        return_dict=False,
        output_hidden_states=True,
        use_cache=True,
    )
    loaded = load(tiny)
    assert loaded.info.notes[0].startswith("packed")
    assert raw_rows(loaded, [[5, 6], [7]]).shape == (2, loaded.info.dimensions)
    loaded.close()


@pytest.mark.holds("Network access")
def test_loading_makes_no_noise_and_no_connection(
    tiny: Path, no_network: None, capfd: pytest.CaptureFixture[str]
) -> None:
    load(tiny).close()
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


@pytest.fixture
def canary(tiny: Path) -> Path:
    """A folder with code that auto_map names; whoever imports it leaves a file there."""
    code = f"open({str(tiny / 'sang')!r}, 'w').close()\n"
    for name in ("modeling_canary.py", "configuration_canary.py", "tokenization_canary.py"):
        (tiny / name).write_text(code)
    names = {"AutoConfig": "configuration_canary.Config", "AutoModel": "modeling_canary.Model"}
    change(tiny / "config.json", auto_map=names)
    change(tiny / "tokenizer_config.json", auto_map={"AutoTokenizer": ["tokenization_canary.Tokenizer", None]})
    return tiny


@pytest.mark.holds("No data is run as code")
def test_code_in_a_folder_is_not_run_where_transformers_has_its_own(canary: Path) -> None:
    code = json.loads((canary / "config.json").read_text())["auto_map"]
    change(canary / "config.json", auto_map=None)
    folder = model_folder.read(canary)
    change(canary / "config.json", auto_map=code)
    assert "the code of configuration_canary.Config" in refusal(lambda: load(canary))
    load_model(folder, dtype=torch.float32)
    assert not os.path.exists(canary / "sang")


def test_code_in_a_folder_is_not_run_where_transformers_has_none(canary: Path) -> None:
    change(canary / "config.json", auto_map=None)
    folder = model_folder.read(canary)
    change(canary / "config.json", model_type="unheard-of", auto_map={"AutoModel": "modeling_canary.Model"})
    assert "modeling_canary" in refusal(lambda: load(canary))
    unchecked = dataclasses.replace(folder, architecture="unheard-of")
    assert str(canary) in refusal(lambda: load_model(unchecked, dtype=torch.float32))
    assert not os.path.exists(canary / "sang")


class Leaking:
    """A packed forward in which a little of each sequence's last token gets into the next one."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._right = PackedForward(*arguments, **named)

    def __call__(self, some: Batch) -> torch.Tensor:
        token_rows = self._right(some).clone()
        starts = torch.tensor(some.cu_seqlens[1:-1]).long()
        token_rows[starts] += 1e-3 * token_rows[starts - 1]
        return token_rows


class Raising(Leaking):
    def __call__(self, some: Batch) -> torch.Tensor:
        raise ValueError("not written for this")


class Shortened(Leaking):
    def __call__(self, some: Batch) -> torch.Tensor:
        return self._right(some)[:-1]


@pytest.mark.holds("A model that cannot be packed is never packed")
@pytest.mark.parametrize(("wrong", "why"), [(Leaking, "differs from"), (Raising, "ValueError"), (Shortened, "shape")])
def test_a_model_that_packs_wrongly_is_padded(
    wrong: type, why: str, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequences = arbitrary((5, 9, 3, 9))
    right = load(tiny)
    monkeypatch.setattr(selftest, "PackedForward", wrong)
    padded = load(tiny)
    assert padded.info.notes[0].startswith("padded")
    assert why in padded.info.notes[0]
    assert np.abs(raw_rows(padded, sequences) - raw_rows(right, sequences)).max() <= 1e-5
    right.close()
    padded.close()


class Unmasked(PaddedForward):
    """Padded without a mask: right only for sequences that need none."""

    def _run(self, some: Batch, index: NDArray[np.int64], *, is_token: NDArray[np.bool_]) -> torch.Tensor:
        hidden: torch.Tensor = self._model(input_ids=torch.tensor(some.token_ids[index]).long()).last_hidden_state
        return hidden


@pytest.mark.holds("A model that cannot be packed is never packed")
def test_a_model_that_is_wrong_either_way_is_run_one_by_one(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sequences = arbitrary((5, 9, 3, 9))
    right = load(tiny)
    monkeypatch.setattr(selftest, "PackedForward", Leaking)
    monkeypatch.setattr(selftest, "PaddedForward", Unmasked)
    alone = load(tiny)
    assert alone.info.notes[0].startswith("one by one")
    assert not alone.info.is_padded
    assert np.abs(raw_rows(alone, sequences) - raw_rows(right, sequences)).max() <= 1e-5
    right.close()
    alone.close()


class Failing(PaddedForward):
    def __call__(self, some: Batch) -> torch.Tensor:
        raise ValueError("not written for this")


@pytest.mark.holds("A model that cannot be packed is never packed")
def test_a_model_that_is_wrong_in_each_way_is_refused(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "PackedForward", Leaking)
    monkeypatch.setattr(selftest, "PaddedForward", Failing)
    assert "can't be run in batches" in refusal(lambda: load(tiny))


def test_a_model_that_gives_no_numbers_is_refused(tiny: Path) -> None:
    model = AutoModel.from_pretrained(tiny)
    with torch.no_grad():
        model.encoder.layer[1].output.dense.bias[0] = torch.nan
    model.save_pretrained(tiny)
    assert "not finite" in refusal(lambda: load(tiny))
