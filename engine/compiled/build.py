"""A cold start: transformers loads the model, a backend converts it, and the outcome is held against the original."""

from pathlib import Path

import torch

from engine.compiled import samples, selftest
from engine.compiled.conversion import TokenRows, quiet
from engine.compiled.executor import Backend, Executor
from engine.compiled.facts import Choices, Facts
from engine.compiled.pooling import Pooling
from engine.compiled.reference import Reference, compute
from engine.failures import one_line
from engine.model_folder import ModelFolder
from engine.transformers.loading import load_model
from engine.types import ModelError


def convert(backend: Backend, folder: ModelFolder, choices: Choices, *, target: Path) -> tuple[Reference, int]:
    """Write the converted model into the empty folder `target`.

    Returns what its rows have to be, and how many matrix products are quantized.

    Raises ModelError where transformers can't load the model or the backend can't convert it. The original is given
    up before the converted one is compiled, for both may not fit into memory.
    """
    model = TokenRows(load_model(folder, dtype=torch.float32))
    is_quantized = choices.quantization != "none"
    sequences = samples.sentences(folder) if is_quantized else samples.arbitrary(folder)
    with quiet():
        reference = compute(model, sequences)
        try:
            num_products = backend.convert(model, target, quantization=choices.quantization)
        except ModelError:
            raise
        except Exception as error:  # whatever a tracer or a converter makes of code that it was not written for
            raise ModelError(f"{backend.name} can't convert {folder.architecture!r}: {one_line(error)}") from error
    return reference, num_products


def examine(
    executor: Executor, reference: Reference, choices: Choices, *, pooling: Pooling, pad_id: int, num_products: int
) -> Facts:
    """The self-test. Raises ModelError."""
    difference = min_cosine = median_cosine = None
    if choices.quantization == "none":
        difference = selftest.largest_difference(executor, reference, pad_id=pad_id, dtype=choices.dtype)
    else:
        min_cosine, median_cosine = selftest.cosines(executor, reference, pad_id=pad_id, pooling=pooling)
    return Facts(
        dimensions=reference.dimensions,
        difference=difference,
        min_cosine=min_cosine,
        median_cosine=median_cosine,
        num_texts=len(reference.sequences),
        num_products=num_products,
    )
