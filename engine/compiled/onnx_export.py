"""Writes a model as an ONNX file. Knows torch, and nothing of ONNX Runtime."""

from pathlib import Path

import torch

from engine.compiled.conversion import TokenRows
from engine.compiled.executor import OUTPUT

_OPSET = 17


def export(model: TokenRows, file: Path) -> None:
    """By tracing: torch's newer exporter needs two more packages."""
    example = model.example()
    axes = {0: "sequences", 1: "tokens"}
    torch.onnx.export(
        model,
        tuple(example.values()),
        file,
        input_names=list(example),
        output_names=[OUTPUT],
        dynamic_axes=dict.fromkeys([*example, OUTPUT], axes),
        opset_version=_OPSET,
        dynamo=False,
    )
