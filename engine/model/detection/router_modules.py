"""Reads a Router module of sentence-transformers 6, which sends queries and documents through different modules.

Two kinds are served: routes that all use the same files, and sparse models whose queries are looked up in a table.
engine.model.detection.chains finds out the chain of a route; engine.model.detection.sparse reads the table.
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
    """The modules for every text, or for documents if queries have a table."""

    modules: tuple[Module, ...]  # with the route's modules in place of the Router
    has_routes: bool = False
    query_table: PurePosixPath | None = None  # folder of the SparseStaticEmbedding for queries


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
    """The error for routes with separate models. It names the folder of one that can be served by itself."""
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
    """The Router's own rules for which text takes which route, if it has any."""
    return object_in(object_in(_config(folder, router), "parameters"), "route_mappings")


def _routes(folder: Path, router: Module) -> dict[str, tuple[Module, ...]]:
    """The modules of each route by its name; empty if the file is wrong."""
    config = _config(folder, router)
    types, routes = object_in(config, "types"), {}
    for route, names in object_in(config, "structure").items():
        if not isinstance(names, list) or not names or not all(str(name) in types for name in names):
            return {}
        paths = {name: str(router.path / str(name)) for name in names}
        routes[route] = tuple(as_module({"type": types[name], "path": paths[name]}, _FILE) for name in names)
    return routes
