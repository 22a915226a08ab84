"""What the machine itself can do: copying, and the largest products of matrices at each precision.

Everything is on random data (zeros are faster) and held for two seconds, so that clocks settle where they would.
"""

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.clock import Held, hold, rotation
from benchmarks.gpu.products import BF16, FP8_BLOCK, FP8_ROW, FP8_TENSOR, Product, product_call
from benchmarks.gpu.rows import Figure, Key

KIND = "ceiling"
_SIDE = 8192
_COPY_BYTES = 4 * 2**30  # read, and as many written
_SECONDS = 2.0


def ceiling_key(precision: str) -> Key:
    """Of the product whose rate all others are shares of."""
    return Key(KIND, "product of squares", precision)


def run(bench: Bench) -> None:
    """Copying, and all precisions."""
    copy(bench)
    for precision in (BF16, FP8_ROW, FP8_TENSOR, *((FP8_BLOCK,) if bench.clock.is_gpu else ())):
        bench.measure(ceiling_key(precision), partial(_product, bench, precision))


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

    bench.measure(Key(KIND, "copy"), work)


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
