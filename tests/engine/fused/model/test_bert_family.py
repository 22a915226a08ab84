"""The fused models of BERT's kin give the rows that transformers gives, sequence by sequence."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoConfig, AutoModel, MPNetConfig, MPNetModel

from engine.fused.adapters import ADAPTERS
from engine.fused.checkpoint import ModuleCheckpoint
from engine.fused.model.linear import PlainLinear
from engine.types import ModelError
from tests.engine.fused.model.models import COMPOSITIONS, Fused, inputs_of, load_fused, save
from tests.engine.tiny_models import Reference, arbitrary, batch

Rows = NDArray[np.float32]

BERT_LIKE = [
    "bert", "roberta", "xlm-roberta", "camembert", "data2vec-text", "ernie", "electra", "electra, wide", "distilbert",
    "mpnet", "albert", "nomic_bert", "gte", "gte without types", "jina_embeddings_v3",
]  # fmt: skip
CONVERTED = ["nomic_bert", "gte", "jina_embeddings_v3"]  # saved under their authors' names


def needs(family: str) -> None:
    """Skip what only the newer of the supported versions of transformers know."""
    model_type, *_ = family.split(" ")
    if model_type.rstrip(",") not in CONFIG_MAPPING:
        pytest.skip(f"this transformers does not know {model_type}")


def check(fused: Fused, folder: Path, compositions: list[tuple[int, ...]] = COMPOSITIONS) -> None:
    reference = Reference(folder)
    for seqlens in compositions:
        sequences = arbitrary(seqlens)
        rows = np.concatenate([reference.token_rows(sequence) for sequence in sequences])
        assert_close(fused.token_rows(sequences), rows)
        for pooling in ("cls", "last"):
            assert_close(fused.pooled(sequences, pooling), reference.pooled(sequences, pooling))


def assert_close(actual: Rows, expected: Rows) -> None:
    """Row by row, in parts of the largest number of the row."""
    difference = np.abs(actual - expected).max(axis=1) / np.abs(expected).max(axis=1)
    assert difference.max() <= 1e-5  # NaN is not


@pytest.mark.holds("Fused rows equal transformers' rows")
@pytest.mark.parametrize("family", BERT_LIKE)
def test_rows_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    needs(family)
    folder = save(family, tmp_path / "model")
    check(load_fused(folder), folder)


@pytest.mark.holds("Fused rows equal transformers' rows")
@pytest.mark.parametrize(("family", "num_calls"), [("bert", 3), ("nomic_bert", 0)])
def test_where_the_product_can_the_activation_is_a_part_of_it(
    family: str, num_calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, of every layer but gated ones. Its GELU is the form with tanh."""
    gelu, calls = PlainLinear.gelu, []

    def counted(linear: PlainLinear, rows: Tensor) -> Tensor:
        calls.append(linear)
        return gelu(linear, rows)

    monkeypatch.setattr(PlainLinear, "can_gelu", True)
    monkeypatch.setattr(PlainLinear, "gelu", counted)
    folder = save(family, tmp_path / "model")
    fused, sequence = load_fused(folder), arbitrary((7,))
    rows = fused.token_rows(sequence)
    assert len(calls) == num_calls
    assert np.abs(rows - Reference(folder).token_rows(sequence[0])).max() <= 2e-3 * np.abs(rows).max()


@pytest.mark.parametrize("family", CONVERTED)
def test_transformers_own_names(family: str, tmp_path: Path) -> None:
    needs(family)
    folder = save(family, tmp_path / "model")
    checkpoint = ModuleCheckpoint(AutoModel.from_pretrained(folder))
    assert "layers.0.self_attn.q_proj.weight" in checkpoint.names
    check(load_fused(folder, checkpoint), folder, [(5, 17, 1)])


def test_what_stands_in_padding_would_be_seen(tmp_path: Path) -> None:
    """The other tests rest on this: rows of padding are NaN, all through the model."""
    fused = load_fused(save("bert", tmp_path / "model"))
    rows = fused.forward(inputs_of(batch(arbitrary((5, 3)))), is_pruned=False)
    assert rows[:8].isfinite().all()
    assert rows[8:].isnan().all()
    assert len(rows) > 8


def test_a_token_that_is_padding_to_roberta(tmp_path: Path) -> None:
    """A text can spell it out; it has no position of its own, and is seen like any other."""
    folder = save("roberta", tmp_path / "model")
    sequence = [5, 1, 6, 7]
    model = AutoModel.from_pretrained(folder)
    with torch.inference_mode():
        output = model(input_ids=torch.tensor([sequence]), attention_mask=torch.ones(1, 4))
    assert_close(load_fused(folder).token_rows([sequence]), output.last_hidden_state[0].numpy())


def test_mpnet_far_beyond_its_buckets(tmp_path: Path) -> None:
    """Distances of more than 128 share a bias, and those up to it have that of transformers' buckets."""
    config = MPNetConfig(hidden_size=8, num_attention_heads=2, intermediate_size=8, vocab_size=9)
    encoder = MPNetModel(config).encoder
    derive = ADAPTERS["mpnet"].derive
    assert derive is not None
    (table,) = derive(config, {"relative_bias": encoder.relative_attention_bias.weight}, 0).values()
    expected: Tensor = encoder.compute_position_bias(torch.zeros(1, 300, 8))[0]  # type: ignore[no-untyped-call] # [N, 300, 300]
    distances = torch.arange(300) - torch.arange(300)[:, None]
    reach = table.shape[1] // 2
    assert torch.equal(table[:, distances.clamp(-reach, reach) + reach], expected)


@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("bert", {"is_decoder": True}),
        ("bert", {"position_embedding_type": "relative_key"}),
        ("bert", {"hidden_act": "gelu_10"}),
        ("roberta", {"add_cross_attention": True, "is_decoder": True}),
        ("ernie", {"use_task_id": True}),
        ("albert", {"num_hidden_groups": 2}),
        ("albert", {"inner_group_num": 2}),
        ("distilbert", {"activation": "tanh"}),
        ("mpnet", {"relative_attention_num_buckets": 64}),
        ("nomic_bert", {"prenorm": True}),
        ("nomic_bert", {"n_layer": 24}),
        ("nomic_bert", {"rotary_emb_base": 10_000}),
        ("gte", {"logn_attention_scale": True}),
        ("gte", {"position_embedding_type": "absolute"}),
        ("jina_embeddings_v3", {"position_embedding_type": "alibi"}),
    ],
)
def test_what_would_be_wrong_is_refused(family: str, change: dict[str, object]) -> None:
    needs(family)
    adapter = ADAPTERS.get(family)
    assert adapter is not None
    assert adapter.spec(AutoConfig.for_model(family)).architecture == family
    config = AutoConfig.for_model(family, **change)
    with pytest.raises(ModelError, match=r"^the fused engine .*") as raised:
        adapter.spec(config)
    assert "\n" not in str(raised.value)


def test_an_architecture_without_an_adapter() -> None:
    assert "deberta-v2" not in ADAPTERS


def test_the_packaged_minilm(minilm_folder: Path) -> None:
    check(load_fused(minilm_folder), minilm_folder, [(7, 40, 1, 12)])
