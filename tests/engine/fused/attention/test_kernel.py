"""The attention kernel against its meaning in plain torch, interpreted where there is no GPU; and compiled for GPUs."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.fused.kernels.attention import Sizes, attend, sizes_for
from engine.fused.model.reference import ReferenceOps
from tests.engine.fused.attention.cases import TRIED, Case, rule_of
from tests.engine.fused.kernels.compile_kernels import SHARED_MEMORY, compiled_apart
from tests.tiers import full, full_but

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LENGTHS = (5, 1, 0, 70, 33, 16)


def deviation(case: Case, *, block_n: int | None = None, sizes: Sizes | None = None, **rule: object) -> float:
    """The largest difference from the reference, of rows of tokens."""
    asked = rule_of(case, **rule)  # type: ignore[arg-type]
    tiles = case.tiles()
    sizes = sizes if block_n is None else Sizes(block_n, 4, 1)
    rows = attend(*case.views(), tiles, asked, sizes=sizes)[: case.num_rows].float()
    expected = ReferenceOps().attend(*case.views(), tiles, asked)[: case.num_rows].float()
    assert expected.isfinite().all()
    return float((rows - expected).abs().nan_to_num(torch.inf).max())


@pytest.mark.parametrize(
    ("is_causal", "window", "block"),
    full_but(
        [(False, None, 16), (True, None, 16), (False, 2, 16), (True, 17, 16)],
        list(itertools.product((False, True), (None, 1, 2, 16, 17, 30, 1000), (16, 64))),
    ),
)
def test_windows(is_causal: bool, window: int | None, block: int) -> None:
    case = Case(lengths=LENGTHS, block=block, device=DEVICE)
    assert deviation(case, block_n=16, is_causal=is_causal, window=window) < 1e-5


@pytest.mark.parametrize(
    ("is_causal", "window", "softcap", "reach"),
    full_but(
        [(True, 20, 2.0, None), (False, None, None, 7), (False, 20, 2.0, 7)],
        [
            (is_causal, window, softcap, reach)
            for is_causal, window, softcap, reach in itertools.product(
                (False, True), (None, 20), (None, 2.0), (None, 7)
            )
            if softcap or reach
        ],
    ),
)
def test_softcaps_and_biases(is_causal: bool, window: int | None, softcap: float | None, reach: int | None) -> None:
    case = Case(lengths=LENGTHS, device=DEVICE)
    assert deviation(case, is_causal=is_causal, window=window, softcap=softcap, reach=reach) < 1e-5


@pytest.mark.parametrize("head_dim", [32, 48, 256, *full(16, 64, 80, 96, 128)])
def test_head_sizes_whether_powers_of_two_or_not(head_dim: int) -> None:
    assert deviation(Case(lengths=(33, 4), head_dim=head_dim, device=DEVICE), is_causal=True) < 1e-5


@pytest.mark.holds("Kernels match their plain reference")
@pytest.mark.parametrize("rule", [{}, {"is_causal": True, "window": 100}], ids=["all", "window"])
@pytest.mark.parametrize(
    ("head_dim", "sizes"),
    full_but([(64, TRIED[64][0])], [(dim, sizes) for dim, tried in TRIED.items() for sizes in tried]),
)
def test_sizes_that_a_gpu_run_tries(head_dim: int, sizes: Sizes, rule: dict[str, object]) -> None:
    """Whole blocks, edges, neighbours, keys shared by heads, and NaN behind the last sequence."""
    case = Case(lengths=(7, 200, 128), num_heads=4, head_dim=head_dim, block=128, dtype=torch.float16, device=DEVICE)
    assert deviation(case, sizes=sizes, **rule) < 2e-3  # type: ignore[arg-type]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("num_hidden", [3, 40])  # less than a block of keys, and more than a tile
def test_tokens_that_none_sees(num_hidden: int, is_causal: bool) -> None:
    """Of a sequence that has no others the first is seen."""
    case = Case(lengths=LENGTHS, block=32, num_hidden=num_hidden, device=DEVICE)
    assert deviation(case, block_n=16, is_causal=is_causal) < 1e-5


@pytest.mark.parametrize(
    ("num_shared", "window"),
    full_but([(21, None), (21, 17)], itertools.product((1, 16, 21, 69), (None, 1, 17, 30))),
)
def test_sequences_whose_first_tokens_are_computed_elsewhere(num_shared: int, window: int | None) -> None:
    """Tiles begin anywhere in their sequence."""
    case = Case(lengths=LENGTHS, block=32, num_shared=num_shared, device=DEVICE)
    assert deviation(case, block_n=16, is_causal=True, window=window) < 1e-5


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 1), (4, 2), (3, 3)])
def test_key_heads_are_shared(num_heads: int, num_kv_heads: int) -> None:
    case = Case(lengths=(40,), num_heads=num_heads, num_kv_heads=num_kv_heads, device=DEVICE)
    assert deviation(case, is_causal=True) < 1e-5


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
def test_numbers_of_16_bits(dtype: torch.dtype, tolerance: float) -> None:
    assert deviation(Case(lengths=(40, 7), dtype=dtype, device=DEVICE), is_causal=True) < tolerance


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("window", [None, 9])
def test_one_query_a_sequence(is_causal: bool, window: int | None) -> None:
    case = Case(lengths=(40, 0, 1, 65), block=16, device=DEVICE)
    query, key, value = case.views()
    query = query[[39, 0, 40, 105]]
    rule, tiles = rule_of(case, is_causal=is_causal, window=window), case.pooled_tiles()
    rows = attend(query, key, value, tiles, rule)[[0, 2, 3]]
    assert torch.allclose(rows, ReferenceOps().attend(query, key, value, tiles, rule)[[0, 2, 3]], atol=1e-5)


@pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning")  # the interpreter's numpy
def test_nan_in_a_neighbour_stays_there() -> None:
    case = Case(lengths=(20, 30, 20), device=DEVICE)
    query, key, value = case.views()
    expected = ReferenceOps().attend(query, key, value, case.tiles(), rule_of(case))
    for part in (query, key, value):
        part[20:50] = torch.nan
    rows = attend(query, key, value, case.tiles(), rule_of(case))
    assert torch.allclose(rows[:20], expected[:20], atol=1e-5)
    assert torch.allclose(rows[50:70], expected[50:70], atol=1e-5)
    assert rows[20:50].isnan().all()


def test_large_scores_do_not_overflow() -> None:
    case = Case(lengths=(40,), device=DEVICE)
    query, key, value = case.views()
    query, tiles, rule = query * 1000, case.tiles(), rule_of(case, window=3)
    rows, expected = (ops(query, key, value, tiles, rule)[:40] for ops in (attend, ReferenceOps().attend))
    assert torch.allclose(rows, expected, atol=1e-4)


def test_no_tiles_are_no_work() -> None:
    case = Case(lengths=(4,), device=DEVICE)
    query, key, value = case.views()
    tiles = case.tiles()
    none = type(tiles)(tiles.table[:0], tiles.block)
    assert attend(query, key, value, none, rule_of(case)).shape == query.shape


def test_sizes_fit_smaller_gpus() -> None:
    assert (
        sizes_for(256, 128, (8, 9), has_bias=False).num_stages < sizes_for(256, 128, (8, 0), has_bias=False).num_stages
    )
    assert sizes_for(64, 128, (9, 0), has_bias=False).max_registers == 128
    assert sizes_for(64, 128, (9, 0), has_bias=True).max_registers is None


def test_boxes_are_read_only_where_rows_allow() -> None:
    """Heads of 48 numbers are none, and pointers are as right."""
    case = Case(lengths=(150,), head_dim=48, block=128, device=DEVICE)
    assert deviation(case, sizes=Sizes(32, 4, 1, by_boxes=True)) < 1e-5


def compiled(folder: Path, arch: int, cases: list[str]) -> list[dict[str, Any]]:
    found = compiled_apart(folder, "tests.engine.fused.attention.compile_attention", str(arch), *cases)
    assert [one["case"] for one in found] == cases
    assert all(one["shared"] <= SHARED_MEMORY[arch] for one in found), found
    return found


@pytest.mark.full
def test_hopper_multiplies_by_groups_of_warps_and_spills_nothing(tmp_path: Path) -> None:
    found = compiled(tmp_path, 90, ["64 128 full", "128 128 causal"])
    assert [one["spilled"] for one in found] == [0, 0]
    assert all(one["products"]["wgmma.mma_async"] for one in found)
    assert found[0]["num_registers"] <= 128  # so that two programs fit on a multiprocessor


@pytest.mark.full
def test_all_kinds_of_rules_on_hopper(tmp_path: Path) -> None:
    large = ["64 128 causal,window", "64 128 bias", "128 128 causal,window,softcap", "256 128 causal,window,softcap"]
    large += ["128 64 causal", "256 64 full", "256 64 window", "48 128 full", "96 128 causal"]
    small = ["64 32 full", "128 32 causal", "256 32 causal", "64 16 causal", "128 16 causal", "256 16 full"]
    found = compiled(tmp_path, 90, large + small)
    assert [one["case"] for one in found if one["spilled"]] == []
    assert [one["case"] for one in found if one["products"]["wgmma.mma_async"]] == large


TRIED_CASES = [f"{dim} 128 causal,tried{number}" for dim, tried in TRIED.items() for number in range(len(tried))]
SOME = ["64 128 full", "128 128 causal", "256 128 causal", "256 64 full", "64 64 bias"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("arch", "product", "cases", "may_spill"),
    [
        (90, "wgmma.mma_async", TRIED_CASES, False),
        (100, "tcgen05.mma", TRIED_CASES, True),
        *((arch, product, SOME, True) for arch, product in ((80, "mma.sync"), (89, "mma.sync"), (100, "tcgen05.mma"))),
        *((arch, "mma.sync", SOME[1:2], False) for arch in (86, 120)),
        (103, "tcgen05.mma", SOME[1:2], False),
    ],
)
def test_other_gpus_and_sizes(tmp_path: Path, arch: int, product: str, cases: list[str], may_spill: bool) -> None:
    found = compiled(tmp_path, arch, cases)
    assert all(one["products"][product] for one in found)
    assert may_spill or [one["case"] for one in found if one["spilled"]] == []
