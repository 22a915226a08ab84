"""Whether this machine has what a server's processes take, and how they share it. Starts none and asks no driver.

The weights of engines on the CPU must fit into memory; engines share the threads of the CPU and the memory of GPUs; and
enough descriptors must be left to restart a process that died.
"""

import resource
from collections.abc import Sequence

from engine import registry
from engine.machine import cores, devices, host
from engine.model.weights import weights_of
from server.settings.flag import SettingsError
from server.supervisor.model_plan import ModelPlan

# For texts and the processes themselves: with a model of 91 MB all took 564 MB in float32 (docs/tuning.md).
MARGIN = 512 << 20  # bytes
_ITEMSIZES = {"bfloat16": 2, "float16": 2}
# In float32 OpenVINO lays some weights out twice, for few tokens and for many (measurements: decision 9). With auto a
# model is computed in float32 once, to be compared.
_LAID_OUT = 4 / 3
_GB = 1e9
_WHOLE = 1.0
_ROUNDING = 1e-9
# [of each model][device] -> part of the device's memory, above 0 and at most 1
MemoryShares = Sequence[dict[str, float]]
MONITOR_CONNECTIONS = 32  # at most, of the supervisor's own port
# Every process also has, besides what is counted here, its loop, its log, its libraries, a page of /proc that it reads.
_OWN_FILES = 48
_FILES_OF_PROCESS = 3  # in the supervisor: the socket that it serves, its control channel, its pidfd
_FILES_TO_START = 8  # to start a process
_LEAST_CONNECTIONS = 64  # of a frontend: fewer would not be a server


def check_memory(models: Sequence[ModelPlan]) -> None:
    """Raises SettingsError where the weights and the margin exceed the machine's memory, or the limit of a control
    group that this process is in. Otherwise the kernel would end a process that loads them."""
    needed = {model.name: _bytes_on_cpu(model) for model in models}
    total, memory = sum(needed.values()), host.memory()
    if total and total + MARGIN > memory:
        largest = max(needed, key=lambda name: needed[name])
        raise SettingsError(
            f"--model-id: the weights of {largest} take {needed[largest] / _GB:.1f} GB on the CPU, those of all models "
            f"{total / _GB:.1f} GB, the processes {MARGIN / _GB:.1f} GB more, and this server may use "
            f"{memory / _GB:.1f} GB of memory: give it more, or serve a smaller model"
        )


def _bytes_on_cpu(model: ModelPlan) -> int:
    num_engines = 0 if model.engine == registry.FAKE else model.devices.names.count(registry.CPU)
    if not num_engines:
        return 0
    num_parameters = num_engines * sum(weights_of(model.folder.weights_folder).num_parameters.values())
    return int(_bytes_of_number(model) * num_parameters) + num_engines * sum(lora.num_bytes for lora in model.loras)


def _bytes_of_number(model: ModelPlan) -> float:
    """The compiled engines read float32 to convert it, whatever they compute in."""
    dtype = model.settings.dtype
    if model.engine == registry.TRANSFORMERS:
        return _ITEMSIZES.get(dtype, 4)
    is_laid_out = model.engine in (registry.OPENVINO, registry.AUTO) and model.settings.quantization != "int8"
    return 4 * _LAID_OUT if is_laid_out and dtype not in _ITEMSIZES else 4


def cpu_threads(asked: int | None, models: Sequence[ModelPlan]) -> list[int]:
    """The threads of each engine on the CPU, in the order of the models; None = one for each core that may be used.

    Raises SettingsError if there are fewer than engines, and somebody asked for so few.
    """
    num_engines = sum(model.devices.names.count(registry.CPU) for model in models)
    if asked is not None and asked < num_engines:
        raise SettingsError(f"--cpu-threads {asked} is less than one for each of the {num_engines} engines on the CPU")
    num = asked or cores.usable()
    return [max(1, num // num_engines + (number < num % num_engines)) for number in range(num_engines)]


def memory_shares(models: Sequence[ModelPlan]) -> MemoryShares:
    """The memory that each engine of each model may take; only GPUs are shared out, and an engine on the CPU has none.

    Raises SettingsError where the shares of a GPU are together more than all of it.
    """
    shares: list[dict[str, float]] = [{} for _ in models]
    for device in dict.fromkeys(name for model in models for name in model.devices.names):
        if devices.kind_of(device) == registry.CUDA:
            engines = [index for index, model in enumerate(models) for name in model.devices.names if name == device]
            _share_out(device, engines, models, shares)
    return shares


def _share_out(
    device: str, engines: Sequence[int], models: Sequence[ModelPlan], shares: Sequence[dict[str, float]]
) -> None:
    asked = [models[index].settings.gpu_memory_share for index in engines]
    left = _WHOLE - sum(share for share in asked if share is not None)
    num_auto = asked.count(None)
    if left < -_ROUNDING:
        raise SettingsError(f"--gpu-memory-share adds up to more than 1 for the {len(engines)} engines on {device}")
    if num_auto and left < _ROUNDING:
        raise SettingsError(
            f"--gpu-memory-share leaves nothing of {device} for the {num_auto} engine(s) without a share of their own"
        )
    for index, share in zip(engines, asked, strict=True):
        shares[index][device] = left / num_auto if share is None else share


def check_open_files(*, num_processes: int) -> None:
    """Raises SettingsError where so many processes can't be supervised, or one of them not be restarted."""
    of_supervisor = _OWN_FILES + 2 * MONITOR_CONNECTIONS + _FILES_TO_START + _FILES_OF_PROCESS * num_processes
    of_frontend = _OWN_FILES + 2 * _LEAST_CONNECTIONS + num_processes
    needed = max(of_supervisor, of_frontend)
    if _open_files_limit() < needed:
        raise SettingsError(
            f"a process may open {_open_files_limit()} files, and this server needs {needed}: raise the limit "
            f"(ulimit -n {needed}, LimitNOFILE={needed} of systemd, docker run --ulimit nofile={needed}), "
            "or start fewer processes"
        )


def max_connections(*, num_peers: int) -> int:
    """The most connections of a frontend that also keeps a connection to each of so many other processes.

    A fifth is left for connections that are accepted before older ones are closed in their favour.
    """
    return max(_LEAST_CONNECTIONS, 4 * (_open_files_limit() - _OWN_FILES - num_peers) // 5)


def _open_files_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
