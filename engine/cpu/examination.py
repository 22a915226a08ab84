"""Compiles a converted model and tests it: the dtype is chosen, and wrong rows are refused. Imports no torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from engine.cpu import selftest
from engine.cpu.choices import Choices
from engine.cpu.converted import Converted
from engine.cpu.openvino import Executor
from engine.cpu.outputs import Makers, Pooled
from engine.selftest.fidelity import Fidelity
from engine.types import ModelError, OutputKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The results of the self-test, kept with the compiled model."""

    dimensions: int  # numbers in a row of the compiled model
    pad_id: int  # token id of padding; -1 = no token
    dtype: str  # "float32" or "bfloat16"
    difference: float | None  # from the original's rows, relative to the largest value; None if quantized
    computed_by: str  # whose rows the original's are
    fidelity: Fidelity | None  # of int8 rows; of bfloat16 rows where auto has tried them; None = not measured
    num_products: int  # matrix products in int8; 0 if not quantized
    left_out: str = ""  # what the self-test did not try

    @classmethod
    def decode(cls, values: Mapping[str, Any]) -> "Facts":
        """From JSON. Raises KeyError, ValueError or TypeError if the values are wrong."""
        fidelity = values["fidelity"]
        facts = cls(**{**values, "fidelity": None if fidelity is None else Fidelity(**fidelity)})
        if type(facts.pad_id) is not int or facts.pad_id < -1:
            raise ValueError("the id of padding is not one")
        if facts.dtype not in ("float32", "bfloat16"):
            raise ValueError("a dtype is not one")
        if not isinstance(facts.left_out, str) or not isinstance(facts.computed_by, str):
            raise ValueError("a note is not one")
        counts = (facts.dimensions, facts.num_products)
        if not all(type(count) is int and count >= 0 for count in counts) or not facts.dimensions:
            raise ValueError("a count is not one")
        if not facts.measured or not all(
            isinstance(number, float) and math.isfinite(number) for number in facts.measured
        ):
            raise ValueError("a measured number is not one")
        return facts

    @property
    def measured(self) -> tuple[float, ...]:
        """What the self-test measured."""
        near = self.fidelity
        differences = () if self.difference is None else (self.difference,)
        if near is None:
            return differences
        return (*differences, near.min_cosine, near.p1_cosine, near.median_cosine, near.overlap)

    @property
    def notes(self) -> tuple[str, ...]:
        """For the log and /info."""
        return tuple(filter(None, (self._equality, self._lower_bits, self.left_out)))

    @property
    def _equality(self) -> str:
        if self.difference is None:
            return ""
        return f"the self-test's rows equal {self.computed_by} to {self.difference:.0e} of the largest value"

    @property
    def _lower_bits(self) -> str:
        if self.fidelity is None:
            return ""
        found = self.fidelity.in_words
        if self.num_products:
            return f"int8 in {self.num_products} matrix products: {found}"
        if self.dtype == "bfloat16":
            return f"--dtype auto computes in bfloat16: {found}; --dtype float32 does not"
        return f"--dtype auto computes in float32, because bfloat16 is too far from it: {found}"


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
