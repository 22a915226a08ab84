"""Trials of what the engine does not do yet, each beside what it does: what they gain decides whether it will."""

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu import ceilings
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.clock import Call, median_seconds, rotation
from benchmarks.gpu.fused_models import FusedModel, ops_for
from benchmarks.gpu.products import Product, factors, product_of
from benchmarks.gpu.random_models import batch_of, build
from benchmarks.gpu.rows import Figure, Key
from benchmarks.gpu.shapes import BERT_BASE, BGE_M3, MINILM, QWEN3_06B, QWEN3_8B, TINY_BERT, Shape
from benchmarks.gpu.targets import FP8_ROW, PRODUCT_BF16
from engine.fused.cuda_device import on_recorder, recorded

KIND = "probe"
GELU, SKINNY, RECORDING = "GELU in the product", "product for few rows", "recording"
_NUM_TOKENS, _TINY_NUM_TOKENS = (8192, 1024), (32,)
_NUM_ROWS = (32, 16)
_NUM_CHECKED = 64  # rows held against float64
_SECONDS = 0.2
_NUM_RECORDED, _RECORDED_SEQLEN = 5, 512


def run(bench: Bench) -> None:
    """The last two are for GPUs alone."""
    for num_tokens in _TINY_NUM_TOKENS if bench.is_tiny else _NUM_TOKENS:
        for shape in (TINY_BERT,) if bench.is_tiny else (BERT_BASE, BGE_M3, MINILM):
            key = Key(KIND, f"{GELU}, {shape.name}", PRODUCT_BF16, f"T={num_tokens}")
            bench.measure(key, partial(_gelu, bench, shape, num_tokens))
    if not bench.clock.is_gpu:
        return
    for num_rows in _NUM_ROWS:
        for precision in (FP8_ROW, PRODUCT_BF16):
            for name, (n, k) in QWEN3_8B.products().items():
                size = Product(num_rows=num_rows, num_columns=n, depth=k)
                key = Key(KIND, f"{SKINNY}, {QWEN3_8B.name} {name}", precision, str(size))
                bench.measure(key, partial(_skinny, bench, size, precision))
    bench.measure(Key(KIND, RECORDING, PRODUCT_BF16, QWEN3_06B.name), partial(_recording, bench))


def _gelu(bench: Bench, shape: Shape, num_tokens: int) -> Iterator[Figure]:
    """In the library's epilogue it is the form with tanh; ours is exact."""
    ops, (n, k) = ops_for(bench.clock.device), shape.products()["gate_up"]
    size = Product(num_rows=num_tokens, num_columns=n, depth=k)

    def apart(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        found = ops.activate(functional.linear(rows, weight, bias), "gelu", is_gated=False, is_quantized=False)
        assert isinstance(found, Tensor)
        return found

    def together(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch._addmm_activation(bias, rows, weight.t(), use_gelu=True)

    def given(seed: int) -> tuple[Tensor, Tensor, Tensor]:
        rows, weight = factors(size, bench.clock.device, seed)
        return rows, weight * k**-0.5, weight[:, 0].clone()

    rows, weight, bias = given(0)
    exact = functional.gelu(functional.linear(rows[:_NUM_CHECKED].double(), weight.double(), bias.double()))
    yield from _against(bench, size, {"apart": apart, "together": together}, given, exact)


def _skinny(bench: Bench, size: Product, precision: str) -> Iterator[Figure]:
    """By a plain kernel that reads the weights as fast as it can, in several sizes."""
    from benchmarks.gpu.skinny import SIZES, Sizes, product

    def skinny(rows: Tensor, weight: Tensor, *scales: Tensor, sizes: Sizes) -> Tensor:
        return product(rows, weight, *(one.view(-1) for one in scales), sizes=sizes)

    def given(seed: int) -> tuple[Tensor, ...]:
        return product_of(size, precision, bench.clock.device, seed)

    def plain(factor: Tensor, scales: Tensor | float) -> Tensor:
        return factor.double() * scales

    rows, weight, *scales = given(0)
    exact = plain(rows, scales[0] if scales else 1.0) @ plain(weight, scales[1] if scales else 1.0).T
    ways: dict[str, Callable[..., Tensor]] = {"cuBLASLt": partial(_library, precision)}
    ways |= {f"skinny ({sizes})": partial(skinny, sizes=sizes) for sizes in SIZES}
    yield from _against(bench, size, ways, given, exact)
    copied = bench.rows.value(ceilings.COPY, "bandwidth")
    num_bytes = weight.numel() * weight.element_size()
    if copied is not None:
        yield Figure("at the copy rate", 1e6 * num_bytes / (1e9 * copied), "us", "that reading the weights takes")


def _library(precision: str, rows: Tensor, weight: Tensor, *scales: Tensor) -> Tensor:
    if precision == PRODUCT_BF16:
        return functional.linear(rows, weight)
    by_row, by_column = scales
    return torch._scaled_mm(rows, weight.T, by_row, by_column.T, out_dtype=torch.bfloat16, use_fast_accum=True)


def _against(
    bench: Bench,
    size: Product,
    ways: dict[str, Callable[..., Tensor]],
    given: Callable[[int], tuple[Tensor, ...]],
    exact: Tensor,
) -> Iterator[Figure]:
    """Microseconds and errors of each way, and how many times the best of the others is as fast as the first."""
    times = []
    for name, way in ways.items():

        def call(seed: int, way: Callable[..., Tensor] = way) -> Call:
            return partial(way, *given(seed))

        calls = rotation(call, num_bytes=size.num_bytes, clock=bench.clock)
        times.append(median_seconds(bench.clock, calls, in_graph=True, seconds=bench.sized(_SECONDS, 0.0)))
        error = way(*given(0))[: len(exact)].double() - exact
        yield Figure(name, 1e6 * times[-1], "us")
        yield Figure(f"error {name}", float(error.norm() / exact.norm()), "")
    yield Figure("times", times[0] / min(times[1:]), "")


def _recording(bench: Bench) -> Iterator[Figure]:
    """By torch.cuda.graph, which empties caches, and as the engine does; then the first call behind it."""
    fused = FusedModel(build(QWEN3_06B, bench.clock.device), is_fp8=False)
    work = fused.call(batch_of(QWEN3_06B, [_RECORDED_SEQLEN]))
    stream = torch.cuda.Stream(bench.clock.device)  # type: ignore[no-untyped-call]

    def by_torch() -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream, capture_error_mode="relaxed"):
            work()

    def as_engine() -> None:
        recorded(work, pool=torch.cuda.graph_pool_handle(), stream=stream)

    def timed(call: Call) -> float:
        torch.cuda.set_device(bench.clock.device)  # of the thread that records
        bench.clock.synchronize()
        began = time.perf_counter()
        call()
        bench.clock.synchronize()
        return time.perf_counter() - began

    for name, record in (("torch.cuda.graph", by_torch), ("as the engine does", as_engine)):
        timed(work)
        on_recorder(work)  # makes that thread's handles
        taken = [(on_recorder(partial(timed, record)), timed(work)) for _ in range(_NUM_RECORDED)]
        recording, behind = (sorted(column)[_NUM_RECORDED // 2] for column in zip(*taken, strict=True))
        yield Figure(name, 1e3 * recording, "ms")
        yield Figure(f"call behind it, {name}", 1e3 * behind, "ms")
