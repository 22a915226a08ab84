"""Which route a request means: by its path as it is, or by other servers' spellings of it: what stands before a route
in their URLs, `/v1` or none, a final slash.

A path that is a route's own is looked up and nothing else. So other spellings cost such requests nothing.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, NamedTuple

from server.dialects.answers import Answer
from server.dialects.route import Call, Route
from server.dialects.table import plain_error_shape
from server.requests.errors import NoSuchRoute, WrongMethod
from server.requests.work import failed

# Baseten's: https://docs.baseten.co/inference/calling-your-model
_STAGE = r"(?:/environments/[^/]+|/deployment/[^/]+|/development|/production)"
_PREFIX = re.compile(rf"{_STAGE}?/sync(?=/|$)|{_STAGE}(?=/async_(?:predict|queue_status)/?$)")
# Azure's. The model's name may have slashes.
_AZURE_MODEL = re.compile(r"/openai/deployments/(.+)(/[^/]+)")
_AZURE = "/openai/"
# Vertex AI's, where the upload of the model names no routes of its own:
# https://cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements
_VERTEX = re.compile(r"/v1/endpoints/[^/]+/deployedModels/[^/:]+(:predict)?")
_VERSION = "/v1"
_NAME = re.compile(r"{(\w+)(:path)?}")  # of a part of a path
_MAX_COMPARED = 100  # characters of an unknown path; comparing takes time that grows with their square


class Place(NamedTuple):
    """The place that a path leads to."""

    path: str  # a route's own; of a path that no route has, what is left without a prefix
    prefix: str = ""  # what stood before it
    model: str | None = None  # which the path names


class Paths:
    """Finds the route that a path means.

    known       the paths of all routes
    url_prefix  of a proxy that passes on the whole path: "", or with a slash at its beginning and none at its end
    """

    def __init__(self, known: Collection[str], *, url_prefix: str = "") -> None:
        self._known = frozenset(known)
        self._url_prefix = url_prefix

    def find(self, path: str) -> Place:
        """The route's own path. Reads the path once, however long it is."""
        if path in self._known:
            return Place(path)
        rest = path
        if self._url_prefix and (path + "/").startswith(self._url_prefix + "/"):
            rest = rest[len(self._url_prefix) :]
        if match := _PREFIX.match(rest):
            rest = rest[match.end() :]
        prefix, rest = path[: len(path) - len(rest)], rest.removesuffix("/")
        if prefix and not rest:
            return Place("/", prefix)
        if match := _AZURE_MODEL.fullmatch(rest):
            return Place(self._in_any_version(match[2]), prefix, match[1])
        if match := _VERTEX.fullmatch(rest):
            return Place("/vertex" if match[1] else "/health", prefix)
        if rest.startswith(_AZURE):
            rest = rest[len(_AZURE) - 1 :]
        return Place(self._in_any_version(rest), prefix)

    def _in_any_version(self, path: str) -> str:
        """Routes that this server has with `/v1` alone, or without it alone, have both names."""
        if path in self._known:
            return path
        if not path.startswith(_VERSION + "/"):
            other = _VERSION + path
        elif (other := path.removeprefix(_VERSION)).startswith(_VERSION + "/"):
            return path
        return other if other in self._known else path


class Found(NamedTuple):
    """The route of a request."""

    route: Route
    place: Place | None = None  # None = the path is the route's own
    values: Mapping[str, Any] = MappingProxyType({})  # the parts of the path that have names


class RouteTable:
    """All routes of a server. Of those with names in their paths, the first that fits is taken.

    known  what is found for the methods and paths that are routes' own
    """

    def __init__(self, routes: Iterable[Route], *, url_prefix: str = "") -> None:
        all_routes = list(routes)
        self.known = {(route.method, route.path): Found(route) for route in all_routes if "{" not in route.path}
        self._methods: dict[str, list[Found]] = {}  # by path
        for (_, path), found in self.known.items():
            self._methods.setdefault(path, []).append(found)
        self._patterns = [(_pattern(route.path), route) for route in all_routes if "{" in route.path]
        self._names = sorted({route.path for route in all_routes})
        self._paths = Paths(self._methods, url_prefix=url_prefix)

    def find(self, method: str, path: str) -> Found:
        """The route of a request that is not `known`; where there is none, one that answers so. HEAD goes to the route
        of GET."""
        place = self._paths.find(path)
        there = self._at(place.path)
        for found in there:
            if found.route.method == method or (found.route.method == "GET" and method == "HEAD"):
                return Found(found.route, place, found.values)
        return Found(_wrong_method(place.path, there) if there else self._unknown(place.path), place)

    def _at(self, path: str) -> list[Found]:
        """The routes of all methods of a path."""
        if path in self._methods:
            return self._methods[path]
        matches = ((route, pattern.fullmatch(path)) for pattern, route in self._patterns)
        return [Found(route, values=match.groupdict()) for route, match in matches if match]

    def _unknown(self, path: str) -> Route:
        async def answer(call: Call) -> Answer:
            raise NoSuchRoute("no such route" + self._nearest(path))

        return Route(path="other", answer=answer, error_shape=plain_error_shape(path), summary="No such route")

    def _nearest(self, path: str) -> str:
        """The end of a message, with the route that looks most like the path; "" if none does."""
        if len(path) > _MAX_COMPARED:
            return ""
        close = get_close_matches(path.rstrip("/").lower(), self._names, n=1)
        return f"; the nearest one is {close[0]}" if close else ""


def _pattern(path: str) -> re.Pattern[str]:
    """Matches the paths of a route with names in its own, which has no other signs of regular expressions."""
    return re.compile(_NAME.sub(lambda name: f"(?P<{name[1]}>{'.*' if name[2] else '[^/]+'})", path))


def _wrong_method(path: str, there: list[Found]) -> Route:
    """Answers for a path whose routes have other methods."""
    methods = [found.route.method for found in there]
    shape = plain_error_shape(path)

    async def answer(call: Call) -> Answer:
        refused = shape(failed(WrongMethod(f"this route takes {' or '.join(methods)}"), call.trace))
        refused.headers.append((b"allow", ", ".join(sorted(methods)).encode()))
        return refused

    return Route(path=there[0].route.path, answer=answer, error_shape=shape, summary="Another method")
