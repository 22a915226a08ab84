"""Converts a model: transformers loads it and gives the rows that are expected, and OpenVINO converts it."""

from pathlib import Path

import torch

from engine.cpu.choices import Choices
from engine.cpu.conversion import references
from engine.cpu.conversion.graph import Graph
from engine.cpu.conversion.tracing import quiet
from engine.cpu.converted import Converted
from engine.cpu.executors import openvino
from engine.cpu.outputs import head_in_graph
from engine.machine.failures import one_line
from engine.model.model_folder import ModelFolder
from engine.transformers.loading import load_model
from engine.types import ModelError


def convert(folder: ModelFolder, choices: Choices, *, target: Path) -> Converted:
    """Write the converted model into the empty folder `target`.

    Raises ModelError if transformers can't load the model or OpenVINO can't convert it. The original is freed
    before the converted model is compiled, because both may not fit into memory.
    """
    model = Graph(load_model(folder, dtype=torch.float32), head_in_graph(folder), hides_tokens=folder.hides_tokens)
    is_quantized = choices.quantization != "none"
    tried = None if is_quantized else references.samples(folder)
    texts = references.texts(folder) if is_quantized or choices.dtype == "auto" else None
    with quiet():
        of_ids = (
            ()
            if tried is None
            else tuple(
                references.compute_reference(model, tried.sequences, hides_tokens=way)
                for way in ((False, True) if folder.hides_tokens else (False,))
            )
        )
        of_texts = None if texts is None else references.compute_reference(model, texts)
        try:
            num_products = openvino.convert(model, target, quantization=choices.quantization)
        except ModelError:
            raise
        except Exception as error:  # tracers and converters raise anything on code that they do not support
            raise ModelError(f"openvino can't convert {folder.architecture!r}: {one_line(error)}") from error
    # RoBERTa and similar models number positions by the padding id
    pad_id = model.pad_id if folder.padding_idx is None else folder.padding_idx
    return Converted(
        references=of_ids,
        of_texts=of_texts,
        notes=tried.notes if tried else (),
        num_products=num_products,
        dimensions=(of_texts or of_ids[0]).dimensions,
        pad_id=pad_id,
    )
