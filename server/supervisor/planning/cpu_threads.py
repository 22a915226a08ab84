"""How the engines on the CPU share the threads that they compute with. Starts none."""

from collections.abc import Sequence

from engine import registry
from engine.machine import cores
from server.settings.flag import SettingsError
from server.supervisor.planning.model_plan import ModelPlan


def cpu_threads(asked: int | None, models: Sequence[ModelPlan]) -> list[int]:
    """Of each engine on the CPU, in the order of the models; None = one for each core that may be used.

    Raises SettingsError if there are fewer than engines, and somebody asked for so few.
    """
    num_engines = sum(model.devices.names.count(registry.CPU) for model in models)
    if asked is not None and asked < num_engines:
        raise SettingsError(f"--cpu-threads {asked} is less than one for each of the {num_engines} engines on the CPU")
    num = asked or cores.usable()
    return [max(1, num // num_engines + (number < num % num_engines)) for number in range(num_engines)]
