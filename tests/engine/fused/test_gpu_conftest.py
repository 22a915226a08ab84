"""What the tests that need a GPU do with pytest, which a GPU is not needed for: tests/engine/fused/gpu/conftest.py."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.structure.sources import ROOT

CONFTEST = "tests.engine.fused.gpu.conftest"
# In the order that pytest takes by itself, the second test fails only after the first one's sleep.
TESTS = """
import time
import pytest

@pytest.fixture(autouse=True)
def gpu(): pass

def test_tiles(): time.sleep(30)

def test_that_is_new(): assert 6 * 7 == 41
"""


@pytest.mark.full
@pytest.mark.parametrize("num_workers", ["1", "0"])
def test_what_no_gpu_has_passed_comes_first_and_its_failure_is_written_at_once(
    num_workers: str, tmp_path: Path
) -> None:
    file = tmp_path / "gpu" / "test_attention.py"
    file.parent.mkdir()
    file.write_text(TESTS)
    fixed = ("-c", "/dev/null", "--rootdir", str(tmp_path), "-p", "no:cacheprovider", "-p", CONFTEST, "-v")
    command = (sys.executable, "-m", "pytest", *fixed, "-n", num_workers, str(file))
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        assert run.stdout is not None
        before = []
        try:
            for line in run.stdout:
                if "assert (6 * 7) == 41" in line:
                    break
                before.append(line)
        finally:
            run.kill()
    text = "".join(before)
    assert "test_that_is_new failed (call):" in text
    assert "= FAILURES =" not in text
