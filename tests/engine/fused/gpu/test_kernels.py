"""The kernels at the sizes of real models on a GPU, called and replayed out of a CUDA graph, against the reference."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from engine.fused.kernels import TritonOps
from engine.fused.model.ops import (
    EmbeddingTables,
    Heads,
    Inputs,
    NormedRows,
    NormOutputs,
    Ops,
    QuantizedRows,
    RaggedRows,
    Tiles,
    WordScores,
)
from engine.fused.model.reference import ReferenceOps
from tests.engine.fused.kernels.samples import RELATIVE, Result, Samples, assert_alike, bounds_of, tiles_of

pytestmark = pytest.mark.gpu

NUM_ROWS = 4099
DTYPES = (torch.bfloat16, torch.float16)


def has_float8() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)


def replayed(call: Callable[[], Result]) -> Result:
    """What the call gives when it is replayed; before that, what it gave is overwritten."""
    call()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    for tensor in tensors_of(result):
        tensor.view(torch.uint8).fill_(0xFF)  # NaN
    graph.replay()
    torch.cuda.synchronize()
    return result


def tensors_of(result: Result) -> list[Tensor]:
    """All but the total, which may be `hidden` itself."""
    match result:
        case Tensor():
            return [result]
        case QuantizedRows(values, scales):
            return [values, scales]
        case NormedRows(_, rows, quantized):
            return [*tensors_of(rows), *tensors_of(quantized)]
        case RaggedRows(counts, entries):
            return [counts, entries]
    return []


def check(call: Callable[[Ops], Result]) -> None:
    """The kernels, called and replayed, against the reference."""
    expected = call(ReferenceOps())
    assert_alike(call(TritonOps()), expected)
    assert_alike(replayed(lambda: call(TritonOps())), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_quantized", [True, False])
@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("width", [384, 768, 1024, 2560, 4096, 12288])
def test_add_norm(width: int, kind: str, is_quantized: bool, dtype: torch.dtype) -> None:
    if is_quantized and not has_float8():
        pytest.skip("this GPU has no float8")
    samples = Samples(width)
    hidden, residual = samples.rows(NUM_ROWS, width, dtype), samples.rows(NUM_ROWS, width, dtype)
    norm = samples.norm(width, kind, has_bias=kind == "layer")
    outputs = NormOutputs.RESIDUAL | NormOutputs.ROWS | (NormOutputs.QUANTIZED if is_quantized else NormOutputs(0))
    check(lambda ops: ops.add_norm(hidden, residual, norm, outputs=outputs))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_quantized", [True, False])
@pytest.mark.parametrize(
    ("width", "activation", "is_gated"),
    [
        (1536, "gelu", False),
        (3072, "relu", False),
        (1152, "gelu_tanh", True),
        (3072, "silu", True),
        (12288, "silu", True),
        (18944, "silu", True),
    ],
)
def test_activate(width: int, activation: str, is_gated: bool, is_quantized: bool, dtype: torch.dtype) -> None:
    if is_quantized and not has_float8():
        pytest.skip("this GPU has no float8")
    rows = Samples(width).rows(1027, 2 * width if is_gated else width, dtype) * 3
    check(lambda ops: ops.activate(rows, activation, is_gated=is_gated, is_quantized=is_quantized))


@pytest.mark.usefixtures("float8")
@pytest.mark.parametrize("width", [384, 1024, 4096, 12288, 28672])
def test_quantize(width: int) -> None:
    rows = Samples(width).rows(NUM_ROWS, width, torch.bfloat16)
    check(lambda ops: ops.quantize(rows))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("num_query", "num_key", "dim", "rotated", "is_normed"),
    [(16, 8, 128, 128, True), (12, 12, 64, 64, False), (3, 1, 256, 256, True), (32, 8, 96, 48, False)],
)
def test_rotate(num_query: int, num_key: int, dim: int, rotated: int, is_normed: bool, dtype: torch.dtype) -> None:
    samples = Samples(dim)
    rows = samples.rows(NUM_ROWS, (num_query + 2 * num_key) * dim, dtype)
    positions, turns = samples.numbers(NUM_ROWS, 8192), samples.rows(8192, rotated // 2)
    angles = torch.cat((turns.cos(), turns.sin()), dim=1)
    norm = samples.norm(dim, "rms") if is_normed else None
    heads = Heads(num_query, num_key, dim, norm, norm)
    expected, actual = rows.clone(), rows.clone()
    ReferenceOps().rotate(expected, positions, angles, heads)
    TritonOps().rotate(actual, positions, angles, heads)
    torch.testing.assert_close(actual, expected, rtol=RELATIVE[dtype], atol=RELATIVE[dtype] / 8)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        TritonOps().rotate(rows, positions, angles, heads)
    graph.replay()  # in place, and only now
    assert torch.equal(rows, actual)


@pytest.mark.parametrize(("width", "is_bert"), [(384, True), (768, True), (4096, False)])
def test_embed(width: int, is_bert: bool) -> None:
    samples = Samples(width)
    ids, positions, types = (samples.numbers(NUM_ROWS, end) for end in (30522, 512, 2))
    tiles = Tiles(ids[:0].view(0, 5), 64)
    inputs = Inputs(ids, positions, types, ids[:0], ids[:0], tiles, tiles)
    words, more, kinds = (samples.rows(end, width, torch.bfloat16) for end in (30522, 512, 2))
    tables = EmbeddingTables(words, more, kinds, 1.0) if is_bert else EmbeddingTables(words, None, None, 64.0)
    check(lambda ops: ops.embed(inputs, tables))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "num_before"), [(256, 0), (2048, 2048), (1024, 4096), (1, 0)])
def test_gather(width: int, num_before: int, dtype: torch.dtype) -> None:
    """Out of rows that are wider; behind the last token there is padding, which is left alone."""
    samples = Samples(width)
    rows = samples.rows(NUM_ROWS, num_before + width, dtype)[:, num_before:]
    places = samples.numbers(2 * NUM_ROWS, NUM_ROWS)
    places[NUM_ROWS + 7 :] = -1
    check(lambda ops: ops.gather(rows, places)[: NUM_ROWS + 7])


@pytest.mark.parametrize("lengths", [[8192], [32] * 256, [1, 0, 4000, 65, 64, 0, 700, 1]])
@pytest.mark.parametrize("width", [384, 1024])
def test_pool(width: int, lengths: list[int]) -> None:
    rows = Samples(width).rows(sum(lengths) + 5, width, torch.bfloat16)
    cu_seqlens = torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)
    expected = ReferenceOps().pool(rows, cu_seqlens)
    for actual in (TritonOps().pool(rows, cu_seqlens), replayed(lambda: TritonOps().pool(rows, cu_seqlens))):
        assert isinstance(actual, Tensor)
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("lengths", "block", "num_words", "width"),
    [
        ([128] * 30 + [7, 0, 500], 128, 30_522, 768),
        ([3, 16, 9] * 60, 16, 30_522, 128),
        ([5, 12] * 128, 16, 250_002, 1024),  # several slices of words
        ([8192], 64, 50_368, 768),
    ],
)
def test_vocabulary_weights(lengths: list[int], block: int, num_words: int, width: int, dtype: torch.dtype) -> None:
    samples = Samples(width)
    hidden, words = samples.rows(sum(lengths) + 3, width, dtype), samples.rows(num_words, width, dtype) / width**0.5
    # as of real models: about one word in a hundred is above 0
    scores = WordScores(words, samples.rows(1, num_words)[0] * 0.1 - 4, is_log_twice=False)
    tiles, bounds = tiles_of(lengths, block, num_padded=3), bounds_of(lengths)
    check(lambda ops: ops.vocabulary_weights(hidden, scores, tiles, bounds))
