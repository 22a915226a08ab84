"""Every route asks for a key but those that are named open, whatever a path is written like."""

import contextlib
import logging
import os
from pathlib import Path

import pytest

from server.http.access import HEALTH_PATHS, METRICS_PATHS, Keys
from server.requests.errors import Unauthorized
from server.settings import files
from server.settings.api_keys import ApiKey, api_keys, digest, key_file
from tests.server.edge import Called, all_routes, answered

KEYS = [ApiKey("first", digest(b"key-1")), ApiKey("second", digest(b"key-2"))]
OPEN = HEALTH_PATHS | METRICS_PATHS


def ask(method: str, path: str, headers: dict[str, str] | None = None, *, metrics_auth: bool = False) -> Called:
    return answered(method, path, b"{}", headers, keys=KEYS, metrics_auth=metrics_auth)


def every_route() -> list[tuple[str, str]]:
    """Method and path of all that this server answers."""
    return sorted({(route.method, route.path) for route in all_routes()})


def test_there_are_routes_of_both_kinds() -> None:
    assert {("POST", "/v1/embeddings"), ("GET", "/info"), ("GET", "/openapi.json")} <= set(every_route())


@pytest.mark.holds("Every route needs a key unless it is listed as open", "API keys")
@pytest.mark.parametrize(("method", "path"), every_route())
def test_each_route_asks_for_a_key_unless_it_is_named_open(method: str, path: str) -> None:
    is_open = path in OPEN or (path == "/" and method in ("GET", "HEAD"))

    refused = ask(method, path, {"x-request-id": "mine"})
    assert ((refused.status, refused.headers["x-request-id"]) == (401, "mine")) is not is_open
    assert (ask(method, path, {"authorization": "Bearer key-3"}).status == 401) is not is_open
    assert ask(method, path, {"authorization": "Bearer key-2"}).status != 401


@pytest.mark.holds("Every route needs a key unless it is listed as open", "API keys")
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
@pytest.mark.parametrize(
    "path",
    ["//v1/embeddings", "/V1/embeddings", "/v1/embeddings/", "/v1", "/none", "/health/../info", "//health"],
)
def test_what_is_not_known_asks_for_a_key_before_it_says_so(method: str, path: str) -> None:
    assert ask(method, path).status == 401
    assert ask(method, path, {"host": "localhost/health"}).status == 401


@pytest.mark.holds("API keys", "The load report")
@pytest.mark.parametrize("path", METRICS_PATHS)
def test_the_metrics_may_be_closed_too(path: str) -> None:
    is_open = ask("GET", path).status
    assert is_open in (200, 503)  # there is no load yet
    assert ask("GET", path, metrics_auth=True).status == 401
    assert ask("GET", path, {"x-api-key": "key-1"}, metrics_auth=True).status == is_open
    assert ask("GET", "/livez", metrics_auth=True).status == 200


@pytest.mark.holds("API keys")
@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer key-1"},
        {"authorization": "bearer key-1"},
        {"authorization": "Api-Key key-1"},
        {"authorization": "key-1"},
        {"x-api-key": "key-1"},
        {"api-key": "key-1"},
        {"authorization": "Basic dXNlcjpwYXNz", "x-api-key": "key-1"},
        {"authorization": "Bearer of-the-proxy", "x-api-key": "none", "api-key": "key-1"},
    ],
    ids=str,
)
def test_a_key_may_be_given_as_clients_give_it(headers: dict[str, str]) -> None:
    raw = {name.encode(): value.encode() for name, value in headers.items()}
    assert Keys(KEYS, metrics_auth=False).check("POST", "/v1/embeddings", raw) == "first"


@pytest.mark.holds("API keys")
@pytest.mark.parametrize(
    "value", [b"", b"Bearer", b"Bearer ", b"key-1 ", b"Bearer key-1, key-2", b"Basic key-1", b"\xff"]
)
def test_what_is_no_key_is_refused(value: bytes) -> None:
    with pytest.raises(Unauthorized) as refused:
        Keys(KEYS, metrics_auth=False).check("POST", "/v1/embeddings", {b"authorization": value})
    assert "key-1" not in refused.value.message


@pytest.mark.holds("API keys")
def test_every_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare_digest(given: bytes, kept: bytes) -> bool:
        compared.append((given, kept))
        return given == kept

    monkeypatch.setattr("server.http.access.hmac.compare_digest", compare_digest)
    Keys(KEYS, metrics_auth=False).check("POST", "/v1/embeddings", {b"x-api-key": b"key-1"})

    assert compared == [(digest(b"key-1"), key.digest) for key in KEYS]  # the second too, although the first fits

    compared.clear()
    both = {b"authorization": b"Bearer key-1", b"x-api-key": b"key-1"}
    Keys(KEYS, metrics_auth=False).check("POST", "/v1/embeddings", both)
    assert len(compared) == 2 * len(KEYS)


@pytest.mark.holds("API keys")
def test_without_keys_nobody_is_asked() -> None:
    assert Keys([], metrics_auth=True).check("POST", "/v1/embeddings", {}) == ""


@pytest.mark.holds("Errors")
def test_the_refusal_is_an_error_like_others() -> None:
    called = ask("POST", "/v1/embeddings")

    assert called.error()["code"] == "invalid_api_key"
    assert called.headers["www-authenticate"] == "Bearer"
    assert called.headers["x-request-id"]


class Watching:
    """Keys of a file that is looked at with each request."""

    def __init__(self, file: Path, *flag_keys: str) -> None:
        self.file = file
        watched = key_file(flag_keys, str(file))
        assert watched is not None
        self._keys = Keys(api_keys(flag_keys, str(file)), metrics_auth=False, file=watched)

    def accepts(self, key: str) -> bool:
        try:
            self._keys.check("POST", "/v1/embeddings", {b"x-api-key": key.encode()})
        except Unauthorized:
            return False
        return True


@pytest.fixture
def watching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watching:
    monkeypatch.setattr(files, "LOOK_SECONDS", 0)
    (tmp_path / "keys").write_text("old:key-old\n")
    return Watching(tmp_path / "keys", "key-flag")


@pytest.mark.holds("API keys")
def test_a_changed_file_of_keys_is_read_again(watching: Watching) -> None:
    assert [watching.accepts(key) for key in ("key-old", "key-new", "key-flag")] == [True, False, True]

    watching.file.write_text("new:key-new\n")

    assert [watching.accepts(key) for key in ("key-old", "key-new", "key-flag")] == [False, True, True]


@pytest.mark.holds("API keys")
@pytest.mark.parametrize("content", ["", "two words", "a:key-new\nb:key-flag", "gone", "a pipe"])
def test_a_file_that_has_become_wrong_changes_nothing(
    watching: Watching, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither opens the server nor closes it, and is said once."""
    if content in ("gone", "a pipe"):
        watching.file.unlink()
        if content == "a pipe":
            os.mkfifo(watching.file)
    else:
        watching.file.write_text(content)

    with caplog.at_level(logging.ERROR):
        accepted = [watching.accepts(key) for key in ("key-old", "key-new", "key-flag", "")]

    assert accepted == [True, False, True, False]
    (record,) = caplog.records
    assert record.getMessage().endswith("; the keys that were read before stay")
    assert "key-" not in record.getMessage().replace("--api-key-file", "")
    watching.file.unlink(missing_ok=True)
    watching.file.write_text("new:key-new\n")
    assert watching.accepts("key-new")


@pytest.mark.holds("API keys")
def test_a_pipe_of_keys_is_read_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "keys")
    assert key_file((), str(tmp_path / "keys")) is None


@pytest.mark.holds("API keys")
def test_a_request_that_was_kept_stays_with_its_key_when_keys_are_numbered_anew() -> None:
    before = Keys(api_keys(("gone", "stays"), None), metrics_auth=False)
    after = Keys(api_keys(("stays",), None), metrics_auth=False)
    after.let_act("secret")
    gone, stays = before.owner("key-1"), before.owner("key-2")

    assert after.owner("key-1") == stays
    assert after.check("POST", "/embed", {b"x-api-key": f"secret.{stays}".encode()}) == "key-1"
    with pytest.raises(Unauthorized, match="is not accepted any more"):
        after.check("POST", "/embed", {b"x-api-key": f"secret.{gone}".encode()})


@pytest.mark.holds("API keys")
@pytest.mark.parametrize(
    ("headers", "is_let_in"),
    [
        ({b"x-api-key": b"one.team"}, True),
        ({b"authorization": b"Bearer other.team"}, True),
        ({b"x-api-key": b"other.nobody"}, False),
        ({b"x-api-key": b"guessed.team"}, False),
        ({b"x-api-key": b"one.", b"api-key": b"sesame"}, False),  # for nobody
        ({b"x-api-key": b"one", b"api-key": b"sesame"}, False),
        ({b"x-api-key": b".team"}, False),
    ],
)
def test_who_acts_for_a_key_needs_its_own_secret(headers: dict[bytes, bytes], is_let_in: bool) -> None:
    keys = Keys([ApiKey("team", digest(b"sesame"))], metrics_auth=False)
    keys.let_act("one")
    keys.let_act("other")
    with contextlib.nullcontext() if is_let_in else pytest.raises(Unauthorized):
        assert keys.check("POST", "/embed", headers) == "team"


def test_a_key_of_a_file_that_is_changed_under_its_name_keeps_its_requests(tmp_path: Path) -> None:
    owners = set()
    for line in ("team:old", "team:new"):
        (tmp_path / "keys").write_text(line)
        owners.add(Keys(api_keys((), str(tmp_path / "keys")), metrics_auth=False).owner("team"))
    assert owners == {"team"}
