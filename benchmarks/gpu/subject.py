"""One model that several measurements share: each form of it is made when it is asked for first, and kept."""

from functools import cached_property

import torch

from benchmarks.gpu.fused_models import FusedModel
from benchmarks.gpu.random_models import RandomModel, build
from benchmarks.gpu.shapes import Shape
from benchmarks.gpu.targets import FP8


class Subject:
    """A model's random weights, and the fused engine's of the same."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self.shape = shape
        self.device = device
        self._fused: dict[str, FusedModel] = {}

    @cached_property
    def model(self) -> RandomModel:
        """As transformers has it."""
        return build(self.shape, self.device)

    def fused(self, way: str) -> FusedModel:
        """At a precision, "fused bf16" or "fused fp8"."""
        if way not in self._fused:
            self._fused[way] = FusedModel(self.model, is_fp8=way == FP8)
        return self._fused[way]
