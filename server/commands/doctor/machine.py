"""What `embedline doctor` finds out about this machine and its Pythons, without looking at a model."""

import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from engine.machine import cores, cuda_driver, devices, host
from engine.machine.cuda_driver import Cuda, Gpu
from server.commands.doctor import probe as doctor_probe
from server.commands.doctor.probe import Environment
from server.commands.findings import MIB, Finding
from server.settings.flag import SettingsError
from server.settings.settings import Settings
from server.supervisor.planning.compiled_cache import cache_folder
from server.supervisor.planning.engine_python import check_engine_python

# What engines and the server are made of; the first names of modules.
MODULES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "openvino",
    "triton",
    "tensorrt_llm",
    "huggingface_hub",
)
_SHM = Path("/dev/shm")
_SMALL_SHM = 1 << 30  # Docker gives 64 MiB
_PROBE_SECONDS = 20.0  # a Python on a network's disk takes its time; nothing that takes time is imported
_CPU_FEATURES = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "bf16")


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine: what the verdicts need, and what is shown."""

    cuda: Cuda  # as the driver tells
    own: Environment  # the server's
    engines: Environment  # of engine processes: the same without --engine-python
    findings: tuple[Finding, ...]


def examine(settings: Settings) -> Machine:
    """Raises SettingsError where --engine-python can't be asked."""
    cuda = cuda_driver.find()
    own = doctor_probe.probe(MODULES)
    engines = own if settings.engine_python == sys.executable else _asked(settings.engine_python)
    found = cores.find()
    findings = [
        Finding("platform", f"{platform.platform()}, {platform.machine()}"),
        Finding("cpu", _cpu()),
        Finding("cores", found.usable, f"what processes and threads are sized for; {found}"),
        Finding("memory_bytes", host.memory(), "what this process may use"),
        *_shm(cuda),
        _cache(settings),
        Finding("cuda_driver", _driver(cuda)),
        Finding("gpus", [_gpu(gpu) for gpu in cuda.gpus]),
        *_of_python("python", own),
        *(_of_python("engine_python", engines) if engines is not own else ()),
    ]
    return Machine(cuda, own, engines, tuple(findings))


def _asked(python: str) -> Environment:
    """What another Python says of itself. Raises SettingsError where engines can't run under it."""
    check_engine_python(python)
    try:
        ended = subprocess.run(
            [python, "-P", str(Path(doctor_probe.__file__)), *MODULES],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_PROBE_SECONDS,
            check=True,
        )
        return Environment(**json.loads(ended.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError):
        raise SettingsError("--engine-python does not say which packages it has") from None


def _cpu() -> str:
    cpu = host.cpu()
    features = set(cpu.get("flags", cpu.get("Features", "")).split())
    known = [name for name in _CPU_FEATURES if name in features]
    return f"{cpu.get('model name', 'unknown')} ({', '.join(known) or 'no features that matter here'})"


def _shm(cuda: Cuda) -> list[Finding]:
    """Shared memory of the file system; only libraries of GPUs use much of it."""
    if not _SHM.is_dir():
        return [Finding("shm_bytes", None, f"there is no {_SHM}")]
    stat = os.statvfs(_SHM)
    size, free = stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize
    is_small = bool(cuda.gpus) and size < _SMALL_SHM
    hint = "; TensorRT-LLM wants more: docker run --shm-size 2g" if is_small else ""
    return [Finding("shm_bytes", size, f"{_SHM}, {free // MIB:,} MiB free{hint}")]


def _cache(settings: Settings) -> Finding:
    try:
        folder = cache_folder(settings.compiled_cache, os.environ)
    except SettingsError as error:
        return Finding("compiled_cache", None, str(error))
    if folder is not None:
        return Finding("compiled_cache", folder, "can be written to")
    why = "--compiled-cache off" if settings.compiled_cache else "can't be written to; --compiled-cache names another"
    return Finding("compiled_cache", None, why)


def _driver(cuda: Cuda) -> str:
    return f"for CUDA {cuda.version[0]}.{cuda.version[1]}" if cuda.gpus else f"none: {cuda.why_none}"


def _gpu(gpu: Gpu) -> str:
    """One line: what it is, and what it computes in."""
    computes = [
        *(["bfloat16"] if devices.has_bfloat16(gpu.capability) else []),
        *(["FP8"] if devices.has_fp8(gpu.capability) else []),
    ]
    return f"{gpu}, {gpu.num_bytes // MIB:,} MiB: {' and '.join(computes) or 'neither bfloat16 nor FP8'}"


def _of_python(name: str, environment: Environment) -> list[Finding]:
    there = [f"{module} {version or '(no version)'}" for module, version in environment.versions.items()]
    lacks = ", ".join(environment.lacks(MODULES))
    return [
        Finding(name, environment.version, environment.python),
        Finding(f"{name}_packages", there, f"not there: {lacks}" if lacks else ""),
    ]
