"""What the machine itself can do: copying, products of large squares, and those of real models' layers.

Everything is on random data (zeros are faster). Copies and squares are held for two seconds, so that clocks settle
where they would. Products are in bf16 and in FP8 by row, by tensor, by block; what a library has no kernel for is a row
too, since the model's product then runs another way.
"""

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.clock import Held, hold, median_seconds, rotation
from benchmarks.gpu.products import Product, product_call
from benchmarks.gpu.rows import Figure, Key
from benchmarks.gpu.shapes import PRODUCTS, TINY, Shape
from benchmarks.gpu.targets import FP8_BLOCK, FP8_ROW, FP8_TENSOR
from benchmarks.gpu.targets import PRODUCT_BF16 as BF16

KIND, GRID = "ceiling", "gemm"
COPY = Key(KIND, "copy")
_SIDE = 8192
_COPY_BYTES = 4 * 2**30  # read, and as many written
_SECONDS, _SECONDS_OF_GRID = 2.0, 0.15
_NUM_TOKENS = (8192, 256, 16_384, 2048, 512, 4096)  # what batches are made of, then the ends
_TINY_NUM_TOKENS = (32,)


def ceiling_key(precision: str) -> Key:
    """Of the product whose rate all others are shares of."""
    return Key(KIND, "product of squares", precision)


def run(bench: Bench) -> None:
    """Copying, squares, then the layers' products."""
    copy(bench)
    for precision in _precisions(bench):
        bench.measure(ceiling_key(precision), partial(_product, bench, precision))
    _grid(bench)


def again(bench: Bench, *precisions: str) -> None:
    """Measured anew by each process that speaks of shares: cards differ, and so do their clocks from hour to hour."""
    for precision in precisions:
        key = ceiling_key(precision)
        if bench.rows.value(key, "rate", run=bench.rows.run) is None:
            bench.measure(key, partial(_product, bench, precision), again=True)


def copy(bench: Bench) -> None:
    """From one place in the device's memory to another."""
    num_bytes = 2**16 if bench.is_tiny else _COPY_BYTES

    def work() -> Iterator[Figure]:
        source = torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, device=bench.clock.device)
        target = torch.empty_like(source)
        held = hold(bench.clock, [lambda: target.copy_(source)], seconds=bench.sized(_SECONDS, 0.01))
        yield Figure("bandwidth", 2e-9 * num_bytes / held.seconds, "GB/s", "bytes read and bytes written")
        yield from _clocks(held)

    bench.measure(COPY, work)


def _product(bench: Bench, precision: str) -> Iterator[Figure]:
    side = 128 if bench.is_tiny else _SIDE
    size = Product(num_rows=side, num_columns=side, depth=side)

    make = partial(product_call, size, precision, bench.clock.device)
    calls = rotation(make, num_bytes=size.num_bytes, clock=bench.clock)
    held = hold(bench.clock, calls, seconds=bench.sized(_SECONDS, 0.01))
    yield Figure("rate", size.flop / held.seconds / 1e12, "TFLOP/s")
    yield from _clocks(held)


def _clocks(held: Held) -> Iterator[Figure]:
    yield Figure("held", held.held_seconds, "s", str(held.load or ""))
    if held.load is not None:
        yield Figure("SM clock", held.load.sm_mhz, "MHz")


def _precisions(bench: Bench) -> tuple[str, ...]:
    """No CPU multiplies by blocks."""
    return BF16, FP8_ROW, FP8_TENSOR, *((FP8_BLOCK,) if bench.clock.is_gpu else ())


def _grid(bench: Bench) -> None:
    """Every product once, the sizes that matter most first."""
    for num_tokens in _TINY_NUM_TOKENS if bench.is_tiny else _NUM_TOKENS:
        for shape in TINY if bench.is_tiny else PRODUCTS:
            for name in shape.products():
                for precision in _precisions(bench):
                    _measure(bench, shape, name, num_tokens, precision)


def _measure(bench: Bench, shape: Shape, name: str, num_tokens: int, precision: str) -> None:
    num_columns, depth = shape.products()[name]
    size = Product(num_rows=num_tokens, num_columns=num_columns, depth=depth)

    def work() -> Iterator[Figure]:
        make = partial(product_call, size, precision, bench.clock.device)
        calls = rotation(make, num_bytes=size.num_bytes, clock=bench.clock)
        seconds = median_seconds(bench.clock, calls, in_graph=True, seconds=bench.sized(_SECONDS_OF_GRID, 0.0))
        yield Figure("rate", size.flop / seconds / 1e12, "TFLOP/s")
        yield Figure("time", 1e6 * seconds, "us")

    bench.measure(Key(GRID, f"{shape.name} {name}", precision, str(size)), work)
