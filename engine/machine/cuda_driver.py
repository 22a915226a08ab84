"""Asks the CUDA driver which GPUs there are. Needs no package and makes no context on a GPU.

The driver numbers GPUs like every library here, without those that CUDA_VISIBLE_DEVICES hides.
(https://docs.nvidia.com/cuda/cuda-driver-api: initialization, version management, device management)
"""

import ctypes
from dataclasses import dataclass

LIBRARY = "libcuda.so.1"

_SUCCESS = 0
_NO_DEVICE = 100
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  # of CUdevice_attribute
_NAME_BYTES = 256
_NO_GPU = "the CUDA driver sees no GPU; CUDA_VISIBLE_DEVICES may hide those that there are"
_CALLS = (
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDeviceTotalMem_v2",
)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that the driver sees."""

    index: int
    name: str  # the maker's
    capability: tuple[int, int]  # compute capability: 9, 0 is Hopper
    num_bytes: int  # of its memory, free or not

    @property
    def device(self) -> str:
        """The device's name for engines: "cuda:0", …"""
        return f"cuda:{self.index}"

    def __str__(self) -> str:
        major, minor = self.capability
        return f"{self.device} ({self.name}, compute capability {major}.{minor})"


@dataclass(frozen=True, slots=True)
class Cuda:
    """The driver's GPUs and version."""

    gpus: tuple[Gpu, ...] = ()
    why_none: str = ""  # why there is no GPU; "" if there is one
    version: tuple[int, int] = (0, 0)  # newest CUDA version that the driver supports: 13, 0


class _DriverError(Exception):
    """A call of the driver failed. The message says which."""


def find(library: str = LIBRARY) -> Cuda:
    """Ask the driver. If it fails, `why_none` says why."""
    try:
        driver = _Driver(library)
        return Cuda(tuple(driver.gpu(index) for index in range(driver.num_gpus())), "", driver.version())
    except _DriverError as error:
        return Cuda(why_none=str(error))


class _Driver:
    """The driver's library. All methods raise _DriverError."""

    def __init__(self, library: str) -> None:
        try:
            self._library = ctypes.CDLL(library)
            for name in _CALLS:
                getattr(self._library, name).restype = ctypes.c_int
        except OSError:
            raise _DriverError(f"there is no CUDA driver here ({library} can't be loaded)") from None
        except AttributeError:
            raise _DriverError(f"{library} is not a CUDA driver") from None
        self._call("cuInit", ctypes.c_uint(0))

    def version(self) -> tuple[int, int]:
        version = self._int("cuDriverGetVersion")
        return version // 1000, version % 1000 // 10

    def num_gpus(self) -> int:
        count = self._int("cuDeviceGetCount")
        if not count:
            raise _DriverError(_NO_GPU)
        return count

    def gpu(self, index: int) -> Gpu:
        device = ctypes.c_int(self._int("cuDeviceGet", ctypes.c_int(index)))
        name = ctypes.create_string_buffer(_NAME_BYTES)
        self._call("cuDeviceGetName", name, ctypes.c_int(_NAME_BYTES), device)
        num_bytes = ctypes.c_size_t()
        self._call("cuDeviceTotalMem_v2", ctypes.byref(num_bytes), device)
        capability = tuple(
            self._int("cuDeviceGetAttribute", ctypes.c_int(attribute), device)
            for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR)
        )
        return Gpu(index, name.value.decode(errors="replace"), (capability[0], capability[1]), num_bytes.value)

    def _int(self, name: str, *arguments: ctypes.c_int) -> int:
        """The int that a call writes through its first argument."""
        value = ctypes.c_int()
        self._call(name, ctypes.byref(value), *arguments)
        return value.value

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status == _NO_DEVICE:
            raise _DriverError(_NO_GPU)
        if status != _SUCCESS:
            raise _DriverError(f"the CUDA driver does not work here ({name} gives error {status})")
