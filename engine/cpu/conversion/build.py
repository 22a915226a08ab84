"""Converts a model: transformers loads it, OpenVINO converts it, and the result is compared with the original."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.cpu.conversion import selftest
from engine.cpu.conversion.graph import Graph
from engine.cpu.conversion.selftest import Reference
from engine.cpu.conversion.tracing import quiet
from engine.cpu.executor import Executor
from engine.cpu.executors import openvino
from engine.cpu.facts import Choices, Facts
from engine.cpu.outputs import Makers, Pooled, head_in_graph
from engine.machine.failures import one_line
from engine.model.model_folder import ModelFolder
from engine.selftest.fidelity import Fidelity
from engine.transformers.loading import load_model
from engine.types import ModelError, OutputKind

_MIN_INT8_COSINE = 0.97  # of any row to its float32 row, without the mean row

Open = Callable[[str], Executor]  # compiles the converted model in a dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """A converted model, before it is compiled. The references are rows of the original."""

    references: tuple[Reference, ...]  # of arbitrary ids, which the compiled model has to give; none if quantized
    of_texts: Reference | None  # of English texts, where the loss of fewer bits is to be measured
    notes: tuple[str, ...]  # what the self-test leaves out
    num_products: int  # quantized matrix products
    dimensions: int  # see Facts
    pad_id: int  # see Facts


def convert(folder: ModelFolder, choices: Choices, *, target: Path) -> Converted:
    """Write the converted model into the empty folder `target`.

    Raises ModelError if transformers can't load the model or OpenVINO can't convert it. The original is freed
    before the converted model is compiled, because both may not fit into memory.
    """
    model = Graph(load_model(folder, dtype=torch.float32), head_in_graph(folder), hides_tokens=folder.hides_tokens)
    is_quantized = choices.quantization != "none"
    tried = None if is_quantized else selftest.samples(folder)
    texts = selftest.texts(folder) if is_quantized or choices.dtype == "auto" else None
    with quiet():
        references = (
            ()
            if tried is None
            else tuple(
                selftest.compute_reference(model, tried.sequences, hides_tokens=way)
                for way in ((False, True) if folder.hides_tokens else (False,))
            )
        )
        of_texts = None if texts is None else selftest.compute_reference(model, texts)
        try:
            num_products = openvino.convert(model, target, quantization=choices.quantization)
        except ModelError:
            raise
        except Exception as error:  # tracers and converters raise anything on code that they do not support
            raise ModelError(f"openvino can't convert {folder.architecture!r}: {one_line(error)}") from error
    # RoBERTa and similar models number positions by the padding id
    pad_id = model.pad_id if folder.padding_idx is None else folder.padding_idx
    return Converted(
        references=references,
        of_texts=of_texts,
        notes=tried.notes if tried else (),
        num_products=num_products,
        dimensions=(of_texts or references[0]).dimensions,
        pad_id=pad_id,
    )


def examine(open_in: Open, converted: Converted, choices: Choices, *, makers: Makers) -> tuple[Executor, Facts]:
    """Run the self-test. Returns the executor that serves. Raises ModelError if the compiled model fails it."""
    dtype = "float32" if choices.dtype == "auto" else choices.dtype
    executor = open_in(dtype)
    difference = _difference(executor, converted, dtype=dtype) if converted.references else None
    found = None
    if choices.quantization != "none":
        found = _fidelity(executor, converted, makers)
        _check_int8(found)
    elif choices.dtype == "auto":
        del executor  # memory holds one
        executor = open_in("bfloat16")
        found = _fidelity(executor, converted, makers)
        if found.is_hardly_lower:
            dtype = "bfloat16"
        else:
            del executor
            executor = open_in(dtype)
    facts = Facts(
        dimensions=converted.dimensions,
        pad_id=converted.pad_id,
        dtype=dtype,
        difference=difference,
        fidelity=found,
        num_products=converted.num_products,
        left_out="; ".join(converted.notes),
    )
    return executor, facts


def _difference(executor: Executor, converted: Converted, *, dtype: str) -> float:
    pad_id = converted.pad_id
    return max(selftest.check_difference(executor, each, pad_id=pad_id, dtype=dtype) for each in converted.references)


def _fidelity(executor: Executor, converted: Converted, makers: Makers) -> Fidelity:
    pooled = makers[OutputKind.POOLED]
    assert isinstance(pooled, Pooled)
    assert converted.of_texts is not None
    return selftest.measure(executor, converted.of_texts, pad_id=converted.pad_id, pooling=pooled.pooling)


def _check_int8(found: Fidelity) -> None:
    if not found.min_cosine >= _MIN_INT8_COSINE:
        raise ModelError(
            f"--quantization int8 costs this model too much: {found.in_words}, and a cosine of {_MIN_INT8_COSINE} is "
            f"asked for; serve it with --quantization none"
        )
