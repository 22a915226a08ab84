"""Adapters by name: rows are PEFT's, whatever stands beside them, and the base's rows stay the base's."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray
from peft import LoraConfig
from safetensors.numpy import load_file, save_file

from engine.cpu import loading
from engine.cpu import lora as openvino_lora
from engine.types import Batch, ModelError, OutputKind
from tests.engine.convert.adapters import Adapted
from tests.engine.cpu.engines import load, options, pooled
from tests.engine.engines import difference, results
from tests.engine.tiny_models import SCORING_SEQUENCES, arbitrary, batch, save, save_whole

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient:FutureWarning", "ignore:Adapter .default."),
    pytest.mark.filterwarnings("ignore:fan_in_fan_out", "ignore:.*Unable to fetch remote file"),
]

SEQLENS = (5, 17, 9, 40, 3, 9)
NUMBERS = (1, 0, 2, 1, 2, 0)
BERT_LAYERS = ["query", "value", "intermediate.dense", "output.dense"]
LAYERS = {
    "bert": BERT_LAYERS,
    "modernbert": ["Wqkv", "Wi"],
    "qwen3": ["q_proj", "v_proj", "down_proj"],
    "gpt2": ["c_attn"],
    "albert": ["query", "ffn"],
}


def lora(layers: Sequence[str] | str, **others: Any) -> LoraConfig:
    return LoraConfig(
        **{
            "r": 4,
            "lora_alpha": 6,
            "target_modules": layers if isinstance(layers, str) else list(layers),
            "init_lora_weights": False,
            **others,
        }
    )


def with_adapters(given: Batch, numbers: Sequence[int]) -> Batch:
    return dataclasses.replace(given, adapters=np.array(numbers, np.int32))


def named(*folders: Path) -> tuple[tuple[str, str], ...]:
    return tuple((folder.name, str(folder)) for folder in folders)


def rows_of(loaded: Any, sequences: Sequence[Sequence[int]], numbers: Sequence[int]) -> NDArray[np.float32]:
    found = results(loaded, with_adapters(batch(sequences), numbers))
    return found[OutputKind.POOLED].values


@pytest.mark.parametrize("architecture", LAYERS)
def test_rows_are_those_of_peft(architecture: str, tmp_path: Path) -> None:
    """Of two adapters of other ranks, scales and layers and of the base, in one batch and each alone."""
    folder, layers = save(architecture, tmp_path / "model"), LAYERS[architecture]
    plain = Adapted(folder, lora(layers), tmp_path / "plain")
    others = {"rank_pattern": {layers[0]: 3}, "alpha_pattern": {layers[0]: 5}, "use_rslora": True}
    patterned = Adapted(folder, lora(layers[:1], r=7, **others), tmp_path / "patterned")
    loaded = load(folder, pooling="mean", dtype="float32", loras=named(tmp_path / "plain", tmp_path / "patterned"))
    sequences = arbitrary(SEQLENS)
    base = pooled(loaded, sequences)
    expected = base.copy()
    for place, (sequence, number) in enumerate(zip(sequences, NUMBERS, strict=True)):
        if number:
            expected[place] = (plain, patterned)[number - 1].token_rows(sequence).mean(0)
            assert difference(expected[place], base[place]) > 1e-2
    assert difference(rows_of(loaded, sequences, NUMBERS), expected) <= 1e-5
    each = [rows_of(loaded, [sequence], [number]) for sequence, number in zip(sequences, NUMBERS, strict=True)]
    assert difference(np.concatenate(each), expected) <= 1e-5
    assert difference(pooled(loaded, sequences), base) <= 1e-6
    loaded.close()
    alone = load(folder, pooling="mean", dtype="float32")
    assert difference(pooled(alone, sequences), base) <= 1e-6
    alone.close()


@pytest.mark.parametrize(
    ("architecture", "extra"),
    [
        ("bert", "use_dora"),
        ("modernbert", "use_dora"),
        ("gpt2", "use_dora"),
        ("bert", "lora_bias"),
        ("gpt2", "lora_bias"),
    ],
)
def test_factors_and_biases_are_those_of_peft(architecture: str, extra: str, tmp_path: Path) -> None:
    """Beside an adapter without any."""
    folder, layers = save(architecture, tmp_path / "model"), LAYERS[architecture]
    plain = Adapted(folder, lora(layers), tmp_path / "plain")
    more = Adapted(folder, lora(layers[:1], **{extra: True}), tmp_path / "more")
    loaded = load(folder, pooling="mean", dtype="float32", loras=named(tmp_path / "plain", tmp_path / "more"))
    sequences = arbitrary(SEQLENS)
    for number, adapted in enumerate((plain, more), 1):
        expected = np.stack([adapted.token_rows(sequence).mean(0) for sequence in sequences])
        assert difference(rows_of(loaded, sequences, [number] * len(sequences)), expected) <= 1e-5
        assert difference(pooled(loaded, sequences), expected) > 1e-2
    loaded.close()


def test_a_head_in_the_graph_has_adapters_of_either_class(tmp_path: Path) -> None:
    """Names of layers have a word in front where the class has a head."""
    folder = save_whole("bert", tmp_path / "model", SCORING_SEQUENCES, num_labels=3)
    whole = Adapted(folder, lora(["query", "pooler.dense"]), tmp_path / "whole", purpose=SCORING_SEQUENCES)
    Adapted(folder, lora(BERT_LAYERS), tmp_path / "bare")
    loaded = load(folder, loras=named(tmp_path / "whole", tmp_path / "bare"))
    sequences = arbitrary(SEQLENS)
    given = dataclasses.replace(batch(sequences), outputs=OutputKind.LOGITS)
    base, of_whole, of_bare = (
        results(loaded, with_adapters(given, [number] * len(sequences)))[OutputKind.LOGITS].values
        for number in range(3)
    )
    loaded.close()
    assert difference(of_whole, np.stack([whole.scores(sequence) for sequence in sequences])) <= 1e-5
    assert difference(of_whole, base) > 1e-2
    assert difference(of_bare, base) > 1e-2


def test_a_pooler_whose_rows_nobody_asks_for_is_passed_over(tmp_path: Path) -> None:
    folder = save("bert", tmp_path / "model")
    adapted = Adapted(folder, lora("all-linear"), tmp_path / "all")
    loaded = load(folder, pooling="mean", dtype="float32", loras=named(tmp_path / "all"))
    (sequence,) = arbitrary([12])
    found = rows_of(loaded, [sequence], [1])
    assert difference(found[0], adapted.token_rows(sequence).mean(0)) <= 1e-5
    assert difference(found, pooled(loaded, [sequence])) > 1e-2
    loaded.close()


@pytest.mark.parametrize("extra", [{}, {"use_dora": True}])
def test_an_adapter_of_a_model_in_int8_stays_in_float32(extra: dict[str, bool], tmp_path: Path) -> None:
    folder = save("bert", tmp_path / "model")
    adapted = Adapted(folder, lora(["query", "value"], **extra), tmp_path / "one")
    loaded = load(folder, pooling="mean", quantization="int8", loras=named(tmp_path / "one"))
    sequences = arbitrary(SEQLENS)
    expected = np.stack([adapted.token_rows(sequence).mean(0) for sequence in sequences])
    found = rows_of(loaded, sequences, [1] * len(sequences))
    base = pooled(loaded, sequences)
    loaded.close()
    assert loaded.info.dtype == "int8"
    assert 1e-4 < difference(found, expected) < 0.05
    assert difference(base, expected) > 5 * difference(found, expected)


def test_the_self_test_compares_an_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of original has the adapter in its weights, and other rows are refused."""
    whole = openvino_lora.numbers_of
    for architecture in ("bert", "modernbert"):
        folder = save(architecture, tmp_path / architecture)
        Adapted(folder, lora(LAYERS[architecture]), tmp_path / f"of {architecture}")
        with monkeypatch.context() as patch:
            patch.setattr(
                openvino_lora, "numbers_of", lambda one: {name: values / 2 for name, values in whole(one).items()}
            )
            with pytest.raises(ModelError, match="rows are not the original's"):
                load(folder, dtype="float32", loras=named(tmp_path / f"of {architecture}"))


def test_other_numbers_need_no_other_compiled_model(tmp_path: Path) -> None:
    """Other layers do, and none."""
    folder, cache = save("bert", tmp_path / "model"), tmp_path / "cache"
    first = Adapted(folder, lora(["query"]), tmp_path / "first")
    other = Adapted(folder, lora(["query"], r=2), tmp_path / "other")
    Adapted(folder, lora(["key"]), tmp_path / "layers")
    (sequence,) = arbitrary([12])
    given: dict[str, Any] = {"pooling": "mean", "dtype": "float32", "cache_dir": str(cache)}
    for number, (adapted, names) in enumerate(((first, ("first",)), (other, ("first", "other")), (other, ("other",)))):
        loaded = load(folder, loras=named(*(tmp_path / name for name in names)), **given)
        expected = adapted.token_rows(sequence).mean(0)
        assert difference(rows_of(loaded, [sequence], [len(names)])[0], expected) <= 1e-5
        loaded.close()
        assert len(list((cache / "compiled").glob("*/model.xml"))) == 1, number
    for names in (("layers",), ()):
        load(folder, loras=named(*(tmp_path / name for name in names)), **given).close()
    assert len(list((cache / "compiled").glob("*/model.xml"))) == 3


def test_a_portable_model_is_for_the_adapters_that_it_was_made_with(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save("bert", tmp_path / "model")
    adapted = Adapted(folder, lora(["query"]), tmp_path / "one")
    loras = named(tmp_path / "one")
    for name, some in (("with", loras), ("without", ())):
        (tmp_path / name).mkdir()
        loading.export(options(folder, loras=some), tmp_path / name)
    (sequence,) = arbitrary([12])
    for name, some, is_used in (("with", loras, True), ("without", loras, False), ("with", (), False)):
        caplog.clear()
        loaded = load(folder, pooling="mean", loras=some, compiled_model=str(tmp_path / name))
        assert ("made for adapters" not in caplog.text) is is_used
        if some:
            expected = adapted.token_rows(sequence).mean(0)
            assert difference(rows_of(loaded, [sequence], [1])[0], expected) <= 1e-5
        loaded.close()


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"bias": "all"}, "'bias' in .*serve .*one as a model of its own"),
        ({"modules_to_save": ["pooler"]}, "'modules_to_save' in .*serve .*one as a model of its own"),
        ({"target_modules": ["query", "word_embeddings"]}, "word_embeddings.*serve .*one as a model of its own"),
    ],
)
def test_what_cannot_be_kept_apart_is_refused(config: dict[str, Any], told: str, tmp_path: Path) -> None:
    folder = save("bert", tmp_path / "model")
    Adapted(folder, lora(["query"], **config), tmp_path / "one")
    with pytest.raises(ModelError, match=told):
        load(folder, loras=named(tmp_path / "one"))


def test_an_adapter_of_another_base_is_refused(tmp_path: Path) -> None:
    folder, other = save("bert", tmp_path / "model"), save("qwen3", tmp_path / "other")
    Adapted(other, lora(["q_proj"]), tmp_path / "one")
    with pytest.raises(ModelError, match=r"q_proj.* in .*one.*adapter_model.safetensors.*lacks"):
        load(folder, loras=named(tmp_path / "one"))


def test_numbers_that_are_none_are_refused_before_anything_is_compiled(tmp_path: Path) -> None:
    folder = save("bert", tmp_path / "model")
    Adapted(folder, lora(["query"]), tmp_path / "one")
    file = tmp_path / "one" / "adapter_model.safetensors"
    tensors = load_file(file)
    next(iter(tensors.values()))[0, 0] = np.nan
    save_file(tensors, file)
    with (
        mock.patch.object(loading, "convert", side_effect=AssertionError),
        pytest.raises(ModelError, match=r"query.lora_A.weight' in .*one.adapter_model.safetensors is not finite"),
    ):
        load(folder, loras=named(tmp_path / "one"))
