"""Attention on a GPU at sizes of real models, against the meaning in float32."""

import pytest
import torch

from engine.fused.kernels.attention import Sizes, attend
from engine.fused.model.reference import ReferenceOps
from tests.engine.fused.attention.cases import Case, rule_of

pytestmark = pytest.mark.gpu

LENGTHS = (1, 17, 700, 0, 128, 64, 333)
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}  # of numbers about 1
# D, queries a tile, and what benchmarks try beside the sizes that `attend` chooses.
SWEPT = [
    (64, 128, Sizes(32, 8, 4, 80)),
    (64, 128, Sizes(64, 8, 3, 128, by_boxes=True)),
    (64, 128, Sizes(128, 8, 2)),
    (64, 128, Sizes(128, 8, 3, by_boxes=True)),
    (128, 128, Sizes(32, 8, 4, 128)),
    (128, 128, Sizes(32, 8, 4, 128, by_boxes=True)),
    (128, 128, Sizes(64, 8, 3, by_boxes=True)),
    (128, 128, Sizes(64, 8, 4, by_boxes=True)),
    (128, 128, Sizes(128, 8, 2)),
    (256, 64, Sizes(32, 4, 2)),
    (256, 128, Sizes(32, 8, 3, by_boxes=True)),
]
HEADS = [(12, 12, 32), (12, 12, 64), (16, 8, 128), (4, 1, 256), (8, 8, 80)]  # MiniLM, BERT, Qwen3, Gemma, …


def deviation(case: Case, rows: torch.Tensor, **rule: object) -> float:
    query, key, value = (part.float() for part in case.views())
    expected = ReferenceOps().attend(query, key, value, case.tiles(), rule_of(case, **rule))  # type: ignore[arg-type]
    return float((rows - expected)[: case.num_rows].abs().nan_to_num(torch.inf).max())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("block", [16, 32, 64, 128])
@pytest.mark.parametrize("rule", [{}, {"is_causal": True}, {"window": 100}, {"is_causal": True, "softcap": 50.0}])
def test_tiles(dtype: torch.dtype, heads: tuple[int, int, int], block: int, rule: dict[str, object]) -> None:
    case = Case(LENGTHS, *heads, block, dtype, "cuda")
    rows = attend(*case.views(), case.tiles(), rule_of(case, **rule))  # type: ignore[arg-type]
    assert deviation(case, rows, **rule) < TOLERANCE[dtype]


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("block", [16, 32, 64, 128])
@pytest.mark.parametrize("rule", [{"is_causal": True}, {"is_causal": True, "window": 100}])
def test_tiles_that_begin_anywhere(heads: tuple[int, int, int], block: int, rule: dict[str, object]) -> None:
    """The first tokens of each sequence are computed elsewhere."""
    case = Case(LENGTHS, *heads, block, torch.bfloat16, "cuda", num_shared=70)
    rows = attend(*case.views(), case.tiles(), rule_of(case, **rule))  # type: ignore[arg-type]
    assert deviation(case, rows, **rule) < TOLERANCE[torch.bfloat16]


def test_tiles_with_relative_biases() -> None:
    case = Case(LENGTHS, 12, 12, 64, 128, torch.float16, "cuda")
    assert deviation(case, attend(*case.views(), case.tiles(), rule_of(case, reach=127)), reach=127) < 2e-3


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("head_dim", "block", "sizes"), SWEPT)
def test_sizes_of_a_sweep(head_dim: int, block: int, sizes: Sizes, is_causal: bool) -> None:
    if torch.cuda.get_device_capability()[0] not in (9, 10):
        pytest.skip("they are for Hopper and data-centre Blackwell")
    case = Case(LENGTHS, 16, 8, head_dim, block, torch.bfloat16, "cuda")
    rows = attend(*case.views(), case.tiles(), rule_of(case, is_causal=is_causal), sizes=sizes)
    assert deviation(case, rows, is_causal=is_causal) < TOLERANCE[torch.bfloat16]


def test_tiles_are_recorded_with_tables_that_change() -> None:
    first, second = (
        Case(lengths=lengths, block=64, head_dim=64, dtype=torch.float16, device="cuda")
        for lengths in ((100, 30, 70), (70, 100, 30))
    )
    tiles, rule = first.tiles(), rule_of(first)
    query, key, value = first.views()
    attend(query, key, value, tiles, rule)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rows = attend(query, key, value, tiles, rule)
    tiles.table.copy_(second.tiles().table)
    graph.replay()
    expected = ReferenceOps().attend(query, key, value, second.tiles(), rule)
    assert torch.allclose(rows[:200], expected[:200], atol=2e-3)
