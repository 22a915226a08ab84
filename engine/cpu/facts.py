"""The results of a compiled model's self-test."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.selftest.fidelity import Fidelity


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
