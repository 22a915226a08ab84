"""All ways to attend, on a GPU at sizes of real models, against the meaning in float32."""

import math

import pytest
import torch

from engine.fused.attention import TILES, Candidate, Cost, candidates_for, choose, cudnn_attend, flash_attend
from engine.fused.attention_timing import GpuTiming
from engine.fused.kernels.attention import attend, variants
from engine.fused.kernels.ops import TritonOps
from engine.fused.model.blocks import Attend
from engine.fused.model.reference import ReferenceOps
from tests.engine.fused.attention.cases import Case, inputs_of, rule_of, spec_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
]

LENGTHS = (1, 17, 700, 0, 128, 64, 333)
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}  # of numbers about 1
VARIANTS = [(dim, name) for dim in (64, 128, 256) for name in variants(dim, (9, 0))]
HEADS = [(12, 12, 32), (12, 12, 64), (16, 8, 128), (4, 1, 256), (8, 8, 80)]  # MiniLM, BERT, Qwen3, Gemma, …


def deviation(case: Case, rows: torch.Tensor, **rule: object) -> float:
    query, key, value = (part.float() for part in case.views())
    expected = ReferenceOps().attend(query, key, value, case.tiles(), rule_of(case, **rule))  # type: ignore[arg-type]
    return float((rows - expected)[: case.num_tokens].abs().nan_to_num(torch.inf).max())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("block", [16, 32, 64, 128])
@pytest.mark.parametrize("rule", [{}, {"is_causal": True}, {"window": 100}, {"is_causal": True, "softcap": 50.0}])
def test_tiles(dtype: torch.dtype, heads: tuple[int, int, int], block: int, rule: dict[str, object]) -> None:
    num_heads, num_kv_heads, head_dim = heads
    case = Case(
        lengths=LENGTHS,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block=block,
        dtype=dtype,
        device="cuda",
    )
    rows = attend(*case.views(), case.tiles(), rule_of(case, **rule))  # type: ignore[arg-type]
    assert deviation(case, rows, **rule) < TOLERANCE[dtype]


def test_tiles_with_relative_biases() -> None:
    case = Case(
        lengths=LENGTHS, num_heads=12, num_kv_heads=12, head_dim=64, block=128, dtype=torch.float16, device="cuda"
    )
    assert deviation(case, attend(*case.views(), case.tiles(), rule_of(case, reach=127)), reach=127) < 2e-3


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("head_dim", "name"), VARIANTS)
def test_variants_of_tiles(head_dim: int, name: str, is_causal: bool) -> None:
    if torch.cuda.get_device_capability()[0] not in (9, 10):
        pytest.skip("they are for Hopper and data-centre Blackwell")
    case = Case(
        lengths=LENGTHS,
        num_heads=16,
        num_kv_heads=8,
        head_dim=head_dim,
        block=128,
        dtype=torch.bfloat16,
        device="cuda",
    )
    rows = attend(
        *case.views(), case.tiles(), rule_of(case, is_causal=is_causal), sizes=variants(head_dim, (9, 0))[name]
    )
    assert deviation(case, rows, is_causal=is_causal) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("other", [flash_attend, cudnn_attend])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("rule", [{}, {"is_causal": True}, {"window": 100}, {"is_causal": True, "window": 100}])
def test_others(other: Attend, heads: tuple[int, int, int], rule: dict[str, object]) -> None:
    num_heads, num_kv_heads, head_dim = heads
    is_cudnn = other is cudnn_attend
    if is_cudnn and ("window" in rule or head_dim > 128 or torch.cuda.get_device_capability()[0] not in (9, 10)):
        pytest.skip("cuDNN is not asked for this")
    case = Case(
        lengths=LENGTHS,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        dtype=torch.bfloat16,
        device="cuda",
    )
    rows = other(*case.views(), inputs_of(case, max_seqlen=1024), rule_of(case, **rule))  # type: ignore[arg-type]
    assert deviation(case, rows, **rule) < TOLERANCE[torch.bfloat16]


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


def test_a_choice_is_made() -> None:
    spec = spec_of(num_heads=16, num_kv_heads=8, head_dim=128, is_causal=True, scaling=128**-0.5)
    device = torch.device("cuda", torch.cuda.current_device())
    timing = GpuTiming(spec, TritonOps(), torch.bfloat16, device)
    assert 0 < timing(TILES, 512).device < math.inf
    assert 0 < timing(Candidate("flash", flash_attend), 512).device < math.inf
    costs: dict[int, dict[Candidate, Cost]] = {}

    def measure(candidate: Candidate, seqlen: int) -> Cost:
        return costs.setdefault(seqlen, {}).setdefault(candidate, timing(candidate, seqlen))

    capability = torch.cuda.get_device_capability(device)
    candidates = candidates_for(spec, torch.bfloat16, capability, has_bias=False, max_seqlen=8192)
    choice = choose(candidates, measure, max_seqlen=8192)
    for length in (128, 512, 2048, 8192):
        found = costs[length]
        best = min(found.values(), key=lambda cost: cost.device)
        chosen = found[choice.recorded.at(length)]
        assert best.device <= chosen.device <= 1.05 * best.device < math.inf  # tiles win ties
        called = choice.called.at(length)
        assert called.is_by_tiles or found[called].host <= 0.002
