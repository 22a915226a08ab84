"""A Router among the modules: queries and documents go different ways, as sentence-transformers 6 saves it.

Served are routes that are all of the same files, and queries of sparse models that are looked up in a table. Which
chain a route is, is engine.model.detection.chains'; the table is engine.model.detection.query_table's.
"""

import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from engine.model.json_files import Json, object_in, read_optional
from engine.model.modules import Module, as_module
from engine.types import ModelError

_ROUTERS = ("Router", "Asym")
_FILE = "router_config.json"
_TABLE = "SparseStaticEmbedding"


@dataclass(frozen=True, slots=True)
class Routed:
    """What every text goes through, or every document."""

    modules: tuple[Module, ...]  # with those of the route in the Router's place
    has_routes: bool = False
    query_table: PurePosixPath | None = None  # the folder of the SparseStaticEmbedding, which alone makes queries


def routed(folder: Path, modules: tuple[Module, ...]) -> Routed:
    """Raises ModelError for routes that one model can't serve."""
    places = [place for place, module in enumerate(modules) if module.kind in _ROUTERS]
    if not places:
        return Routed(modules)
    first = places[0]
    routes = _routes(folder, modules[first])
    if len(places) == 1 and len(set(routes.values())) == 1:
        (route,) = set(routes.values())
        return Routed((*modules[:first], *route, *modules[first + 1 :]), has_routes=True)
    is_alone = len(modules) == 1 and not _mappings(folder, modules[0])
    if is_alone and routes.keys() == {"query", "document"} and [each.kind for each in routes["query"]] == [_TABLE]:
        return Routed(routes["document"], has_routes=True, query_table=routes["query"][0].path)
    raise refusal(folder, modules)


def refusal(folder: Path, modules: tuple[Module, ...]) -> ModelError:
    """Queries and documents go through models of their own, each in a folder that can be served by itself."""
    router = next(module for module in modules if module.kind in _ROUTERS)
    types = object_in(_config(folder, router), "types")
    where = folder / router.path
    servable = [str(where / name) for name, kind in types.items() if str(kind).endswith("Transformer")]
    way_out = f"; serve the model of one route: --model-id {json.dumps(servable[0])}" if servable else ""
    pooling = " with --pooling" if servable else ""
    return ModelError(f"modules.json has a Router, whose routes are models of their own{way_out}{pooling}")


def _config(folder: Path, router: Module) -> Json:
    where = folder / router.path
    return read_optional(where / _FILE) or read_optional(where / "config.json")


def _mappings(folder: Path, router: Module) -> Json:
    """Which texts take which route, where that is more than the routes' names say."""
    return object_in(object_in(_config(folder, router), "parameters"), "route_mappings")


def _routes(folder: Path, router: Module) -> dict[str, tuple[Module, ...]]:
    """The modules of each route by its name; none where the file is not what it should be."""
    config = _config(folder, router)
    types, routes = object_in(config, "types"), {}
    for route, names in object_in(config, "structure").items():
        if not isinstance(names, list) or not names or not all(str(name) in types for name in names):
            return {}
        paths = {name: str(router.path / str(name)) for name in names}
        routes[route] = tuple(as_module({"type": types[name], "path": paths[name]}, _FILE) for name in names)
    return routes
