"""Which parts of a server share a process, and why: its topology.

Spread, frontends, tokenizers and batch managers are processes of their own. Compact, one frontend tokenizes and forms
batches too. Engines are processes of their own in both.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine import registry
from engine.machine import cores
from server.settings.flag import SettingsError
from server.settings.settings import AUTO, COMPACT, Settings
from server.supervisor.model_plan import ModelPlan

_MOST_CORES_OF_COMPACT = 4  # with more, frontends and tokenizers compute at the same time as engines
_CORES_PER_FRONTEND = 4
_CORES_PER_TOKENIZER = 2
_ENGINES_PER_MANAGER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """How many processes there are of each kind besides engines."""

    is_compact: bool
    reason: str
    num_frontends: int
    num_tokenizers: int  # 0 = each frontend has one inside
    num_managers: int  # 0 = the only frontend has it inside

    @property
    def name(self) -> str:
        """The word for --topology."""
        return "compact" if self.is_compact else "spread"


def place(settings: Settings, models: Sequence[ModelPlan]) -> Placement:
    """Raises SettingsError where compact is asked for and something else asks for more processes."""
    needed, usable = next(_needs_spread(settings, models), None), cores.usable()
    if settings.topology == COMPACT and needed:
        raise SettingsError(f"--topology compact has one frontend, which tokenizes and forms batches; {needed}")
    why_spread = needed or next(_gains_by_spread(models, usable), None)
    reason = f"--topology {settings.topology}"
    if settings.topology == AUTO:
        reason += f": {why_spread or f'one model on a CPU, and {usable} core(s) for everything'}"
    if settings.topology == COMPACT or (settings.topology == AUTO and why_spread is None):
        return Placement(is_compact=True, reason=reason, num_frontends=1, num_tokenizers=0, num_managers=0)
    num_engines, num_tokenizers = sum(len(model.devices.names) for model in models), settings.tokenization_workers
    return Placement(
        is_compact=False,
        reason=reason,
        num_frontends=settings.frontends or max(1, usable // _CORES_PER_FRONTEND),
        num_tokenizers=max(1, usable // _CORES_PER_TOKENIZER) if num_tokenizers is None else num_tokenizers,
        num_managers=settings.batch_managers or max(1, num_engines // _ENGINES_PER_MANAGER),
    )


def _needs_spread(settings: Settings, models: Sequence[ModelPlan]) -> Iterator[str]:
    """What compact can't give."""
    if (settings.frontends or 1) > 1:
        yield f"--frontends {settings.frontends} asks for more"
    if settings.tokenization_workers:
        yield f"--tokenization-workers {settings.tokenization_workers} asks for processes that tokenize"
    if (settings.batch_managers or 1) > 1:
        yield f"--batch-managers {settings.batch_managers} asks for processes that form batches"
    if len(models) > 1:
        yield f"there are {len(models)} models"
    for model in models:
        if model.has_chat_template:
            yield f"{model.name} has a chat template, a program that runs in a process without connections to clients"


def _gains_by_spread(models: Sequence[ModelPlan], usable: int) -> Iterator[str]:
    """What is served better by more processes."""
    for model in models:
        if model.folder.is_static:
            yield f"{model.name} is static, so its texts cost little but the work of these processes"
        elif model.devices.kind == registry.CUDA:
            yield f"{model.name} runs on a GPU"
    if usable > _MOST_CORES_OF_COMPACT:
        yield f"there are {usable} cores"
