"""Writes a model as an ONNX file. Knows torch, and nothing of ONNX Runtime."""

from pathlib import Path

import torch

from engine.cpu.conversion.graph import Graph
from engine.cpu.executor import OUTPUT

_OPSET = 17


def export(model: Graph, file: Path) -> None:
    """By tracing: torch's newer exporter needs two more packages."""
    example = model.example()
    sequences = {0: "sequences"}
    axes = {**sequences, 1: "tokens"}
    torch.onnx.export(
        model,
        tuple(example.values()),
        file,
        input_names=list(example),
        output_names=[OUTPUT],
        dynamic_axes={**dict.fromkeys(example, axes), OUTPUT: axes if model.is_per_token else sequences},
        opset_version=_OPSET,
        dynamo=False,
    )
