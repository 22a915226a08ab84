"""Kernels are interpreted where there is no GPU."""

from tests.engine.fused.interpreter import bfloat16_products, exact_conversions

__all__ = ["bfloat16_products", "exact_conversions"]
