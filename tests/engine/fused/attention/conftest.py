"""Kernels are interpreted where there is no GPU."""

from tests.engine.fused.interpreter import bfloat16_products, exact_conversions, scalar_loop_bounds

__all__ = ["bfloat16_products", "exact_conversions", "scalar_loop_bounds"]
