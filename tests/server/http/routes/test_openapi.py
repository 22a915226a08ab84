"""The OpenAPI page: valid, and every route in it."""

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.openapi.models import OpenAPI

from server.dialects.fields.field import structs_in
from server.dialects.table import ROUTES
from server.http.access import HEALTH_PATHS, METRICS_PATHS
from server.settings.api_keys import ApiKey, digest
from tests.server.edge import Edge, all_routes, answered, call

HIDDEN = {"/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json", "/api-doc/openapi.json", "/-/healthz"}
HIDDEN |= {"/embeddings_image", "/embeddings_audio"}


def fetched(**how: Any) -> Any:
    answer = answered("GET", "/openapi.json", headers={"x-api-key": "sesame"}, **how)
    assert answer.status == 200
    return json.loads(answer.body)


@pytest.fixture(scope="module")
def schema() -> Any:
    return fetched()


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

    found = {(route.method.lower(), route.path.replace(":path", "")) for route in all_routes()}
    assert routes == {place for place in found if place[1] not in HIDDEN}
    names = [operation["operationId"] for methods in schema["paths"].values() for operation in methods.values()]
    assert len(set(names)) == len(names)


def test_the_hot_route_says_what_it_takes(schema: Any) -> None:
    operation = schema["paths"]["/v1/embeddings"]["post"]
    forms = operation["requestBody"]["content"]["application/json"]["schema"]["anyOf"]
    body, messages, chat = (schema["components"]["schemas"][form["$ref"].rpartition("/")[2]] for form in forms)
    assert (messages["required"], chat["required"]) == (["messages"], ["input"])

    properties = set(body["properties"])
    assert {"input", "model", "encoding_format", "dimensions", "user", "prompt_name", "truncate"} <= properties
    assert {"embed_dtype", "output_dtype", "embedding_type", "endianness"} <= properties
    assert not {"chat_template_kwargs", "messages"} & properties  # these are refused
    assert body["required"] == ["input"]
    assert {parameter["name"] for parameter in operation["parameters"]} == {"request-timeout-ms", "x-embedline-class"}
    kinds = {"application/json", "application/octet-stream", "application/x-ndjson"}
    assert set(operation["responses"]["200"]["content"]) >= kinds
    assert {"400", "413", "429", "503", "504"} <= set(operation["responses"])


def test_each_route_lists_the_statuses_of_its_own_family(schema: Any) -> None:
    statuses = {path: set(schema["paths"][path]["post"]["responses"]) for path in ("/v1/embeddings", "/embed")}

    assert statuses["/v1/embeddings"] - statuses["/embed"] == {"500"}
    assert statuses["/embed"] - statuses["/v1/embeddings"] == {"422", "424"}


def test_every_route_describes_its_body_and_its_answer(schema: Any) -> None:
    for route in ROUTES:
        operation = schema["paths"][route.path]["post"]
        bodies = operation["requestBody"]["content"]["application/json"]["schema"]
        for reference in bodies.get("anyOf", [bodies]):
            body = schema["components"]["schemas"][reference["$ref"].rpartition("/")[2]]
            for required in body.get("required", ()):
                assert body["properties"][required].keys() & {"anyOf", "properties", "type"}
        assert operation["responses"]["200"]["content"]["application/json"]["schema"]


def test_every_status_has_the_schema_of_its_body(schema: Any) -> None:
    for path, methods in schema["paths"].items():
        for operation in methods.values():
            assert {"403", "405"} <= operation["responses"].keys(), path
            for status, response in operation["responses"].items():
                assert response["description"]
                assert (status == "204") is not ("content" in response), (path, status)


def test_errors_are_described_as_they_are(schema: Any) -> None:
    assert references(schema, "/api/embed", "503") == ["TextError"]
    assert references(schema, "/v1/embeddings", "404") == ["OpenaiError"]
    assert references(schema, "/embed", "422") == ["TeiError"]
    assert references(schema, "/embed", "400") == ["TeiError", "OpenaiError"]  # OpenAI's, before the route is known
    assert set(references(schema, "/v1/rerank", "503")) == {"OpenaiError", "TeiError", "TextError"}  # the body chooses
    nested = schema["components"]["schemas"]["OpenaiError"]["properties"]["error"]
    assert nested["required"] == ["message", "type", "param", "code"]
    assert nested["properties"]["param"] == {"type": ["null", "string"]}


def references(schema: Any, path: str, status: str) -> list[str]:
    content = schema["paths"][path]["post"]["responses"][status]["content"]["application/json"]["schema"]
    return [one["$ref"].rpartition("/")[2] for one in content.get("anyOf", [content])]


def test_routes_that_answer_text_say_so(schema: Any) -> None:
    for path in ("/", "/livez", "/readyz", "/ping", "/metrics"):
        assert set(schema["paths"][path]["get"]["responses"]["200"]["content"]) == {"text/plain"}, path
    for path in ("/health", "/info", "/load", "/v1/models"):
        assert set(schema["paths"][path]["get"]["responses"]["200"]["content"]) == {"application/json"}, path


@pytest.mark.parametrize("metrics_auth", [False, True])
def test_keys_are_asked_for_where_they_are_needed(metrics_auth: bool) -> None:
    locked = fetched(keys=[ApiKey("team", digest(b"sesame"))], metrics_auth=metrics_auth)

    operations = {(method, path): one for path, methods in locked["paths"].items() for method, one in methods.items()}
    open_paths = [*HEALTH_PATHS, "/", *([] if metrics_auth else METRICS_PATHS)]
    is_open = {("get", path) for path in open_paths} & operations.keys() | {("post", "/ping")}
    assert {place for place, operation in operations.items() if "security" not in operation} == is_open
    names = {name for place in operations.keys() - is_open for one in operations[place]["security"] for name in one}
    assert names == locked["components"]["securitySchemes"].keys() == {"bearer", "x-api-key", "api-key"}


def test_without_keys_none_is_asked_for(schema: Any) -> None:
    assert not any("security" in operation for methods in schema["paths"].values() for operation in methods.values())


async def test_the_page_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    edge = Edge(url_prefix="/here")
    paths = ("/openapi.json", "/api-doc/openapi.json", "/here/openapi.json")
    first = [(await call(edge.app, "GET", path)).body for path in paths]
    with monkeypatch.context() as patched:
        patched.setattr(json, "dumps", None)
        patched.setattr("server.http.openapi.get_openapi", None)
        assert [(await call(edge.app, "GET", path)).body for path in paths] == first
    plain, of_tei, prefixed = first
    assert plain == of_tei
    assert json.loads(prefixed) == {**json.loads(plain), "servers": [{"url": "/here"}]}


def test_two_structs_of_the_page_have_no_common_name() -> None:
    """A component of the page has the name of its struct: of two that have one, the page would show one for both."""
    kinds = [kind for route in all_routes() for kind in (*route.bodies, *route.answers)]
    found = defaultdict[str, set[type]](set)
    for struct in (struct for kind in kinds for struct in structs_in(kind)):
        found[struct.__name__].add(struct)
    assert {name: structs for name, structs in found.items() if len(structs) > 1} == {}
