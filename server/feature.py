"""The seam for features: what a feature brings to the server, in one object.

The rest of the server imports none of them: it asks the list of server.features.table. What a feature names as
`module:name` is loaded when it is needed: without the feature, nothing of it is.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command of `embedline`.

    function    the `module:name` of what typer makes it of. It is loaded when the command or its help is asked for
    flags       names of flags of models and of the server that it takes beside its own options, as `**words`
    is_of_model whether it takes all flags of models too
    before      the command of the core that help lists after it; by default it is listed behind the core's
    """

    function: str
    flags: tuple[str, ...] = ()
    is_of_model: bool = False
    before: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Commands under one name: the `module:name` of the function of each, which is loaded as that of a Command is."""

    help: str
    functions: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One feature of a server. The module that makes it imports nothing that a server without the feature does not
    need.

    name       as people write it: in logs, on pages, and as the role of its process
    commands   its commands of `embedline`, by their names
    prepares   the `module:name` of a function that a start gives each model's folder: it gives the folder to serve
               instead, see server.supervisor.model_files:without_pickles
    fetches    the `module:name` of a function that says which more files `prepares` needs of a folder from the hub
    flags      its flags: a frozen dataclass of fields that server.settings.flag makes, each with a default. It raises
               SettingsError for the first of them that can't be
    switch     the one of them, by its field, that turns the feature on where it is given, and what stands for its value
    has_port   whether that value is a port, where each frontend listens for it beside --port
    process    the `module:name` of a function that gets the Settings and the FeatureSockets of its process, and gives
               the Plan
    metrics    gives the metrics that its process counts, each a Declared
    frontend   the `module:name` of a function that gets a FeatureStart and what a frontend's parts share, and gives the
               Part that the feature has in the frontend; called where the feature is on
    routes     its routes, method and path, with what each does in a line
    documents  the `module:name` of the same routes, each a Route, for the OpenAPI page
    """

    name: str
    commands: Mapping[str, Command | Group] = field(default_factory=lambda: MappingProxyType({}))
    prepares: str = ""
    fetches: str = ""
    flags: type[Any] | None = None
    switch: tuple[str, str] = ("", "")
    has_port: bool = False
    process: str = ""
    metrics: Callable[[], Sequence[Any]] | None = None
    frontend: str = ""
    routes: Mapping[tuple[str, str], str] = field(default_factory=lambda: MappingProxyType({}))
    documents: str = ""

    @property
    def flag(self) -> str:
        """The flag that turns it on, as a command line has it."""
        return f"--{self.switch[0].replace('_', '-')}"


def loaded(place: str) -> Any:
    """The object at `module:name`."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
