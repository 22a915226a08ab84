"""Adapters that are computed beside a model: their rows against PEFT's, one sequence at a time."""

import dataclasses
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModel, PreTrainedModel

from engine.model import model_folder
from engine.model.lora import read_adapter
from engine.model.tasks import AnswerScore, Head, SequenceScores
from engine.transformers import lora
from engine.transformers.engine import TransformersEngine
from engine.transformers.forward import HidingForward, hiding
from engine.transformers.loading import load_model
from engine.transformers.lora import AdaptedLayer
from engine.transformers.selftest import choose_forward
from engine.types import Batch, EngineError, ModelError, OutputKind, compute
from tests.engine.engines import difference, refusal, rows
from tests.engine.tiny_models import GENERATING, SCORING_SEQUENCES, arbitrary, batch, save, save_whole
from tests.engine.transformers import scored_models
from tests.engine.transformers.loaded import load
from wire.parts import EXPANSION_TOKEN

SEQLENS = (7, 1, 30, 7, 22, 2)
TOLERANCE = 1e-5

# family -> targets of its adapters
FAMILIES = {
    "bert": ["query", "value", "dense"],
    "qwen3": ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"],
    "modernbert": ["Wqkv", "Wo", "Wi"],
    "mpnet": ["q", "v", "dense"],  # padded
    "gpt2": ["c_attn", "c_proj"],  # Conv1D
}


def adapt(
    base: Path, folder: Path, targets: Sequence[str], *, purpose: Any = AutoModel, seed: int = 1, **config: Any
) -> PeftModel:
    """An adapter of this model in a folder, as PEFT saves it, with weights that make another model of it."""
    warnings.simplefilter("ignore")  # PEFT warns of what is meant here; pytest restores this after each test
    model: PreTrainedModel = purpose.from_pretrained(base, dtype=torch.float32)
    torch.manual_seed(seed)
    adapted: Any = get_peft_model(
        model, LoraConfig(target_modules=list(targets), init_lora_weights=False, **{"r": 5, "lora_alpha": 8, **config})
    )
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_magnitude" in name:
                parameter.mul_(1 + 0.3 * torch.rand_like(parameter))
            elif "lora_" in name:
                parameter.normal_(std=0.3)
            elif parameter.requires_grad:
                assert name.endswith(".bias"), name
                parameter.add_(0.3 * torch.randn_like(parameter))
    adapted.save_pretrained(folder)
    return adapted.eval()  # type: ignore[no-any-return]


def of_peft(
    model: Any, sequences: Sequence[Sequence[int]], pooling: str = "cls", types: Sequence[int] | None = None
) -> NDArray[np.float32]:
    """[B, D]; types: of all tokens."""
    found, at = [], 0
    for sequence in sequences:
        ids = torch.tensor([list(sequence)])
        own = {} if types is None else {"token_type_ids": torch.tensor([list(types[at : at + len(sequence)])])}
        with torch.inference_mode():
            states = model(input_ids=ids, attention_mask=torch.ones_like(ids), **own).last_hidden_state[0].numpy()
        found.append(states[0] if pooling == "cls" else states[-1] if pooling == "last-token" else states.mean(axis=0))
        at += len(sequence)
    return np.stack(found)


def check(loaded: TransformersEngine, peft: Sequence[Any], *, pooling: str = "cls", types: bool = False) -> None:
    """Each sequence with each adapter alone and all in one batch, out of order; with the base's between them."""
    sequences = arbitrary(SEQLENS)
    numbers = [number % (len(peft) + 1) for number in range(len(sequences))]
    kinds = np.random.default_rng(2).integers(0, 2, sum(SEQLENS)).tolist() if types else None
    bases = rows(loaded, batch(sequences, kinds))
    expected = np.array(
        [of_peft(model, sequences, pooling, kinds) for model in peft], np.float32
    )  # of each adapter and sequence
    scale = max(1.0, np.abs(expected).max())
    for number, wanted in enumerate(expected, start=1):
        found = rows(loaded, batch(sequences, kinds, adapters=[number] * len(sequences)))
        assert np.abs(found - wanted).max() <= TOLERANCE * scale
        assert np.abs(found - bases).max(axis=1).min() > 100 * TOLERANCE * scale
    mixed = rows(loaded, batch(sequences, kinds, adapters=numbers))
    chosen = np.concatenate((bases[None], expected))[numbers, np.arange(len(sequences))]
    assert np.abs(mixed - chosen).max() <= TOLERANCE * scale


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_are_those_of_peft_alone_and_mixed(tmp_path: Path, family: str) -> None:
    base, targets = save(family, tmp_path / "model"), FAMILIES[family]
    patterns = {"rank_pattern": {rf".+\.1\..*{targets[0]}": 9}, "alpha_pattern": {targets[1]: 21}}
    kinds: list[dict[str, Any]] = [{}, {"use_rslora": True, **patterns}, {"use_dora": True}]
    is_transposed = family == "gpt2"
    peft = [
        adapt(base, tmp_path / f"{n}", targets, seed=n, fan_in_fan_out=is_transposed, **kind)
        for n, kind in enumerate(kinds)
    ]
    loaded = load(base, pooling="cls", loras=tuple((f"a{n}", str(tmp_path / f"{n}")) for n in range(3)))
    assert any("adapters computed beside the model: 3, of ranks 5 to 9" in note for note in loaded.info.notes)
    check(loaded, peft, types=family == "bert")
    loaded.close()


@pytest.mark.parametrize(
    "config",
    [{"lora_bias": True}, {"bias": "lora_only"}, {"bias": "lora_only", "use_dora": True}],
    ids=lambda config: "+".join(config),
)
def test_biases_are_the_adapters(tmp_path: Path, config: dict[str, Any]) -> None:
    base = save("bert", tmp_path / "model")
    peft = adapt(base, tmp_path / "a", ["query", "output.dense"], **config)
    loaded = load(base, pooling="mean", loras=(("a", str(tmp_path / "a")),))
    check(loaded, [peft], pooling="mean")
    loaded.close()


def test_prepacked_layers_are_adapted_and_several_threads_compute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.transformers.prepack._gain", lambda _: 2.0)
    base = save("qwen3", tmp_path / "model")
    peft = [adapt(base, tmp_path / f"{n}", FAMILIES["qwen3"], seed=n, use_dora=n == 0) for n in range(2)]
    loaded = load(
        base, pooling="last-token", num_threads=2, loras=tuple((f"a{n}", str(tmp_path / f"{n}")) for n in range(2))
    )
    check(loaded, peft, pooling="last-token")
    sequences = arbitrary(SEQLENS)
    alone = [rows(loaded, batch(sequences, adapters=[number] * len(sequences))) for number in range(3)]
    tickets = {
        loaded.submit(batch(sequences, adapters=[number % 3] * len(sequences))): number % 3 for number in range(2)
    }
    for _ in range(40):
        ticket, found = loaded.collect()
        assert not isinstance(found, EngineError)
        number = tickets.pop(ticket)
        assert np.allclose(found[OutputKind.POOLED].values, alone[number], atol=TOLERANCE)
        tickets[loaded.submit(batch(sequences, adapters=[(number + 1) % 3] * len(sequences)))] = (number + 1) % 3
    for _ in range(2):
        loaded.collect()
    loaded.close()


@pytest.mark.parametrize("architecture", ["classifier", "generative reranker"])
def test_scores_are_those_of_peft(tmp_path: Path, architecture: str) -> None:
    """Adapters that were trained on a class with a head, below which the layers lie."""
    if architecture == "classifier":
        base = save_whole("bert", tmp_path / "model", SCORING_SEQUENCES)
        peft = adapt(base, tmp_path / "a", ["query", "output.dense"], purpose=SCORING_SEQUENCES)
        head: Head = SequenceScores(labels=("LABEL_0", "LABEL_1"))
    else:
        base = save_whole("qwen3", tmp_path / "model", GENERATING)
        peft = adapt(base, tmp_path / "a", FAMILIES["qwen3"], purpose=GENERATING)
        head = AnswerScore(yes_id=11, no_id=7)
    folder = dataclasses.replace(scored_models.read(base, head), loras=(read_adapter(tmp_path / "a", "a"),))
    whole = load_model(folder, dtype=torch.float32)
    lora.put_adapters(whole, folder)
    choice, sequences = choose_forward(whole, folder), arbitrary(SEQLENS)

    def scores(adapters: Sequence[int]) -> NDArray[np.float32]:
        some = batch(sequences, adapters=adapters)
        return choice.makers[OutputKind.LOGITS](choice.forward(some), some).values

    with torch.inference_mode():
        logits = [peft(input_ids=torch.tensor([sequence])).logits[0].numpy() for sequence in sequences]
    expected = np.stack([each if architecture == "classifier" else each[-1, [11]] - each[-1, [7]] for each in logits])
    bases, mixed = scores([0] * 6), scores([0, 1, 0, 1, 0, 1])
    assert difference(scores([1] * 6), expected) <= TOLERANCE
    assert np.abs(bases - expected).max(axis=1).min() > 100 * TOLERANCE
    assert difference(mixed, np.where(np.arange(6)[:, None] % 2, expected, bases)) <= TOLERANCE


def test_an_adapter_of_the_head_is_refused_with_what_to_do(tmp_path: Path) -> None:
    base = save_whole("bert", tmp_path / "model", SCORING_SEQUENCES)
    adapt(base, tmp_path / "a", ["query", "classifier"], purpose=SCORING_SEQUENCES)
    head = SequenceScores(labels=("LABEL_0", "LABEL_1"))
    folder = dataclasses.replace(scored_models.read(base, head), loras=(read_adapter(tmp_path / "a", "a"),))
    with pytest.raises(ModelError, match=r"classifier.lora_A.* below the model's head.*a as a model of its own"):
        lora.put_adapters(load_model(folder, dtype=torch.float32), folder)


def test_hidden_tokens_and_the_copy_of_the_model_that_hides_them(tmp_path: Path) -> None:
    """As ColBERT's queries have them. The copy shares the adapter's tensors."""
    base = save("bert", tmp_path / "model")
    peft = adapt(base, tmp_path / "a", ["query", "dense"], use_dora=True)
    folder = dataclasses.replace(model_folder.read(base), loras=(read_adapter(tmp_path / "a", "a"),))
    model = load_model(folder, dtype=torch.float32)
    lora.put_adapters(model, folder)
    forward = hiding(choose_forward(model, folder).forward)
    assert isinstance(forward, HidingForward)
    layers = [
        [each for each in whole.modules() if isinstance(each, AdaptedLayer)] for whole in (model, forward.padded._model)
    ]
    assert len(layers[0]) == len(layers[1]) == 12
    assert all(one is not other and one._changes is other._changes for one, other in zip(*layers, strict=True))
    sequences = arbitrary((9, 12, 9))
    marks = np.zeros(30, np.uint8)
    marks[5:9] = marks[25:30] = EXPANSION_TOKEN
    is_seen = np.split(marks == 0, (9, 21))
    found = np.split(forward(batch(sequences, marks=marks.tolist(), adapters=[1, 0, 1])).numpy(), (9, 21))
    for number in (0, 2):
        ids, mask = torch.tensor([sequences[number]]), torch.tensor(is_seen[number])[None]
        with torch.inference_mode():
            expected = peft(input_ids=ids, attention_mask=mask).last_hidden_state[0].numpy()
        assert difference(found[number], expected) <= TOLERANCE


def test_sequences_of_an_adapter_are_computed_side_by_side() -> None:
    """With all parts, and behind the sequence with which they begin alike."""
    sequences = arbitrary((3, 4, 2, 5, 4))
    some = batch(sequences, list(range(18)), adapters=[2, 2, 0, 1, 1], shared=[0, 2, 0, 0, 3])
    seen: list[Batch] = []

    def compute(ordered: Batch) -> torch.Tensor:
        seen.append(ordered)
        assert ordered.token_type_ids is not None
        return torch.tensor(ordered.token_type_ids)[:, None]

    assert lora.side_by_side(some, compute)[:, 0].tolist() == list(range(18))
    (ordered,) = seen
    assert ordered.adapters is not None
    assert ordered.shared is not None
    assert ordered.adapters.tolist() == [0, 1, 1, 2, 2]
    assert ordered.shared.tolist() == [0, 0, 3, 0, 2]
    assert np.split(ordered.token_ids, ordered.cu_seqlens[1:-1])[0].tolist() == sequences[2]
    assert lora.side_by_side(ordered, lambda same: torch.tensor([same is ordered])).all()


def test_a_way_that_mixes_adapters_up_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = save("bert", tmp_path / "model")
    adapt(base, tmp_path / "a", ["query"])
    loras = (("a", str(tmp_path / "a")),)
    monkeypatch.setattr("engine.transformers.forward.adapters_of_tokens", lambda some: None)
    loaded = load(base, pooling="cls", loras=loras)
    loaded.close()
    assert loaded.info.is_padded
    assert "packed differs from one sequence at a time: " in loaded.info.notes[0]
    assert loaded.info.notes[0].endswith(", with adapters")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("encoder.layer.2.attention.self.query.lora_A.weight", torch.zeros(5, 31), "has with the shape [32, 32]"),
        ("encoder.layer.9.attention.self.query.lora_A.weight", torch.zeros(5, 32), "which the model lacks"),
        ("encoder.layer.2.attention.self.query.lora_A.weight", torch.full((5, 32), torch.nan), "is not finite"),
        (
            "encoder.layer.2.attention.self.value.lora_A.weight",
            torch.full((5, 32), 3e38),
            "with the adapter 'b', the model",
        ),
        ("encoder.layer.2.output.LayerNorm.bias", torch.zeros(32), "which merges it"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(tmp_path: Path, name: str, value: torch.Tensor, message: str) -> None:
    """By its file and the key, while another one that fits is there."""
    base = save("bert", tmp_path / "model")
    for folder in ("a", "b"):
        adapt(base, tmp_path / folder, ["query", "value"])
    file = tmp_path / "b" / "adapter_model.safetensors"
    tensors = load_file(file)
    tensors[f"base_model.model.{name}"] = value
    if ".lora_A" in name:
        tensors.setdefault(f"base_model.model.{name}".replace("lora_A", "lora_B"), torch.zeros(32, 5))
    else:
        config = tmp_path / "b" / "adapter_config.json"
        config.write_text(config.read_text().replace('"bias": "none"', '"bias": "all"'))
    save_file(tensors, file)
    refused = refusal(load, base, loras=(("a", str(tmp_path / "a")), ("b", str(tmp_path / "b"))))
    assert message in refused
    if "with the adapter" not in message:
        assert f"base_model.model.{name}' in {file}" in refused


def test_nothing_multiplies_past_the_layer() -> None:
    """A class that takes the weight would get the base's rows."""
    layer = AdaptedLayer(torch.nn.Linear(3, 4), [None])
    assert (layer.weight.dtype, layer.weight.shape) == (torch.float32, (4, 3))
    with pytest.raises(TypeError, match="WeightDescription"):
        torch.nn.functional.linear(torch.zeros(2, 3), layer.weight)  # type: ignore[arg-type]


def test_a_number_without_an_adapter_is_an_error(tmp_path: Path) -> None:
    base = save("bert", tmp_path / "model")
    adapt(base, tmp_path / "a", ["query"])
    loaded = load(base, pooling="cls", loras=(("a", str(tmp_path / "a")),))
    assert isinstance(compute(loaded, batch(arbitrary((3,)), adapters=[2])), EngineError)
    loaded.close()
    plain = load(base, pooling="cls")
    assert isinstance(compute(plain, batch(arbitrary((3,)), adapters=[1])), EngineError)
    plain.close()
