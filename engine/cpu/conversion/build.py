"""Converts a model: transformers loads it, a backend converts it, and the result is compared with the original."""

from dataclasses import dataclass
from pathlib import Path

import torch

from engine.cpu.conversion import selftest
from engine.cpu.conversion.graph import Graph
from engine.cpu.conversion.selftest import Reference
from engine.cpu.conversion.tracing import quiet
from engine.cpu.executor import Backend, Executor
from engine.cpu.facts import Choices, Facts
from engine.cpu.outputs import Makers, Pooled, head_in_graph
from engine.machine.failures import one_line
from engine.model.model_folder import ModelFolder
from engine.transformers.loading import load_model
from engine.types import ModelError, OutputKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """A converted model, before it is compiled."""

    references: tuple[Reference, ...]  # rows of the original, which the compiled model has to give
    notes: tuple[str, ...]  # what the self-test leaves out
    num_products: int  # quantized matrix products
    pad_id: int  # see Facts


def convert(backend: Backend, folder: ModelFolder, choices: Choices, *, target: Path) -> Converted:
    """Write the converted model into the empty folder `target`.

    Raises ModelError if transformers can't load the model or the backend can't convert it. The original is freed
    before the converted model is compiled, because both may not fit into memory.
    """
    model = Graph(load_model(folder, dtype=torch.float32), head_in_graph(folder), hides_tokens=folder.hides_tokens)
    tried = selftest.samples(folder, is_quantized=choices.quantization != "none")
    with quiet():
        references = tuple(
            selftest.compute_reference(model, tried.sequences, hides_tokens=way)
            for way in ((False, True) if folder.hides_tokens else (False,))
        )
        try:
            num_products = backend.convert(model, target, quantization=choices.quantization)
        except ModelError:
            raise
        except Exception as error:  # tracers and converters raise anything on code that they do not support
            raise ModelError(f"{backend.name} can't convert {folder.architecture!r}: {one_line(error)}") from error
    # RoBERTa and similar models number positions by the padding id
    pad_id = model.pad_id if folder.padding_idx is None else folder.padding_idx
    return Converted(references=references, notes=tried.notes, num_products=num_products, pad_id=pad_id)


def examine(executor: Executor, converted: Converted, choices: Choices, *, makers: Makers) -> Facts:
    """Run the self-test. Raises ModelError if the compiled model fails it."""
    references, pad_id = converted.references, converted.pad_id
    first = references[0]
    difference = min_cosine = median_cosine = None
    if choices.quantization == "none":
        dtype = choices.dtype
        difference = max(selftest.check_difference(executor, each, pad_id=pad_id, dtype=dtype) for each in references)
    else:
        pooled = makers[OutputKind.POOLED]
        assert isinstance(pooled, Pooled)
        min_cosine, median_cosine = selftest.check_cosines(executor, first, pad_id=pad_id, pooling=pooled.pooling)
    return Facts(
        dimensions=first.dimensions,
        pad_id=pad_id,
        difference=difference,
        min_cosine=min_cosine,
        median_cosine=median_cosine,
        num_texts=len(first.sequences),
        num_products=converted.num_products,
        left_out="; ".join(converted.notes),
    )
