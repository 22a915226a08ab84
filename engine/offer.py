"""An engine before it is loaded: what it needs, what it can serve, and its own options.

The planner and `embedline doctor` ask it. An engine with options or reasons of its own has a module with OFFER, which
imports neither torch nor the engine's library, and little else before it is asked.
"""

import dataclasses
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, Self

from engine import registry
from engine.machine.cuda_driver import Cuda
from engine.registry import AUTO, CPU, STATIC, EngineRow
from engine.types import ModelError

if TYPE_CHECKING:
    from engine.machine.devices import Devices
    from engine.model.model_folder import ModelFolder


class Note(str):
    """A remark on an engine that does not speak against it."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options that only one engine reads; each has a default. An engine without any takes this class."""

    @classmethod
    def of(cls, flags: object, folder: "ModelFolder | None" = None) -> Self:
        """Fields are named after flags of the model, or after what its folder says. Others keep their defaults."""
        sources = {one.name: flags if hasattr(flags, one.name) else folder for one in dataclasses.fields(cls)}
        return cls(**{name: getattr(one, name) for name, one in sources.items() if hasattr(one, name)})


class Flags(Protocol):
    """The flags of a model, of which an engine's own Options take more."""

    @property
    def devices(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def quantization(self) -> str: ...
    @property
    def lora(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingTarget:
    """The model that engines are asked to serve, and the place."""

    flags: Flags
    folder: "ModelFolder | None"  # None = the model is not on this machine, or can't be read
    cuda: Cuda  # the GPUs that engines can use
    python: str = ""  # the program that would run the engine
    installed: Mapping[str, str] = field(default_factory=dict)  # its packages and their versions

    def lacks(self, packages: tuple[str, ...], extra: str) -> str:
        """The packages that are not installed, and how to install them; "" if they all are."""
        missing = [package for package in packages if package not in self.installed]
        return f"{' and '.join(missing)} not installed: pip install 'embedline[{extra}]'" if missing else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One engine. This class checks what holds for all that compute what transformers has a class for."""

    options: type[Options] = Options
    is_asked_first: bool = False  # whether a start asks `check` before it starts any process

    def known_classes(self, flags: object) -> frozenset[str]:
        """Classes in config.json that the engine has, and transformers has not."""
        return frozenset()

    def missing(self, row: EngineRow, target: ServingTarget) -> Iterator[str]:
        """Why its Python can't run the engine, and notes."""
        if lacks := target.lacks(row.packages, row.extra):
            yield lacks

    def check(self, row: EngineRow, target: ServingTarget, folder: "ModelFolder") -> Iterator[str]:
        """Why the engine can't serve the model, as far as its files show, and notes. Raises ModelError likewise."""
        from engine.model import quantization
        from engine.model.known_code.qwen2 import REWARD

        if folder.architectures[:1] == (REWARD,):
            yield f"the model brings code for {REWARD}, which is never run"
            return
        yield from self.covers(folder)
        quantization.check(folder.weights_folder, reads_fp8=row.reads_fp8)

    def covers(self, folder: "ModelFolder") -> Iterator[str]:
        """Why the engine can't serve the model, by the table in docs/models.md."""
        from engine.model.coverage import rows_of, use_of

        if not any(use_of(folder) in row.uses for row in rows_of(folder)):
            what = f"{folder.architecture!r} for {use_of(folder)}"
            yield Note(f"{what} is not in the table of docs/models.md: it may serve it")


def offer_of(engine: str) -> Offer:
    """The offer of the engine of this name."""
    module = registry.ENGINES[engine].offer
    return importlib.import_module(module).OFFER if module else Offer()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether one engine can serve the model here."""

    engine: str
    devices: tuple[str, ...]  # where it would run; () = nowhere
    why_not: tuple[str, ...]  # every reason, a line each; () = nothing speaks against it
    notes: tuple[str, ...] = ()

    @property
    def can_serve(self) -> bool:
        """Whether it can, as far as it shows before the model is loaded."""
        return not self.why_not


def verdict_of(row: EngineRow, target: ServingTarget) -> Verdict:
    """The engine's verdict on the model."""
    offer = offer_of(row.name)
    chosen, why_not = _devices(row, target)
    seen = dataclasses.replace(target, cuda=Cuda(chosen.gpus)) if chosen else target
    if target.flags.lora and (refused := registry.why_no_loras(row.name)):
        why_not.append(refused)
    said = [*why_not, *_up_to_error(offer.missing(row, seen)), *_up_to_error(_of_model(offer, row, seen))]
    return Verdict(
        engine=row.name,
        devices=chosen.names if chosen else (),
        why_not=tuple(one for one in said if not isinstance(one, Note)),
        notes=tuple(one for one in said if isinstance(one, Note)),
    )


def _devices(row: EngineRow, target: ServingTarget) -> "tuple[Devices | None, list[str]]":
    """The devices that it would run on, or why it can't."""
    from engine.machine.devices import Work, choose

    flags = target.flags
    work = Work(row.name, flags.dtype, flags.quantization)
    if work.is_for_a_gpu and flags.devices == AUTO and not target.cuda.gpus:
        return None, [f"it needs a GPU: {target.cuda.why_none}"]
    try:
        chosen = choose(CPU if row.name == STATIC and flags.devices == AUTO else flags.devices, work, target.cuda)
        registry.choose(row.name, quantization=flags.quantization, kind=chosen.kind)
    except ModelError as error:
        return None, [str(error)]
    return chosen, []


def _of_model(offer: Offer, row: EngineRow, target: ServingTarget) -> Iterator[str]:
    folder, is_for_tables = target.folder, row.name == STATIC
    if folder is None:
        return
    if folder.is_static and not is_for_tables:
        yield "the model is a table of static embeddings, which the static engine looks up"
    elif is_for_tables and not folder.is_static:
        yield "it serves tables of static embeddings alone"
    elif not is_for_tables:
        yield from offer.check(row, target, folder)


def _up_to_error(found: Iterator[str]) -> Iterator[str]:
    """All of them; an error is the last, and loses none before it."""
    try:
        yield from found
    except ModelError as error:
        yield str(error)
