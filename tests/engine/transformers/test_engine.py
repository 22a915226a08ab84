"""The transformers engine: its rows against sentence-transformers', its thread, what it refuses to load and why."""

import dataclasses
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

from engine.model import model_folder
from engine.rows.modules_torch import RowModules
from engine.rows.pooling_torch import Pooling, pool
from engine.selftest.warmup import warm_up
from engine.transformers import engine, selftest
from engine.transformers.engine import TransformersEngine
from engine.transformers.forward import Forward, PackedForward, PaddedForward
from engine.transformers.heads.makers import embeddings
from engine.transformers.loading import load_model
from engine.types import (
    Batch,
    EngineClosed,
    EngineError,
    EngineErrorKind,
    EngineLimits,
    ModelError,
    ModelInfo,
    OutputKind,
)
from tests.engine.folder_files import change
from tests.engine.load_options import load_options
from tests.engine.tiny_models import arbitrary, batch, save

TEXTS = (
    "",
    " ",
    "\n\t ",
    "a",
    "?",
    "The quick brown fox jumps over the lazy dog.",
    "ten thousand characters, " * 400,
    "x" * 10_000,
    "😀👩‍👩‍👧‍👦🇺🇳 emoji",
    "السلام عليكم ورحمة الله وبركاته",
    "敏捷的棕色狐狸跳过了懒狗",
    "control \x00\x01\x07\x1b[31m\x7f\u200b\ufeff characters",
    "[MASK] [SEP] [PAD] <pad> spelled out",
    "one two three four",  # these four are of equal length
    "five six seven eight",
    "red green blue black",
    "dog cat bird fish",
    "naïve café Ångström",
)


def load(folder: Path, **others: Any) -> TransformersEngine:
    return engine.load(name="m", reason="asked", options=load_options(folder, **others))


@pytest.fixture(scope="module")
def no_network() -> Iterator[None]:
    """Whoever opens a connection fails."""

    def connect(_: socket.socket, address: Any) -> None:
        raise AssertionError(f"something connects to {address}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", connect)
        yield


@pytest.fixture(scope="module")
def minilm(minilm_folder: Path, no_network: None) -> Iterator[TransformersEngine]:
    loaded = load(minilm_folder)
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def reference(minilm_folder: Path, no_network: None) -> SentenceTransformer:
    return SentenceTransformer(str(minilm_folder), device="cpu", local_files_only=True)


@pytest.fixture(scope="module")
def expected(reference: SentenceTransformer) -> NDArray[np.float32]:
    """sentence-transformers' rows of TEXTS."""
    rows: NDArray[np.float32] = reference.encode(list(TEXTS), batch_size=4, show_progress_bar=False)
    return rows


@pytest.fixture(scope="module")
def sequences(reference: SentenceTransformer) -> list[list[int]]:
    """The ids that sentence-transformers makes of TEXTS."""
    return [reference.preprocess([text])["input_ids"][0].tolist() for text in TEXTS]


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return save("bert", tmp_path / "model")


def raw_rows(loaded: TransformersEngine, sequences: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    ticket = loaded.submit(batch(sequences))
    collected, results = loaded.collect()
    assert collected == ticket
    assert isinstance(results, dict), results
    values = results[OutputKind.POOLED].values
    assert values.dtype == np.float32
    return values


def rows(loaded: TransformersEngine, sequences: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """Scaled to length 1, as the model wants its rows handed out."""
    values = raw_rows(loaded, sequences)
    normalized: NDArray[np.float32] = values / np.linalg.norm(values, axis=1, keepdims=True)
    return normalized


def test_minilm_is_packed_and_left_unnormalized(minilm: TransformersEngine, sequences: list[list[int]]) -> None:
    assert minilm.info.notes[0].startswith("packed")
    assert minilm.info.normalize
    assert np.abs(np.linalg.norm(raw_rows(minilm, sequences), axis=1) - 1).min() > 0.1


def test_the_texts_are_varied(sequences: list[list[int]]) -> None:
    seqlens = [len(sequence) for sequence in sequences]
    assert min(seqlens) == 2
    assert max(seqlens) == 256
    assert len(set(seqlens)) < len(seqlens)


def test_rows_equal_those_of_sentence_transformers(
    minilm: TransformersEngine, sequences: list[list[int]], expected: NDArray[np.float32]
) -> None:
    assert np.abs(rows(minilm, sequences) - expected).max() <= 1e-5
    alone = np.concatenate([rows(minilm, [sequence]) for sequence in sequences])
    assert np.abs(alone - expected).max() <= 1e-5


@pytest.mark.holds("A row is the same alone and in any batch")
def test_a_row_is_the_same_alone_and_in_any_batch(minilm: TransformersEngine, sequences: list[list[int]]) -> None:
    alone = np.concatenate([rows(minilm, [sequence]) for sequence in sequences])
    random = np.random.default_rng(0)
    for size in (2, 3, 5, 8, 13, len(sequences)):
        chosen = random.permutation(len(sequences))[:size]
        together = rows(minilm, [sequences[i] for i in chosen])
        assert np.abs(together - alone[chosen]).max() <= 1e-6


def test_a_batch_of_one_sequence_many_times(minilm: TransformersEngine, sequences: list[list[int]]) -> None:
    together = rows(minilm, [sequences[5]] * 33)
    assert np.abs(together - rows(minilm, [sequences[5]])).max() <= 1e-6


def test_arrays_that_may_not_be_written_are_taken(minilm: TransformersEngine, sequences: list[list[int]]) -> None:
    """What is received is a view of the received bytes."""
    made = batch(sequences[:3])
    received = Batch(
        "m",
        OutputKind.POOLED,
        np.frombuffer(made.token_ids.tobytes(), np.int32),
        np.frombuffer(made.cu_seqlens.tobytes(), np.int32),
    )
    minilm.submit(received)
    _, results = minilm.collect()
    assert isinstance(results, dict), results
    assert np.array_equal(results[OutputKind.POOLED].values, raw_rows(minilm, sequences[:3]))


def test_padded_mode_gives_the_same_rows(
    minilm_folder: Path, sequences: list[list[int]], expected: NDArray[np.float32]
) -> None:
    model = load_model(model_folder.read(minilm_folder), dtype=torch.float32)
    some = batch(sequences)
    pooled = pool(PaddedForward(model)(some), torch.tensor(some.cu_seqlens).long(), poolings=["mean"]).numpy()
    assert np.abs(pooled / np.linalg.norm(pooled, axis=1, keepdims=True) - expected).max() <= 1e-5


def test_the_warm_up_passes(minilm: TransformersEngine) -> None:
    assert warm_up(minilm).tokens_per_second > 0


# --- pooling


@pytest.mark.parametrize("length", [1, 7, 5000])
def test_a_mean_is_exact_and_its_own(length: int) -> None:
    generator = torch.Generator().manual_seed(0)
    own, other = (torch.randn(length, 8, generator=generator) + 1 for _ in range(2))
    exact = own.double().mean(dim=0).float()
    bounds = torch.tensor([0, length, 2 * length])
    assert torch.equal(pool(torch.cat([own, other * 1e6]), bounds, poolings=["mean"])[0], exact)
    assert torch.equal(pool(torch.cat([other * 1e6, own]), bounds, poolings=["mean"])[1], exact)


def test_first_and_last_tokens() -> None:
    token_rows = torch.arange(12.0).reshape(6, 2)
    bounds = torch.tensor([0, 1, 4, 6])
    assert pool(token_rows, bounds, poolings=["cls"]).tolist() == [[0, 1], [2, 3], [8, 9]]
    assert pool(token_rows, bounds, poolings=["last"]).tolist() == [[0, 1], [6, 7], [10, 11]]


# --- the thread and its queues


def made(forward: Forward, *, streams: int = 1) -> TransformersEngine:
    """An engine around any forward."""
    info = ModelInfo(
        name="m",
        engine="transformers",
        reason="asked",
        outputs=OutputKind.POOLED,
        dimensions=2,
        max_seqlen=8,
        vocab_size=10,
        pooling="cls",
        normalize=False,
        dtype="float32",
        device="cpu",
        architecture="",
    )
    limits = EngineLimits(max_num_tokens=64, max_num_seqs=8, max_seqlen=8, streams=streams, depth=streams + 1)
    return TransformersEngine(forward, embeddings(Pooling(("cls",), RowModules())), info=info, limits=limits)


def ids_as_rows(some: Batch) -> torch.Tensor:
    return torch.tensor(some.token_ids).float()[:, None].repeat(1, 2)


def failing(error: Exception) -> Forward:
    def forward(some: Batch) -> torch.Tensor:
        if some.token_ids[0] == 9:
            raise error
        return ids_as_rows(some)

    return forward


def test_tickets_come_back_in_order_and_closing_finishes_what_was_submitted() -> None:
    loaded = made(ids_as_rows)
    tickets = [loaded.submit(batch([[3, 4], [5]])), loaded.submit(batch([[6]]))]
    loaded.close()
    collected = [loaded.collect(), loaded.collect()]
    assert [ticket for ticket, _ in collected] == tickets
    values = [results[OutputKind.POOLED].values.tolist() for _, results in collected if isinstance(results, dict)]
    assert values == [[[3, 3], [5, 5]], [[6, 6]]]
    for _ in range(2):
        with pytest.raises(EngineClosed):
            loaded.collect()


def test_submit_blocks_while_depth_batches_are_inside() -> None:
    loaded = made(ids_as_rows)
    for _ in range(loaded.limits.depth):
        loaded.submit(batch([[1]]))
    third = threading.Thread(target=loaded.submit, args=(batch([[2]]),))
    third.start()
    third.join(0.1)
    assert third.is_alive()
    loaded.collect()
    third.join()
    for _ in range(2):
        loaded.collect()
    loaded.close()


def test_a_batch_waits_inside_while_another_computes() -> None:
    gate = threading.Event()

    def forward(some: Batch) -> torch.Tensor:
        assert gate.wait(60)
        return ids_as_rows(some)

    loaded = made(forward)
    loaded.submit(batch([[1]]))
    loaded.submit(batch([[2]]))  # would block for ever if only one fitted
    gate.set()
    assert [loaded.collect()[0] for _ in range(2)] == [1, 2]
    loaded.close()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("some\nlong story"), EngineErrorKind.FAILED),
        (IndexError(), EngineErrorKind.FAILED),
        (MemoryError(), EngineErrorKind.OUT_OF_MEMORY),
        (RuntimeError("CUDA out of memory. Tried to allocate"), EngineErrorKind.OUT_OF_MEMORY),
    ],
)
def test_a_failed_batch_is_answered_and_the_next_one_computed(error: Exception, kind: EngineErrorKind) -> None:
    loaded = made(failing(error))
    loaded.submit(batch([[9]]))
    loaded.submit(batch([[1]]))
    ticket, failed = loaded.collect()
    assert isinstance(failed, EngineError)
    assert (ticket, failed.kind) == (1, kind)
    assert type(error).__name__ in str(failed)
    assert "\n" not in str(failed)
    assert isinstance(loaded.collect()[1], dict)
    loaded.close()


def test_torch_itself_running_out_of_memory_is_known() -> None:
    loaded = made(lambda some: torch.empty(1 << 50))
    loaded.submit(batch([[1]]))
    _, failed = loaded.collect()
    assert isinstance(failed, EngineError)
    assert failed.kind is EngineErrorKind.OUT_OF_MEMORY
    loaded.close()


def test_an_empty_sequence_is_not_given_its_neighbours_row() -> None:
    loaded = made(ids_as_rows)
    loaded.submit(Batch("m", OutputKind.POOLED, np.array([1, 2], np.int32), np.array([0, 0, 2], np.int32)))
    assert isinstance(loaded.collect()[1], EngineError)
    loaded.close()


def test_an_id_outside_the_vocabulary_fails_its_batch_alone(tiny: Path) -> None:
    loaded = load(tiny)
    loaded.submit(batch([[5, 100_000]]))
    assert isinstance(loaded.collect()[1], EngineError)
    assert raw_rows(loaded, [[5, 6]]).shape == (1, loaded.info.dimensions)
    loaded.close()


def test_each_stream_computes_in_one_thread_beside_the_others() -> None:
    seen = []
    together = threading.Barrier(3)

    def forward(some: Batch) -> torch.Tensor:
        together.wait(60)
        seen.append((threading.current_thread().name, torch.get_num_threads()))
        return ids_as_rows(some)

    loaded = made(forward, streams=3)
    tickets = {loaded.submit(batch([[number]])) for number in (1, 2, 3)}
    assert {loaded.collect()[0] for _ in range(3)} == tickets
    loaded.close()
    assert sorted(seen) == [("compute 0", 1), ("compute 1", 1), ("compute 2", 1)]


def test_closing_finishes_what_every_stream_has() -> None:
    gate = threading.Event()

    def forward(some: Batch) -> torch.Tensor:
        assert some.token_ids[0] != 1 or gate.wait(60)
        return ids_as_rows(some)

    loaded = made(forward, streams=2)
    slow, quick, staged = (loaded.submit(batch([[number]])) for number in (1, 2, 3))
    loaded.close()
    assert [loaded.collect()[0] for _ in range(2)] == [quick, staged]
    gate.set()
    assert loaded.collect()[0] == slow
    with pytest.raises(EngineClosed):
        loaded.collect()


def test_streams_are_as_many_as_threads_may_be_used(tiny: Path) -> None:
    sequences = [arbitrary((seqlen, 5)) for seqlen in (3, 9, 20, 33)]
    single, several = load(tiny), load(tiny, num_threads=3)
    assert (several.limits.streams, several.limits.depth) == (3, 4)
    rows_of = {several.submit(batch(some)): raw_rows(single, some) for some in sequences}
    for _ in sequences:
        ticket, results = several.collect()
        assert isinstance(results, dict), results
        assert np.abs(results[OutputKind.POOLED].values - rows_of[ticket]).max() <= 1e-6
    single.close()
    several.close()


def test_a_model_that_notes_lengths_in_itself_is_run_by_one_thread(tmp_path: Path) -> None:
    folder = save("llama", tmp_path / "model")
    change(folder / "config.json", rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0})
    loaded = load(folder, num_threads=3)
    loaded.close()
    assert (loaded.limits.streams, loaded.limits.depth) == (1, 2)


# --- loading


def refusal(action: Callable[[], Any]) -> str:
    """The message of the refusal, which must be one line."""
    with pytest.raises(ModelError) as caught:
        action()
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


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
    loaded = load(canary)
    loaded.close()
    assert any("auto_map" in note for note in loaded.info.notes)
    assert not os.path.exists(canary / "sang")


def test_code_in_a_folder_is_not_run_where_transformers_has_none(canary: Path) -> None:
    folder = model_folder.read(canary)
    change(canary / "config.json", model_type="unheard-of")
    assert "'unheard-of'" in refusal(lambda: load(canary))
    unchecked = dataclasses.replace(folder, architecture="unheard-of")
    assert str(canary) in refusal(lambda: load_model(unchecked, dtype=torch.float32))
    assert not os.path.exists(canary / "sang")


# --- the self-test


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
@pytest.mark.parametrize(("wrong", "why"), [(Leaking, "differs by"), (Raising, "ValueError"), (Shortened, "shape")])
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
def test_a_model_that_is_wrong_either_way_is_refused(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "PackedForward", Leaking)
    monkeypatch.setattr(selftest, "PaddedForward", Unmasked)
    assert "can't be run in batches" in refusal(lambda: load(tiny))


def test_a_model_that_gives_no_numbers_is_refused(tiny: Path) -> None:
    model = AutoModel.from_pretrained(tiny)
    with torch.no_grad():
        model.encoder.layer[1].output.dense.bias[0] = torch.nan
    model.save_pretrained(tiny)
    assert "not finite" in refusal(lambda: load(tiny))
