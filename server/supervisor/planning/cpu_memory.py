"""Whether the weights of all engines on the CPU fit into memory. Reads the headers of the files and no weights."""

from collections.abc import Sequence

from engine import registry
from engine.machine import host
from engine.model.weights import weights_of
from server.settings.flag import SettingsError
from server.supervisor.planning.model_plan import ModelPlan

# For texts and the processes themselves: with a model of 91 MB all took 564 MB in float32 (docs/tuning.md).
MARGIN = 512 << 20  # bytes
_ITEMSIZES = {"bfloat16": 2, "float16": 2}
# In float32 OpenVINO lays some weights out twice, for few tokens and for many (measurements: decision 9). With auto a
# model is computed in float32 once, to be compared.
_LAID_OUT = 4 / 3
_GB = 1e9


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
    """Of the weights of all its engines there."""
    num_engines = 0 if model.engine == registry.FAKE else model.devices.names.count(registry.CPU)
    if not num_engines:
        return 0
    num_parameters = num_engines * sum(weights_of(model.folder.weights_folder).num_parameters.values())
    return int(_bytes_of_number(model) * num_parameters)


def _bytes_of_number(model: ModelPlan) -> float:
    """The compiled engines read float32 to convert it, whatever they compute in."""
    dtype = model.settings.dtype
    if model.engine == registry.TRANSFORMERS:
        return _ITEMSIZES.get(dtype, 4)
    is_laid_out = model.engine in (registry.OPENVINO, registry.AUTO) and model.settings.quantization != "int8"
    return 4 * _LAID_OUT if is_laid_out and dtype not in _ITEMSIZES else 4
