"""The products of real models' layers, for batches of so many tokens, in bf16 and in FP8 by row, by tensor, by block.

What a library has no kernel for is a row too: the model's products then run another way.
"""

from collections.abc import Iterator
from functools import partial

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.clock import median_seconds, rotation
from benchmarks.gpu.products import BF16, FP8_BLOCK, FP8_ROW, FP8_TENSOR, Product, product_call
from benchmarks.gpu.rows import Figure, Key
from benchmarks.gpu.shapes import PRODUCTS, TINY, Shape

KIND = "gemm"
_NUM_TOKENS = (8192, 256, 16_384, 2048, 512, 4096)  # what batches are made of, then the ends
_TINY_NUM_TOKENS = (32,)
_SECONDS = 0.15


def run(bench: Bench) -> None:
    """Every product once, the sizes that matter most first."""
    for num_tokens in _TINY_NUM_TOKENS if bench.is_tiny else _NUM_TOKENS:
        for shape in TINY if bench.is_tiny else PRODUCTS:
            for name in shape.products():
                for precision in (BF16, FP8_ROW, FP8_TENSOR, *((FP8_BLOCK,) if bench.clock.is_gpu else ())):
                    _measure(bench, shape, name, num_tokens, precision)


def _measure(bench: Bench, shape: Shape, name: str, num_tokens: int, precision: str) -> None:
    num_columns, depth = shape.products()[name]
    size = Product(num_rows=num_tokens, num_columns=num_columns, depth=depth)

    def work() -> Iterator[Figure]:
        make = partial(product_call, size, precision, bench.clock.device)
        calls = rotation(make, num_bytes=size.num_bytes, clock=bench.clock)
        seconds = median_seconds(bench.clock, calls, in_graph=True, seconds=bench.sized(_SECONDS, 0.0))
        yield Figure("rate", size.flop / seconds / 1e12, "TFLOP/s")
        yield Figure("time", 1e6 * seconds, "us")

    bench.measure(Key(KIND, f"{shape.name} {name}", precision, str(size)), work)
