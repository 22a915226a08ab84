"""The OpenAPI page: valid, and every route in it, those among them that FastAPI never sees."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.openapi.models import OpenAPI

from server.dialects.table import ROUTES
from tests.server.edge import Edge, call


@pytest.fixture(scope="module")
def schema() -> Any:
    async def fetch() -> bytes:
        answer = await call(Edge().app, "GET", "/openapi.json")
        assert answer.status == 200
        return answer.body

    return json.loads(asyncio.run(fetch()))


def everything_in(value: Any) -> Iterator[Any]:
    yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in inner:
        yield from everything_in(item)


def test_it_is_openapi(schema: Any) -> None:
    assert OpenAPI.model_validate(schema).info.title == "Embedline"


def test_every_reference_leads_somewhere(schema: Any) -> None:
    references = [item["$ref"] for item in everything_in(schema) if isinstance(item, dict) and "$ref" in item]

    assert references
    for reference in references:
        found = schema
        for key in reference.removeprefix("#/").split("/"):
            found = found[key]


def test_every_route_is_there_once(schema: Any) -> None:
    routes = {(method, path) for path, methods in schema["paths"].items() for method in methods}

    assert routes == {
        *(("post", route.path) for route in ROUTES),
        *(("get", path) for path in ("/", "/livez", "/readyz", "/health", "/ping", "/info", "/v1/models", "/metrics")),
    }
    names = [operation["operationId"] for methods in schema["paths"].values() for operation in methods.values()]
    assert len(set(names)) == len(names)


def test_the_hot_route_says_what_it_takes(schema: Any) -> None:
    operation = schema["paths"]["/v1/embeddings"]["post"]
    reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    body = schema["components"]["schemas"][reference.rpartition("/")[2]]

    properties = {"input", "model", "encoding_format", "dimensions", "user", "prompt_name"}
    assert properties | {"embed_dtype", "output_dtype", "embedding_type", "endianness"} == set(body["properties"])
    assert body["required"] == ["input"]
    assert {parameter["name"] for parameter in operation["parameters"]} == {"request-timeout-ms", "x-embedline-class"}
    assert set(operation["responses"]["200"]["content"]) == {"application/json", "application/octet-stream"}
    assert {"400", "413", "429", "503", "504"} <= set(operation["responses"])


def test_each_route_lists_the_statuses_of_its_own_family(schema: Any) -> None:
    statuses = {path: set(schema["paths"][path]["post"]["responses"]) for path in ("/v1/embeddings", "/embed")}

    assert statuses["/v1/embeddings"] - statuses["/embed"] == {"500"}
    assert statuses["/embed"] - statuses["/v1/embeddings"] == {"422", "424"}


def test_every_route_describes_its_body_and_its_answer(schema: Any) -> None:
    for route in ROUTES:
        operation = schema["paths"][route.path]["post"]
        reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        body = schema["components"]["schemas"][reference.rpartition("/")[2]]
        for required in body["required"]:
            assert body["properties"][required].keys() & {"anyOf", "properties", "type"}
        assert operation["responses"]["200"]["content"]["application/json"]["schema"]
