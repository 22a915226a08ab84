"""Compiles a converted model and tests it: chooses the dtype, and refuses wrong rows. Imports no torch."""

from functools import partial
from typing import Protocol

from engine.cpu import selftest
from engine.cpu.choices import Choices
from engine.cpu.converted import Converted
from engine.cpu.executor import Executor
from engine.cpu.facts import Facts
from engine.cpu.outputs import Makers, Pooled
from engine.selftest.fidelity import Fidelity
from engine.types import ModelError, OutputKind

_MIN_INT8_COSINE = 0.97  # of any row to its float32 row, without the mean row


class Open(Protocol):
    """Compiles the converted model in a dtype. has_wide: see Executor."""

    def __call__(self, dtype: str, *, has_wide: bool = True) -> Executor: ...


def examine(
    open_in: Open, converted: Converted, choices: Choices, *, makers: Makers, is_new: bool = True
) -> tuple[Executor, Facts]:
    """Run the self-test. Returns the executor that serves. Raises ModelError if the compiled model fails it.

    is_new: False of a model whose float32 form another machine has compared with transformers. Then only what serves is
    compiled and compared, and few texts both ways, which halves the time of the test.
    """
    found, difference = None, None
    measured = partial(_fidelity, converted=converted, makers=makers, is_new=is_new)
    dtype = "float32" if choices.dtype == "auto" else choices.dtype
    if choices.quantization != "none":
        executor = open_in(dtype)
        found = measured(executor)
        _check_int8(found)
    elif choices.dtype == "auto":
        if is_new:  # memory holds one form, this one of half the size, as it will hardly serve
            difference = _difference(open_in(dtype, has_wide=False), converted, dtype=dtype)
        executor = open_in("bfloat16")
        found = measured(executor)
        if found.is_hardly_lower:
            dtype = "bfloat16"
        else:
            del executor
            executor = open_in(dtype)
            difference = _difference(executor, converted, dtype=dtype)
    else:
        executor = open_in(dtype)
        difference = _difference(executor, converted, dtype=dtype)
    facts = Facts(
        dimensions=converted.dimensions,
        pad_id=converted.pad_id,
        dtype=dtype,
        difference=difference,
        computed_by=converted.computed_by,
        fidelity=found,
        num_products=converted.num_products,
        left_out="; ".join(converted.notes),
    )
    return executor, facts


def _difference(executor: Executor, converted: Converted, *, dtype: str) -> float:
    return selftest.check_difference(executor, converted.references, pad_id=converted.pad_id, dtype=dtype)


def _fidelity(executor: Executor, *, converted: Converted, makers: Makers, is_new: bool) -> Fidelity:
    pooled = makers[OutputKind.POOLED]
    assert isinstance(pooled, Pooled)
    assert converted.of_texts is not None
    return selftest.measure(
        executor, converted.of_texts, pad_id=converted.pad_id, pooling=pooled.pooling, each_alone=is_new
    )


def _check_int8(found: Fidelity) -> None:
    if not found.min_cosine >= _MIN_INT8_COSINE:
        raise ModelError(
            f"--quantization int8 costs this model too much: {found.in_words}, and a cosine of {_MIN_INT8_COSINE} is "
            f"asked for; serve it with --quantization none"
        )
