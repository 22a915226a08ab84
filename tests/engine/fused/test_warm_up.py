"""What warming up costs the host with cuDNN's attention, which makes its plan anew in each call: by a pretended GPU."""

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.fused import choices, first_batches, loading
from engine.fused import start as fused
from engine.fused.attention import TILES, AttentionChoice, Candidate, Steps
from engine.fused.choices import Choices
from engine.fused.model.ops import AttentionRule, Inputs
from engine.fused.model.reference import ReferenceOps
from engine.fused.runner import graphs
from engine.messages import LoadOptions
from tests.engine.fused.runner.pretended_cuda import PretendedCuda
from tests.engine.load_options import load_options
from tests.engine.tiny_models import save

PLAN = 0.042  # seconds
NUM_LAYERS = 3


class Cudnn:
    """Attention whose every call keeps the host, by a clock of its own; replays do not call it."""

    def __init__(self, cuda: PretendedCuda) -> None:
        self.seconds = 0.0
        self.called_outside: list[int] = []  # numbers of tokens
        self._cuda = cuda

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, inputs: Inputs, rule: AttentionRule) -> Tensor:
        self.seconds += PLAN
        if not self._cuda.is_recording:
            self.called_outside.append(len(query))
        return ReferenceOps().attend(query, key, value, inputs.tiles, rule)


class AtOnce:
    """The recorder's thread, done before the next batch is packed: recording reads the block here, as no GPU does."""

    def submit(self, work: Callable[..., Any], *parameters: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*parameters))
        return done


@pytest.mark.holds("Attention that keeps the host long runs only in graphs")
def test_plans_are_made_only_for_the_graphs_of_large_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save("bert", tmp_path / "model")
    cuda = PretendedCuda(monkeypatch)
    cuda.records_calls = True
    monkeypatch.setattr(graphs, "_RECORDER", AtOnce())
    cudnn = Cudnn(cuda)
    choice = AttentionChoice(Steps((Candidate("cuDNN", cudnn),), ()), Steps((TILES,), ()), "")
    chosen = choices.choose

    def on_a_gpu(options: LoadOptions) -> Choices:
        made = chosen(options)
        return Choices(folder=made.folder, device=torch.device("cpu"), capability=(9, 0), dtype=torch.float32)

    monkeypatch.setattr(choices, "choose", on_a_gpu)
    monkeypatch.setattr(loading, "_ops", lambda _: ReferenceOps())
    monkeypatch.setattr(loading, "_attention", lambda *_: choice)
    monkeypatch.setattr(first_batches, "_MAX_QUERY", 64)
    fused.load(name="m", reason="asked", options=load_options(folder, device="cpu", max_num_tokens=2048))
    assert cudnn.called_outside == []
    assert cuda.events.count("record") > 3  # of single queries too
    assert cudnn.seconds == pytest.approx(NUM_LAYERS * PLAN)
