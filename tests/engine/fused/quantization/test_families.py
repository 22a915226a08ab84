"""Both families run with every linear layer in FP8, pruned as well as whole, near to what they give in float32."""

from pathlib import Path

import numpy as np
import pytest

from engine.fused.model.linear import PlainLinear
from engine.fused.quantization.quantizing import QuantizableLinears
from engine.selftest.fidelity import fidelity
from tests.engine.fused.model.models import load_fused, save, source_of
from tests.engine.tiny_models import arbitrary

SEQLENS = (5, 17, 1, 30, 9)


@pytest.mark.parametrize("family", ["bert", "qwen3", "llama", "gemma3_text, bidirectional", "modernbert"])
def test_rows_in_fp8_are_near(family: str, tmp_path: Path) -> None:
    folder = save(family, tmp_path / "model")
    fused, sequences = load_fused(folder), arbitrary(SEQLENS)
    plain = fused.token_rows(sequences)
    switch = QuantizableLinears(fused.weights.linears, plain=source_of(folder).linear)
    names = [name for name in fused.weights.linears if name.startswith("layers.")]
    switch.set(names)
    quantized = fused.token_rows(sequences)
    assert 0.95 < fidelity(quantized, plain).median_cosine < 0.99999  # random rows of 32 numbers: little evens out
    ends = np.cumsum(SEQLENS)
    for pooling, tokens in (("cls", ends - SEQLENS), ("last", ends - 1)):
        # The same numbers, but products of other shapes may differ in the last bit, and then round to another FP8.
        assert fidelity(fused.pooled(sequences, pooling), quantized[tokens]).min_cosine > 0.9995
    switch.set([])
    assert all(isinstance(linear, PlainLinear) for linear in fused.weights.linears.values())
    np.testing.assert_array_equal(fused.token_rows(sequences), plain)
