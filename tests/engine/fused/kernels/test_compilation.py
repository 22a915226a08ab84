"""Every kernel compiles for GPUs that are not here, with room for its numbers in registers."""

import re
from pathlib import Path

import pytest

from engine.machine.devices import GENERATIONS
from tests.engine.fused.kernels.compile_kernels import SHARED_MEMORY, WHOLLY_COMPILED, compiled_apart
from tests.engine.fused.kernels.op_cases import ONE_OF_EACH
from tests.structure.sources import ROOT

MODELS = ROOT / "docs/models.md"

MAX_SPILLED = 8  # bytes a thread: ptxas spends as much by itself to fit more warps


@pytest.mark.full
@pytest.mark.holds("Kernels match their plain reference")
@pytest.mark.parametrize("arch", list(SHARED_MEMORY))
def test_kernels_compile_and_spill_nothing(arch: int, tmp_path: Path) -> None:
    names = () if arch in WHOLLY_COMPILED else ONE_OF_EACH
    folder = "tests.engine.fused.kernels"
    found = compiled_apart(tmp_path, f"{folder}.compile_kernels", f"{folder}.op_cases", str(arch), *names)
    for_all = {"_add_norm", "_activate", "_rotate", "_embed", "_sum_chunks", "_mean_of_sums", "_gather"}
    of_any_width = {"_count", "_write", "_move"}
    for_all |= {"_take_maxima", *of_any_width}
    with_float8 = {"_activate_whole", "_activate_in_chunks"} if arch >= 89 else set()
    assert {one["kernel"] for one in found} == for_all | with_float8
    assert [one for one in found if one["spilled"] > MAX_SPILLED] == []
    # A kernel that had to be compiled again for a batch of another shape would stop the server for that long.
    for_batches = [one for one in found if one["case"] == "once for all batches" or one["kernel"] in of_any_width]
    assert sorted(one["kernel"] for one in for_batches) == sorted(for_all)


def test_the_table_of_gpus_says_what_is_compiled() -> None:
    """And has a line for each generation that the engine knows."""
    lines = re.findall(r"^\| ([\d., ]+) \|.*\| ([\w ]+) \| [\w ,]+ \|$", MODELS.read_text(), re.MULTILINE)
    documented = {int(one.replace(".", "")): built for numbers, built in lines for one in numbers.split(", ")}
    whole, parts = dict.fromkeys(WHOLLY_COMPILED, "yes"), dict.fromkeys(SHARED_MEMORY, "one size each")
    assert documented == {70: "no", 75: "no"} | parts | whole
    assert list(documented) == [10 * major + minor for major, minor in (one.capability for one in GENERATIONS)]
