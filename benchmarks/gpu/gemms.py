"""The products of real models' layers, for batches of so many tokens, in bf16 and in FP8 with a scale a row."""

from collections.abc import Iterator
from functools import partial

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.clock import median_seconds, rotation
from benchmarks.gpu.products import BF16, FP8_ROW, Product, product_call
from benchmarks.gpu.rows import Figure, Key
from benchmarks.gpu.shapes import PRODUCTS, TINY, Shape

KIND = "gemm"
_NUM_TOKENS = (512, 2048, 4096, 8192, 16_384)
_TINY_NUM_TOKENS = (32,)
_SECONDS = 0.15


def run(bench: Bench) -> None:
    """Every product once, the sizes that matter most first."""
    for num_tokens in _TINY_NUM_TOKENS if bench.is_tiny else sorted(_NUM_TOKENS, key=_importance):
        for shape in TINY if bench.is_tiny else PRODUCTS:
            for name in shape.products():
                for precision in (BF16, FP8_ROW):
                    _measure(bench, shape, name, num_tokens, precision)


def _importance(num_tokens: int) -> int:
    """If time runs short: what batches are made of, then the ends."""
    return (8192, 2048, 512, 16_384, 4096).index(num_tokens)


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
