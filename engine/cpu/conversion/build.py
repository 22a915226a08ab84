"""A cold start: transformers loads the model, a backend converts it, and the outcome is held against the original."""

from dataclasses import dataclass
from pathlib import Path

import torch

from engine.cpu.conversion import selftest
from engine.cpu.conversion.graph import Graph
from engine.cpu.conversion.reference import Reference, compute
from engine.cpu.conversion.tracing import quiet
from engine.cpu.executor import Backend, Executor
from engine.cpu.facts import Choices, Facts
from engine.cpu.outputs import Makers, Pooled, head_in_graph
from engine.failures import one_line
from engine.model.model_folder import ModelFolder
from engine.selftest import sequences as samples
from engine.transformers.loading import load_model
from engine.types import ModelError, OutputKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """What is known of a converted model before it is compiled."""

    references: tuple[Reference, ...]  # what its rows have to be
    num_products: int  # matrix products that are quantized
    pad_id: int  # see Facts


def convert(backend: Backend, folder: ModelFolder, choices: Choices, *, target: Path) -> Converted:
    """Write the converted model into the empty folder `target`.

    Raises ModelError where transformers can't load the model or the backend can't convert it. The original is given
    up before the converted one is compiled, for both may not fit into memory.
    """
    model = Graph(load_model(folder, dtype=torch.float32), head_in_graph(folder), hides_tokens=folder.hides_tokens)
    is_quantized = choices.quantization != "none"
    sequences = samples.sentences(folder) if is_quantized else samples.arbitrary(folder)
    with quiet():
        references = tuple(
            compute(model, sequences, hides_tokens=way) for way in ((False, True) if folder.hides_tokens else (False,))
        )
        try:
            num_products = backend.convert(model, target, quantization=choices.quantization)
        except ModelError:
            raise
        except Exception as error:  # whatever a tracer or a converter makes of code that it was not written for
            raise ModelError(f"{backend.name} can't convert {folder.architecture!r}: {one_line(error)}") from error
    # RoBERTa and its kin count positions by it
    pad_id = model.pad_id if folder.padding_idx is None else folder.padding_idx
    return Converted(references=references, num_products=num_products, pad_id=pad_id)


def examine(executor: Executor, converted: Converted, choices: Choices, *, makers: Makers) -> Facts:
    """The self-test. Raises ModelError."""
    references, pad_id = converted.references, converted.pad_id
    first = references[0]
    difference = min_cosine = median_cosine = None
    if choices.quantization == "none":
        dtype = choices.dtype
        difference = max(selftest.largest_difference(executor, each, pad_id=pad_id, dtype=dtype) for each in references)
    else:
        pooled = makers[OutputKind.POOLED]
        assert isinstance(pooled, Pooled)
        min_cosine, median_cosine = selftest.cosines(executor, first, pad_id=pad_id, pooling=pooled.pooling)
    return Facts(
        dimensions=first.dimensions,
        pad_id=pad_id,
        difference=difference,
        min_cosine=min_cosine,
        median_cosine=median_cosine,
        num_texts=len(first.sequences),
        num_products=converted.num_products,
    )
