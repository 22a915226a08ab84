"""The trial of a product for few rows, interpreted, and what is compiled of it for Hopper."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.products import Product, product_of
from benchmarks.gpu.skinny import SIZES, Sizes, product
from benchmarks.gpu.targets import FP8_ROW, PRODUCT_BF16
from tests.engine.fused.interpreter import bfloat16_products, exact_conversions
from tests.engine.fused.kernels.compile_kernels import Case

__all__ = ["bfloat16_products", "exact_conversions"]

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("precision", [PRODUCT_BF16, FP8_ROW])
@pytest.mark.parametrize(("num_rows", "num_columns"), [(5, 128), (32, 200)])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_product_of_few_rows_is_right(num_rows: int, num_columns: int, precision: str, sizes: Sizes) -> None:
    size = Product(num_rows=num_rows, num_columns=num_columns, depth=512)
    rows, weight, *scales = product_of(size, precision, torch.device("cpu"), 1)
    of_rows, of_weight = (one.double() for one in scales) if scales else (1.0, 1.0)
    exact = (rows.double() * of_rows) @ (weight.double() * of_weight).T
    for _ in range(2):  # the first leaves its counters as the second finds them
        found = product(rows, weight, *(one.view(-1) for one in scales), sizes=sizes).double()
        assert (found - exact).norm() / exact.norm() < 0.004


def launch(precision: str, sizes: Sizes) -> torch.Tensor:
    """At the size of an 8B model's product."""
    rows, weight = torch.zeros(32, 4096), torch.zeros(4096, 4096)
    if precision == PRODUCT_BF16:
        return product(rows.bfloat16(), weight.bfloat16(), sizes=sizes)
    scales = torch.ones(32), torch.ones(4096)
    return product(rows.to(torch.float8_e4m3fn), weight.to(torch.float8_e4m3fn), *scales, sizes=sizes)


CASES = tuple(
    Case(f"{precision} {sizes}", partial(launch, precision, sizes), min_arch=90)
    for precision in (PRODUCT_BF16, FP8_ROW)
    for sizes in SIZES
)


@pytest.mark.full
def test_it_compiles_and_spills_nothing(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    compiler = "tests.engine.fused.kernels.compile_kernels"
    answer = subprocess.run(
        [sys.executable, "-m", compiler, "tests.benchmarks.test_gpu_skinny", "90"],
        cwd=ROOT,
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert [one["spilled"] for one in json.loads(answer.stdout)] == [0] * len(CASES)
