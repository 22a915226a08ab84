"""Models that are converted without torch: rows are transformers', and what is not exactly a BERT is left to torch."""

import dataclasses
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING

from engine.cpu import bert, converting, openvino
from engine.cpu.bert import rows_of
from engine.cpu.offer import compile_options_of
from engine.model.model_folder import ModelFolder, read_with
from engine.model.tasks import Task, VocabularyWeights
from engine.types import OutputKind
from tests.engine.cpu.engines import both_ways, load, options, pooled
from tests.engine.engines import difference, results
from tests.engine.tiny_models import (
    HIDDEN_SIZE,
    MASKED,
    SCORING_SEQUENCES,
    SCORING_TOKENS,
    Reference,
    WholeReference,
    arbitrary,
    batch,
    save,
    save_whole,
)
from tests.tiers import full

SEQLENS = (5, 17, 1, 40, 3)


def read(folder: Path) -> ModelFolder:
    return read_with(options(folder))


@pytest.mark.parametrize("architecture", ["bert", "roberta", *full("xlm-roberta", "camembert")])
def test_rows_are_transformers_rows(architecture: str, tmp_path: Path) -> None:
    """Of the reference and of the graph, also where a text holds the token of padding."""
    folder = save(architecture, tmp_path / "model")
    model = bert.read(read(folder))
    assert model is not None
    sequences = arbitrary(SEQLENS)
    sequences[1][3:5] = [1, 1]  # RoBERTa's padding
    expected = Reference(folder).pooled(sequences, "mean")
    in_numpy = np.stack([rows.mean(0) for rows in rows_of(model, [np.array(each, np.int32) for each in sequences])])
    assert difference(in_numpy, expected) <= 1e-5
    loaded = load(folder)
    assert "numpy" in loaded.info.notes[0]
    assert difference(pooled(loaded, sequences), expected) <= 1e-5
    loaded.close()


@pytest.mark.parametrize("num_threads", [1, 3, 9])
def test_references_are_those_of_their_sequences(
    num_threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many threads compute them."""
    monkeypatch.setattr(bert, "_MIN_TOKENS_OF_PART", 8)
    model = bert.read(read(save("bert", tmp_path / "model")))
    assert model is not None
    sequences = [np.array(each, np.int32) for each in arbitrary(SEQLENS)]
    found = bert.Built(model, num_threads).reference(sequences, hides_tokens=False).rows
    for sequence, rows in zip(sequences, found, strict=True):
        assert np.allclose(rows, rows_of(model, [sequence])[0], atol=1e-5)


@pytest.mark.parametrize(
    ("architecture", "purpose", "num_labels"),
    [
        ("bert", SCORING_SEQUENCES, 1),
        ("bert", SCORING_TOKENS, 3),
        ("xlm-roberta", SCORING_SEQUENCES, 3),
        *full(
            ("bert", SCORING_SEQUENCES, 3),
            ("roberta", SCORING_SEQUENCES, 1),
            ("camembert", SCORING_SEQUENCES, 1),
            ("roberta", SCORING_TOKENS, 3),
        ),
    ],
)
def test_scores_are_transformers_scores(architecture: str, purpose: Any, num_labels: int, tmp_path: Path) -> None:
    """Of the reference and of the graph, beside other texts and alone."""
    folder = save_whole(architecture, tmp_path / "model", purpose, num_labels=num_labels)
    model = bert.read(read(folder))
    assert model is not None
    sequences = arbitrary(SEQLENS)
    reference = WholeReference(folder, purpose)
    expected = np.concatenate([np.atleast_2d(reference.scores(sequence)) for sequence in sequences])
    in_numpy = np.concatenate(rows_of(model, [np.array(sequence, np.int32) for sequence in sequences]))
    assert difference(in_numpy, expected) <= 1e-5
    kind = OutputKind.LOGITS if purpose is SCORING_SEQUENCES else OutputKind.TOKEN_LOGITS
    loaded = load(folder)
    assert "numpy" in loaded.info.notes[0]
    for found in both_ways(loaded, sequences, kind):
        assert difference(found[kind].values, expected) <= 1e-5
    loaded.close()


def test_types_of_tokens_count_in_scores(tmp_path: Path) -> None:
    folder = save_whole("bert", tmp_path / "model", SCORING_SEQUENCES, num_labels=1)
    (sequence,), types = arbitrary([9]), [0, 0, 0, 0, 1, 1, 1, 1, 1]
    loaded = load(folder)
    given = dataclasses.replace(batch([sequence], types), outputs=OutputKind.LOGITS)
    found = results(loaded, given)[OutputKind.LOGITS].values
    loaded.close()
    reference = WholeReference(folder, SCORING_SEQUENCES)
    assert difference(found[0], reference.scores(sequence, types)) <= 1e-5
    assert difference(found[0], reference.scores(sequence)) > 1e-3


def change_weights(folder: Path, name: str, value: torch.Tensor | None) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors.pop(name, None)
    save_file(tensors | ({} if value is None else {name: value}), folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_a_whole_model_in_half_precision(dtype: torch.dtype, tmp_path: Path) -> None:
    """Names have a prefix, and the head's weights are passed over."""
    folder = save("bert", tmp_path / "model")
    tensors = {f"bert.{name}": tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
    tensors["cls.predictions.bias"] = torch.zeros(3, dtype=dtype)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    model = bert.read(read(folder))
    assert model is not None
    for name, found in model.weights.items():
        assert np.array_equal(found, tensors[f"bert.{name}"].float().numpy())


@pytest.mark.parametrize(
    "values",
    [
        {"hidden_act": "relu"},
        {"layer_norm_eps": None},
        {"pruned_heads": {"0": [1]}},
        {"num_hidden_layers": 1},
        {"max_position_embeddings": 5},
        {"text_config": {"layer_norm_eps": 0.1}},
        {"chunk_size_feed_forward": 2},
        {"torch_dtype": "nonsense"},
        {"num_labels": None},
    ],
)
def test_another_config_is_left_to_transformers(values: dict[str, Any], tmp_path: Path) -> None:
    described = read(save("bert", tmp_path / "model"))
    described.config.update(values)
    assert bert.read(described) is None


@pytest.mark.parametrize("architecture", ["bert", *full("camembert")])
def test_what_transformers_refuses_is_left_to_it(architecture: str, tmp_path: Path) -> None:
    """Each key of its configuration, with values of all types."""
    described = read(save(architecture, tmp_path / "model"))
    config_class, num_refused = CONFIG_MAPPING[architecture], 0
    for field in dataclasses.fields(config_class):
        for value in (None, True, 0, 1.5, "a", [1.5], {"1": 1}):
            changed = dataclasses.replace(described, config={**described.config, field.name: value})
            try:
                config_class.from_dict(changed.config)
            except Exception:
                num_refused += 1
                assert bert.read(changed) is None, (field.name, value)
    assert num_refused > 50


@pytest.mark.parametrize(
    ("name", "value", "is_read"),
    [
        ("encoder.layer.0.attention.self.distance_embedding.weight", torch.zeros(3), False),
        ("encoder.x.bias", torch.zeros(3), False),
        ("pooler.dense.bias", torch.zeros(3), False),
        ("pooler.dense.weight", torch.zeros(3), False),
        ("encoder.layer.0.output.dense.bias", None, False),  # it is missing
        ("embeddings.position_ids", torch.arange(64)[None], True),  # numbers that follow
    ],
)
def test_a_weight_too_many_or_of_another_shape_is_left_to_transformers(
    name: str, value: torch.Tensor | None, is_read: bool, tmp_path: Path
) -> None:
    folder = save("bert", tmp_path / "model")
    change_weights(folder, name, value)
    assert (bert.read(read(folder)) is not None) == is_read


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bert.pooler.dense.weight", None),  # it is missing
        ("classifier.bias", torch.zeros(2)),
        ("classifier.dense.bias", torch.zeros(3)),  # of another class
        ("bert.classifier.bias", torch.zeros(3)),
    ],
)
def test_another_head_is_left_to_transformers(name: str, value: torch.Tensor | None, tmp_path: Path) -> None:
    folder = save_whole("bert", tmp_path / "model", SCORING_SEQUENCES, num_labels=3)
    described = read(folder)
    assert bert.read(described) is not None
    change_weights(folder, name, value)
    assert bert.read(described) is None


def test_weights_of_a_vocabulary_are_left_to_transformers(tmp_path: Path) -> None:
    described = read(save_whole("bert", tmp_path / "model", MASKED))
    assert bert.read(described) is not None
    assert bert.read(dataclasses.replace(described, heads=(VocabularyWeights(),), task=Task.SPARSE)) is None


def test_a_pooler_changes_no_rows(tmp_path: Path) -> None:
    folder = save("bert", tmp_path / "model")
    change_weights(folder, "pooler.dense.weight", torch.zeros(HIDDEN_SIZE, HIDDEN_SIZE))
    model = bert.read(read(folder))
    assert model is not None
    assert not any("pooler" in name for name in model.weights)


def test_other_architectures_are_left_to_transformers(tmp_path: Path) -> None:
    assert bert.read(read(save("distilbert", tmp_path / "model"))) is None


def test_both_ways_to_convert_give_the_same_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save("bert", tmp_path / "model")
    described = read(folder)
    found = []
    for by in ("numpy", "transformers"):
        target = tmp_path / by
        target.mkdir()
        if by == "transformers":
            monkeypatch.setattr(bert, "read", lambda _: None)
        compile_options = compile_options_of(described, options(folder))
        converted = converting.convert(described, compile_options, target=target, num_threads=2)
        assert by in converted.computed_by
        found.append(converted)
    for one, other in zip(*(converted.references for converted in found), strict=True):
        assert difference(np.concatenate(one.rows), np.concatenate(other.rows)) <= 1e-5


def test_what_a_run_reads_lives_until_the_next_one(tmp_path: Path) -> None:
    """OpenVINO reads ids where numpy has them, and keeps their addresses."""
    described = read(save("camembert", tmp_path / "model"))
    target = tmp_path / "converted"
    target.mkdir()
    compile_options = compile_options_of(described, options(described.path))
    converting.convert(described, compile_options, target=target, num_threads=2)
    executor = openvino.open_model(target, dtype="float32", num_threads=1)
    alive = []
    for _ in range(2):
        inputs = {name: np.ones((1, 8), np.int64) for name in executor.input_names}
        alive.append([weakref.ref(values) for values in inputs.values()])
        executor.streams[0](inputs)
        del inputs
    assert [[reference() is not None for reference in of_one] for of_one in alive] == [[False] * 3, [True] * 3]
