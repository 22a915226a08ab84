"""Rows of a text do not depend on what its neighbours spell out, or on what ran before it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModel, PreTrainedModel
from transformers.models.bert.modeling_bert import BertEmbeddings, BertModel
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRMSNorm

from engine import registry
from engine.transformers import selftest
from engine.transformers.forward import PackedForward
from engine.types import Batch, Engine, ModelError, OutputKind, RowsDiffer, compute
from tests.engine.engines import load_options
from tests.engine.folder_files import change, write
from tests.engine.tiny_models import HIDDEN_SIZE, VOCAB_SIZE, Reference, arbitrary, batch, save
from tests.tiers import full

_TINY: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN_SIZE,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 66,
    "initializer_range": 0.2,
    "pad_token_id": 1,
}
_ESM = {**_TINY, "token_dropout": True, "mask_token_id": 2, "emb_layer_norm_before": False}
_ROTARY = {"position_embedding_type": "rotary"}
MODELS = {  # name -> model_type, configuration, how the transformers engine runs it
    "ESM": ("esm", _ESM, "padded"),
    "ESM, rotary": ("esm", {**_ESM, **_ROTARY}, "padded"),
    "ESM, rotary, no dropout": ("esm", {**_ESM, **_ROTARY, "token_dropout": False}, "packed"),
    "ESM, padded with its mask": ("esm", {**_ESM, "mask_token_id": 1}, "one by one"),
    "ESM, the first id is its mask": ("esm", {**_ESM, **_ROTARY, "mask_token_id": 0}, "padded"),
    "FNet": ("fnet", {**_TINY, "tpu_short_seq_length": 64}, "one by one"),
}
_BLOCK, _NUM_RANDOM = 16, 2
FIRST_SPARSE = (5 + 2 * _NUM_RANDOM) * _BLOCK + 1
BIG_BIRD = {
    **_TINY,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "block_size": _BLOCK,
    "num_random_blocks": _NUM_RANDOM,
}
_FULL = [[5, *[2] * 30, 6], [5, *[1] * 20, 6], [7, *[0] * 9, 8]]
TEXTS = [*arbitrary((9, 30)), [5, 1, 6, 7, 8], [9, 2, 3, 1, 0, 8], *_FULL]


def saved(model_type: str, config: dict[str, Any], folder: Path) -> Path:
    torch.manual_seed(0)
    config_class = AutoConfig.for_model(model_type, **config)
    model: PreTrainedModel = AutoModel.from_config(config_class)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    return folder


def load(folder: Path, name: str = "transformers", **others: Any) -> Engine:
    return registry.load(name, name="m", reason="asked", options=load_options(folder, pooling="mean", **others))


def notes_of(folder: Path, **others: Any) -> tuple[str, ...]:
    engine = load(folder, **others)
    engine.close()
    return engine.info.notes


def largest_difference(engine: Engine, folder: Path, texts: Sequence[list[int]]) -> float:
    """Of rows in one batch, in the other order, and alone, to those of a class that has just been loaded."""
    expected = np.concatenate([Reference(folder).pooled([text], "mean") for text in texts])
    alone = np.concatenate([_rows(engine, [text]) for text in texts])
    found = (_rows(engine, texts), _rows(engine, texts[::-1])[::-1], alone)
    engine.close()
    return max(float(np.abs(rows - expected).max()) for rows in found)


def _rows(engine: Engine, texts: Sequence[list[int]]) -> NDArray[np.float32]:
    results = compute(engine, batch(texts))
    assert isinstance(results, dict), results
    return results[OutputKind.POOLED].values


@pytest.mark.parametrize("model", MODELS)
def test_texts_that_spell_out_special_tokens(model: str, tmp_path: Path) -> None:
    model_type, config, way = MODELS[model]
    folder = saved(model_type, config, tmp_path / "model")
    engine = load(folder)
    assert engine.info.notes[0].startswith(way), engine.info.notes
    assert largest_difference(engine, folder, TEXTS) <= 1e-5


@pytest.mark.parametrize("model", ["ESM, rotary", *full("ESM", "ESM, the first id is its mask")])
def test_the_same_by_openvino(model: str, tmp_path: Path) -> None:
    model_type, config, _ = MODELS[model]
    folder = saved(model_type, config, tmp_path / "model")
    assert largest_difference(load(folder, "openvino"), folder, TEXTS) <= 1e-5


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("model", ["ESM", "ESM, rotary", "ESM, the first id is its mask"])
def test_rounding_hides_no_neighbour(model: str, dtype: str, tmp_path: Path) -> None:
    """Six masks beside others change rows of bfloat16 less than rounding does, and sixty turn them around."""
    model_type, config, way = MODELS[model]
    folder = saved(model_type, config, tmp_path / "model")
    engine = load(folder, dtype=dtype)
    text = arbitrary((9,))
    alone, beside = (_rows(engine, [*text, *others])[0] for others in ((), ([5, *[config["mask_token_id"]] * 60],)))
    engine.close()
    assert engine.info.notes[0].startswith(way), engine.info.notes
    assert alone @ beside >= 0.99 * np.linalg.norm(alone) * np.linalg.norm(beside)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_is_packed_stays_so_in_16_bits(dtype: str, tmp_path: Path) -> None:
    folder = saved("esm", {**_ESM, **_ROTARY, "token_dropout": False}, tmp_path / "model")
    assert notes_of(folder, dtype=dtype)[0].startswith("packed")


@pytest.mark.parametrize("num_positions", [77, 300])
def test_a_class_that_bounds_the_row_by_its_positions(num_positions: int, tmp_path: Path) -> None:
    config = {**_TINY, "max_position_embeddings": num_positions, "bos_token_id": 2, "eos_token_id": 3}
    folder = saved("clip_text_model", config, tmp_path / "model")
    texts = arbitrary((70,) * 8)
    engine = load(folder)
    assert engine.info.notes[0].startswith("padded")
    assert largest_difference(engine, folder, texts) <= 1e-5


_LONG_ROPE = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "rope_theta": 100.0}
_BY_LAYER = {
    "full_attention": {**_LONG_ROPE, "original_max_position_embeddings": 45},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}


@pytest.mark.parametrize("engine", ["transformers", "openvino"])
def test_angles_of_one_type_of_layer_that_change_at_a_length(engine: str, tmp_path: Path) -> None:
    """A longer neighbour, or padding, would change them for all."""
    config = {**_TINY, "layer_types": ["full_attention", "sliding_attention"] * 2, "num_hidden_layers": 4}
    folder = saved("modernbert", {**config, "local_attention": 16, "rope_parameters": _BY_LAYER}, tmp_path / "model")
    texts = [text[:45] for text in arbitrary((44, 50, 41, 45, 60, 9))]
    loaded = load(folder, engine)
    assert loaded.limits.max_seqlen == 45
    assert largest_difference(loaded, folder, texts) <= 1e-5


@pytest.mark.parametrize("longest", [128, 129])
def test_padding_that_changes_rows_from_a_length_on(
    longest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masks say what packed rows see, and nothing of rows that are padded."""
    config = {**_TINY, "num_local_experts": 2, "num_experts_per_tok": 1, "num_key_value_heads": 2, "head_dim": 8}
    folder = saved("gpt_oss", {**config, "max_position_embeddings": 160}, tmp_path / "model")
    forward = GptOssRMSNorm.forward

    def larger(self: GptOssRMSNorm, rows: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = forward(self, rows)
        return normed * 1.01 if rows.shape[1] >= longest else normed

    monkeypatch.setattr(GptOssRMSNorm, "forward", larger)
    engine = load(folder)
    assert engine.info.notes[0].startswith("one by one")
    assert "and padded differs from one sequence at a time" in engine.info.notes[0]
    assert largest_difference(engine, folder, arbitrary((100, 130, 9))) <= 1e-5


def test_padding_ids_in_a_text_of_a_class_that_looks_for_them(tmp_path: Path) -> None:
    """XLM takes each for padding where it gets no mask, and tokenizers always give one."""
    config = {"vocab_size": VOCAB_SIZE, "emb_dim": HIDDEN_SIZE, "n_layers": 2, "n_heads": 4, "pad_index": 2}
    folder = saved("xlm", {**config, "pad_token_id": 2, "max_position_embeddings": 66}, tmp_path / "model")
    engine = load(folder)
    assert engine.info.notes[0].startswith("padded")
    text = [5, 2, 6, 7, 8]
    rows = np.concatenate([_rows(engine, [text]), _rows(engine, [[9] * 12, text])[1:]])
    engine.close()
    model = AutoModel.from_pretrained(folder)
    with torch.inference_mode():
        output = model(input_ids=torch.tensor([text]), attention_mask=torch.ones((1, 5), dtype=torch.long))
    assert np.abs(rows - output.last_hidden_state.mean(dim=1).numpy()).max() <= 1e-5


def test_rotary_positions_need_no_room_for_padding(tmp_path: Path) -> None:
    rotary, absolute = (load(saved("esm", _ESM | more, tmp_path / str(len(more)))) for more in (_ROTARY, {}))
    rotary.close()
    absolute.close()
    assert (rotary.limits.max_seqlen, absolute.limits.max_seqlen) == (66, 64)


@pytest.mark.parametrize("longest", [FIRST_SPARSE - 1, FIRST_SPARSE, 200])
def test_big_bird_after_short_texts(longest: int, tmp_path: Path) -> None:
    """Its class turns sparse attention off for good at the first short text."""
    folder = saved("big_bird", BIG_BIRD, tmp_path / "model")
    engine = load(folder)
    assert engine.info.notes[0].startswith("one by one")
    assert engine.limits.streams == 1
    assert largest_difference(engine, folder, arbitrary((5, longest, 256, 9, longest))) <= 1e-5


def test_big_bird_where_it_is_never_sparse(tmp_path: Path) -> None:
    folder = saved("big_bird", {**BIG_BIRD, "attention_type": "original_full"}, tmp_path / "model")
    engine = load(folder)
    assert not engine.info.notes[0].startswith("one by one")
    assert largest_difference(engine, folder, arbitrary((5, 200, 9))) <= 1e-5


def test_openvino_refuses_big_bird_and_auto_goes_on(tmp_path: Path) -> None:
    folder = saved("big_bird", BIG_BIRD, tmp_path / "model")
    with pytest.raises(RowsDiffer, match="not the original's"):
        load(folder, "openvino")
    assert largest_difference(load(folder, "auto"), folder, arbitrary((5, 200, 9))) <= 1e-5


class _Marked(PackedForward):
    """A packed forward in which a text that is full of one token changes the others."""

    token_id = 0

    def __call__(self, some: Batch) -> torch.Tensor:
        rows = super().__call__(some).clone()
        texts = np.split(some.token_ids, some.cu_seqlens[1:-1])
        is_full = any(len(text) > 3 and (text == self.token_id).mean() > 0.6 for text in texts)
        return rows * 1.01 if is_full else rows


@pytest.mark.parametrize("token_id", [0, 1, 2, 3, 70, 71, 90, 91])
def test_each_special_token_fills_a_neighbour(token_id: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """70 is in config.json, 71 has a role in tokenizer_config.json, 90 is another added token, 91 is none."""
    folder = save("bert", tmp_path / "model")
    change(folder / "config.json", decoder_start_token_id=70)
    added = [{"id": 71, "content": "<odd>"}, {"id": 90, "content": "<extra>"}]
    write(folder / "tokenizer.json", {"added_tokens": added, "model": {"vocab": {}}})
    write(folder / "tokenizer_config.json", {"mask_token": {"content": "<odd>"}})
    monkeypatch.setattr(_Marked, "token_id", token_id)
    monkeypatch.setattr(selftest, "PackedForward", _Marked)
    way = notes_of(folder)[0]
    assert way.startswith("packed") == (token_id == 91)
    assert ("full of one token" in way) == (token_id != 91)


def _keeps(in_module: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a class whose rows grow a little after each text, by what it keeps in its module or elsewhere."""
    forward, elsewhere = BertEmbeddings.forward, {"runs": 0}

    def kept(self: BertEmbeddings, *arguments: Any, **named: Any) -> torch.Tensor:
        held = vars(self) if in_module else elsewhere
        held["runs"] = held.get("runs", 0) + 1
        rows: torch.Tensor = forward(self, *arguments, **named)
        return rows * (1 + 0.1 * held["runs"] * torch.arange(rows.shape[1])[:, None])

    monkeypatch.setattr(BertEmbeddings, "forward", kept)


def test_what_a_class_keeps_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save("bert", tmp_path / "model")
    _keeps(True, monkeypatch)
    engine = load(folder)
    assert engine.info.notes[0].startswith("one by one: each sequence is computed alone, for its class keeps")
    assert largest_difference(engine, folder, arbitrary((5, 30, 5, 9))) <= 1e-5


def test_a_class_that_differs_from_itself_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save("bert", tmp_path / "model")
    _keeps(False, monkeypatch)
    with pytest.raises(ModelError, match="gives a text other rows when it runs again"):
        load(folder)


def test_a_token_that_the_class_does_not_run_on_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save("bert", tmp_path / "model")
    forward = BertModel.forward

    def without(self: BertModel, input_ids: torch.Tensor, **named: Any) -> Any:
        if (input_ids == 2).any():
            raise ValueError("an image is missing")
        return forward(self, input_ids, **named)

    monkeypatch.setattr(BertModel, "forward", without)
    notes = notes_of(folder)
    assert notes[0].startswith("packed")
    assert any("does not run on the token ids [2]" in note for note in notes)
