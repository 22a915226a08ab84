"""Triton's interpreter, mended: fixtures for the tests that run kernels without a GPU."""

from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter

TORCH_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp8e4nv": torch.float8_e4m3fn}


def converted(numbers: np.ndarray[Any, Any], source: Any, target: Any, rounding: object) -> Any:
    """As a GPU converts, to the nearest; Triton 3.7 cuts bfloat16 off, and loses carries on the way to float8."""
    bits = torch.from_numpy(np.ascontiguousarray(numbers)).view(TORCH_TYPES[str(source)])
    unsigned = getattr(torch, f"uint{target.primitive_bitwidth}")
    return bits.to(TORCH_TYPES[str(target)]).view(unsigned).numpy()


@pytest.fixture(autouse=True)
def exact_conversions(monkeypatch: pytest.MonkeyPatch) -> None:
    """See converted."""
    monkeypatch.setattr(interpreter, "_convert_float", converted)


@pytest.fixture(autouse=True)
def bfloat16_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton 3.7 keeps bfloat16 as its bits, and multiplies these as if they were whole numbers."""
    builder = interpreter.InterpreterBuilder
    patched = builder.create_dot

    def create_dot(self: Any, first: Any, second: Any, *others: Any) -> Any:
        return patched(self, widened(first), widened(second), *others)

    monkeypatch.setattr(builder, "create_dot", create_dot)


def widened(handle: Any) -> Any:
    """bfloat16 as float32."""
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    return interpreter.TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)
