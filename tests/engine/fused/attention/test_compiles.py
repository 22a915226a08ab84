"""What the kernel comes to on GPUs that are not there: it compiles, fits, and uses their matrix units."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engine.fused.attention.cases import TRIED
from tests.engine.fused.kernels.compile_kernels import SHARED_MEMORY

pytestmark = pytest.mark.timeout(300)


def compiled(folder: Path, arch: int, cases: list[str]) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.engine.fused.attention.compile_attention", str(arch), *cases]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(folder)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
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


@pytest.mark.full
@pytest.mark.parametrize(("arch", "product"), [(90, "wgmma.mma_async"), (100, "tcgen05.mma")])
def test_sizes_that_a_gpu_run_tries(tmp_path: Path, arch: int, product: str) -> None:
    cases = [f"{dim} 128 causal,tried{number}" for dim, tried in TRIED.items() for number in range(len(tried))]
    found = compiled(tmp_path, arch, cases)
    assert all(one["products"][product] for one in found)
    assert arch != 90 or [one["case"] for one in found if one["spilled"]] == []


@pytest.mark.full
@pytest.mark.parametrize(("arch", "product"), [(80, "mma.sync"), (89, "mma.sync"), (100, "tcgen05.mma")])
def test_other_gpus(tmp_path: Path, arch: int, product: str) -> None:
    cases = ["64 128 full", "128 128 causal", "256 128 causal", "256 64 full", "64 64 bias"]
    found = compiled(tmp_path, arch, cases)
    assert all(one["products"][product] for one in found)


@pytest.mark.full
@pytest.mark.parametrize(("arch", "product"), [(86, "mma.sync"), (103, "tcgen05.mma"), (120, "mma.sync")])
def test_relatives_of_these_gpus(tmp_path: Path, arch: int, product: str) -> None:
    (found,) = compiled(tmp_path, arch, ["128 128 causal"])
    assert found["products"][product]
    assert found["spilled"] == 0
