"""The transformers engine on a GPU, with a stand-in: what is decided and refused. Its rows: tests/engine/fused/gpu."""

import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.messages import LoadOptions
from engine.model import model_folder
from engine.transformers.placement import Placement, check_fits, place
from engine.types import DeviceTrouble, EngineError, EngineErrorKind, ModelError
from tests.engine.tiny_models import batch
from tests.engine.transformers.loaded import load, made

HOPPER, TURING = (9, 0), (7, 5)
GIB = 1 << 30


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Two GPUs, as far as torch says; which of them a thread chose."""
    seen: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", {"cuda:0": HOPPER, "cuda:1": TURING}.get)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (GIB, 2 * GIB))
    monkeypatch.setattr(torch.cuda, "set_device", seen.append)
    return seen


@pytest.mark.parametrize(
    ("device", "dtype", "expected"),
    [
        ("cpu", "auto", torch.float32),
        ("cpu", "bfloat16", torch.bfloat16),
        ("cuda:0", "auto", torch.bfloat16),
        ("cuda:0", "float32", torch.float32),
        ("cuda:1", "auto", torch.float32),
        ("cuda:1", "float16", torch.float16),
    ],
)
def test_what_it_computes_in(device: str, dtype: str, expected: torch.dtype, chosen: list[Any]) -> None:
    placement = place(LoadOptions(device=device, dtype=dtype))
    assert placement == Placement(torch.device(device), expected)
    assert placement.is_gpu == (device != "cpu")
    assert chosen == ([device] if placement.is_gpu else [])  # else pinned memory would be the first GPU's


def test_a_share_of_the_memory(minilm_folder: Path, chosen: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is held to it before anything is loaded, and what is more than it is refused though it is free."""
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *arguments: chosen.append(arguments))

    place(LoadOptions(device="cuda:0", memory_share=1.0))
    place(LoadOptions(device="cpu", memory_share=0.5))
    assert chosen == ["cuda:0"]
    placement = place(LoadOptions(device="cuda:0", dtype="float32", memory_share=0.25))
    assert chosen[1:] == ["cuda:0", (0.25, torch.device("cuda:0"))]

    folder = model_folder.read(minilm_folder)
    check_fits(folder, placement)
    with pytest.raises(
        DeviceTrouble, match=r"^the weights take 0\.1 GiB, and the engine's share .* is 0\.01 of its 2\.0 GiB"
    ):
        check_fits(folder, dataclasses.replace(placement, memory_share=0.01))


@pytest.mark.parametrize(
    ("device", "dtype", "words"),
    [
        ("cuda:1", "bfloat16", "--dtype bfloat16: cuda:1 can't compute in it"),
        ("cuda:2", "auto", "can't use 'cuda:2'"),
        ("cuda", "auto", "not on 'cuda'"),
        ("mps", "auto", "not on 'mps'"),
    ],
)
@pytest.mark.usefixtures("chosen")
def test_where_it_does_not_compute(device: str, dtype: str, words: str) -> None:
    with pytest.raises(ModelError) as refused:
        place(LoadOptions(device=device, dtype=dtype))
    assert words in str(refused.value)


def test_a_torch_that_finds_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelError, match=rf"^torch {torch.__version__} can't use 'cuda:0'.".replace("+", r"\+")):
        place(LoadOptions(device="cuda:0"))


@pytest.mark.usefixtures("chosen")
def test_a_model_that_is_larger_than_the_memory(minilm_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, gpu = model_folder.read(minilm_folder), Placement(torch.device("cuda:0"), torch.bfloat16)
    check_fits(folder, gpu)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (GIB // 100, GIB // 2))
    with pytest.raises(
        ModelError, match=r"^the weights take 0\.0 GiB in bfloat16, and cuda:0 has 0\.0 of its 0\.5 GiB"
    ):
        check_fits(folder, gpu)
    check_fits(folder, Placement(torch.device("cpu"), torch.float32))


@pytest.mark.usefixtures("chosen")
def test_one_thread_and_short_batches(minilm_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU stands in for the GPU, so that the model can be loaded."""
    monkeypatch.setattr(Placement, "is_gpu", True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    loaded = load(minilm_folder, num_threads=3)
    loaded.close()
    assert (loaded.limits.streams, loaded.limits.depth) == (1, 2)
    assert (loaded.limits.max_batch_seconds, loaded.limits.max_batch_seconds_mixed) == (0.025, 0.010)
    assert not any("linear layers" in note for note in loaded.info.notes)  # they are laid out anew for CPUs only
    monkeypatch.undo()
    loaded = load(minilm_folder, num_threads=3)
    loaded.close()
    assert (loaded.limits.streams, loaded.limits.max_batch_seconds) == (3, 0.25)


@pytest.mark.parametrize(
    ("error", "kind", "num_emptied"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB"), EngineErrorKind.OUT_OF_MEMORY, 1),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), EngineErrorKind.FATAL, 0),
        (RuntimeError("shapes do not match"), EngineErrorKind.FAILED, 0),
    ],
)
def test_what_its_errors_mean(
    error: Exception, kind: EngineErrorKind, num_emptied: int, chosen: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    emptied = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(threading.current_thread().name))

    def forward(_: Any) -> torch.Tensor:
        raise error

    loaded = made(forward, device="cuda:0")
    loaded.submit(batch([[1]]))
    _, failed = loaded.collect()
    loaded.close()
    assert isinstance(failed, EngineError)
    assert failed.kind is kind
    assert emptied == ["compute 0"] * num_emptied
    assert chosen == [torch.device("cuda:0")]
