"""How the engines of one server share the memory of GPUs that they are on together. Asks no driver."""

from collections.abc import Sequence

from engine import registry
from engine.machine import devices
from server.settings.flag import SettingsError
from server.supervisor.planning.model_plan import ModelPlan

_WHOLE = 1.0
_ROUNDING = 1e-9

# [of each model][device] -> part of the device's memory, above 0 and at most 1
MemoryShares = Sequence[dict[str, float]]


def memory_shares(models: Sequence[ModelPlan]) -> MemoryShares:
    """For each model what each of its engines may take; only GPUs are shared out, and an engine on the CPU has none.

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
    """Of one GPU, among the engines of these models."""
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
