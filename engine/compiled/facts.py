"""What is asked of a compiled model, and what was found out about it when it was made."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What a model is compiled for."""

    engine: str
    dtype: str  # "float32", "bfloat16"
    quantization: str  # "none", "int8"
    pooling: str  # of the rows that fidelity is measured on


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The outcome of the self-test, kept with the compiled model."""

    dimensions: int
    difference: float | None  # of token rows to transformers', relative to the largest value; None where quantized
    min_cosine: float | None  # of quantized pooled rows to transformers'; None where not quantized
    median_cosine: float | None
    num_texts: int  # on which that was measured

    @property
    def note(self) -> str:
        """For the log and /info."""
        if self.min_cosine is None:
            return f"the self-test's rows equal transformers' to {self.difference:.0e} of the largest value"
        return (
            f"int8: the cosine to float32 rows is {self.min_cosine:.4f} at least and {self.median_cosine:.4f} in the "
            f"middle, over {self.num_texts} English texts"
        )
