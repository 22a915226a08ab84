"""Other servers' spellings of a path: what stands before a route in their URLs, `/v1` or none, a final slash.

A path that is a route's own is never looked at here. So other spellings cost such requests nothing.
"""

import re
from collections.abc import Collection
from typing import NamedTuple

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
