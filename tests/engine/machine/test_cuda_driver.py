"""What the CUDA driver is asked, against a small library that stands in for it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engine.machine.cuda_driver import Cuda, Gpu, find
from tests.structure.sources import ROOT

# Two GPUs, the second with a name that is no UTF-8. What differs from test to test comes from the compiler's command
# line. There is no call that makes a context, so none can have been made.
DRIVER = r"""
#include <stddef.h>
#include <string.h>
static int initialised = 0;
int cuInit(unsigned int flags) { initialised = flags == 0; return STATUS; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) { *count = COUNT; return initialised ? 0 : 3; }
int cuDeviceGet(int *device, int ordinal) { *device = 40 + ordinal; return ordinal < COUNT ? 0 : 101; }
int cuDeviceGetName(char *name, int length, int device) {
    strncpy(name, device == 40 ? "NVIDIA H200" : "Tesla \xff T4", length);
    return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    if (attribute != 75 && attribute != 76) return 1;
    *value = device == 40 ? (attribute == 75 ? 9 : 0) : (attribute == 75 ? 7 : 5);
    return ATTRIBUTE_STATUS;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    *bytes = device == 40 ? (size_t)150754820096ULL : (size_t)15843721216ULL;
    return 0;
}
"""
NO_DEVICE = 100


def driver(folder: Path, *, status: int = 0, count: int = 2, attribute_status: int = 0) -> str:
    """The path of a library that behaves so."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to make a stand-in of the driver with")
    source, library = folder / "driver.c", folder / "libcuda-stand-in.so"
    source.write_text(DRIVER)
    defined = (f"-DSTATUS={status}", f"-DCOUNT={count}", f"-DATTRIBUTE_STATUS={attribute_status}")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, *defined], check=True)
    return str(library)


def test_what_there_is(tmp_path: Path) -> None:
    assert find(driver(tmp_path)) == Cuda(
        gpus=(
            Gpu(0, "NVIDIA H200", (9, 0), 150_754_820_096),
            Gpu(1, "Tesla \ufffd T4", (7, 5), 15_843_721_216),
        ),
        why_none="",
        version=(13, 0),
    )


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ({"status": NO_DEVICE}, "sees no GPU; CUDA_VISIBLE_DEVICES may hide"),
        ({"count": 0}, "sees no GPU; CUDA_VISIBLE_DEVICES may hide"),
        ({"status": 803}, "cuInit gives error 803"),
        ({"attribute_status": 999}, "cuDeviceGetAttribute gives error 999"),
    ],
)
def test_why_there_is_none(behaviour: dict[str, int], words: str, tmp_path: Path) -> None:
    found = find(driver(tmp_path, **behaviour))
    assert found.gpus == ()
    assert words in found.why_none


def test_no_driver_at_all(tmp_path: Path) -> None:
    missing = str(tmp_path / "libcuda.so.1")
    assert find(missing) == Cuda(why_none=f"there is no CUDA driver here ({missing} can't be loaded)")


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_text("stubs are sometimes empty")
    assert "can't be loaded" in find(str(tmp_path / "libcuda.so.1")).why_none


def test_a_library_of_something_else() -> None:
    assert find("libc.so.6").why_none == "libc.so.6 is not a CUDA driver"


def test_the_driver_is_found_by_its_name_in_the_library_path(tmp_path: Path) -> None:
    """And asked without torch, in a process that has nothing but the standard library."""
    library = Path(driver(tmp_path))
    library.rename(tmp_path / "libcuda.so.1")
    setup = f"import sys; sys.path.append({str(ROOT)!r})"
    code = f"{setup}; from engine.machine.cuda_driver import find; print(find().gpus[0])"
    environment = {"LD_LIBRARY_PATH": str(tmp_path)}
    answer = subprocess.run([sys.executable, "-I", "-S", "-c", code], env=environment, capture_output=True, text=True)
    assert answer.stdout == "cuda:0 (NVIDIA H200, compute capability 9.0)\n", answer.stderr
