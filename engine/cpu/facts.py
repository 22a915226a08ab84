"""The options that a model is compiled with, and the results of its self-test."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Options that a compiled model depends on."""

    engine: str
    dtype: str  # "float32", "bfloat16"
    quantization: str  # "none", "int8"
    pooling: str  # and the steps after it; fidelity is measured on these rows
    computes: str  # what the compiled model gives: "token rows", or its head's scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The results of the self-test, kept with the compiled model."""

    dimensions: int  # numbers in a row of the compiled model
    pad_id: int  # token id of padding; -1 = no token
    difference: float | None  # from transformers' rows, relative to the largest value; None if quantized
    min_cosine: float | None  # of quantized pooled rows and transformers'; None if not quantized
    median_cosine: float | None
    num_texts: int  # in the measurement
    num_products: int  # matrix products in int8; 0 if not quantized
    left_out: str = ""  # what the self-test did not try

    @classmethod
    def decode(cls, values: Mapping[str, Any]) -> "Facts":
        """From JSON. Raises ValueError or TypeError if the values are wrong."""
        facts = cls(**values)
        counts = (facts.dimensions, facts.num_texts, facts.num_products)
        cosines = (facts.min_cosine, facts.median_cosine)
        measured, others = ((facts.difference,), cosines) if facts.difference is not None else (cosines, ())
        if type(facts.pad_id) is not int or facts.pad_id < -1:
            raise ValueError("the id of padding is not one")
        if not isinstance(facts.left_out, str):
            raise ValueError("a note is not one")
        if not all(type(count) is int and count >= 0 for count in counts) or not facts.dimensions:
            raise ValueError("a count is not one")
        if not all(isinstance(number, float) and math.isfinite(number) for number in measured) or any(others):
            raise ValueError("a measured number is not one")
        return facts

    @property
    def notes(self) -> tuple[str, ...]:
        """For /info."""
        return (self.note, self.left_out) if self.left_out else (self.note,)

    @property
    def note(self) -> str:
        """For the log."""
        if self.min_cosine is None:
            return f"the self-test's rows equal transformers' to {self.difference:.0e} of the largest value"
        return (
            f"int8: the cosine to float32 rows is {self.min_cosine:.4f} at least and {self.median_cosine:.4f} in the "
            f"middle, over {self.num_texts} English texts, with {self.num_products} matrix products in int8"
        )
