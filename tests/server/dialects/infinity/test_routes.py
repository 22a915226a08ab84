"""What Infinity has beside OpenAI's routes: its numbers of the queue, its health, its routes for images and sound."""

import json
from typing import Any

import pytest

from tests.server.edge import Called, Edge, answered


def ask(method: str, path: str, body: bytes = b"", cells: dict[str, int] | None = None) -> Called:
    def fill(edge: Edge) -> None:
        for name, value in (cells or {}).items():
            getattr(edge.page, name)[:] = value

    return answered(method, path, body, before=fill)


@pytest.mark.holds("Infinity's routes")
@pytest.mark.parametrize("path", ["/models", "/v1/models"])
def test_models_have_numbers_of_their_queue(path: str) -> None:
    content = json.loads(ask("GET", path).body)

    (card,) = content["data"]
    assert (content["object"], card["object"], card["id"]) == ("list", "model", "the-model")
    assert (card["backend"], card["capabilities"]) == ("fake", ["embed"])
    assert card["stats"] == {"queue_fraction": 0.0, "queue_absolute": 0, "results_pending": 0, "batch_size": 64}


@pytest.mark.holds("Infinity's routes")
def test_the_queue_is_counted_in_tokens_and_full_where_requests_are_refused() -> None:
    cells = {"queued_tokens": 50, "computing_tokens": 10, "admitted_tokens": 110, "tokens_per_second": 100}
    (card,) = json.loads(ask("GET", "/models", cells=cells).body)["data"]

    stats: dict[str, Any] = card["stats"]
    assert (stats["queue_absolute"], stats["results_pending"]) == (2 * 40, 2 * 10)  # of two classes
    assert 0.5 <= stats["queue_fraction"] <= 1.0


@pytest.mark.holds("Infinity's routes")
def test_health_is_json() -> None:
    content = json.loads(ask("GET", "/health").body)
    assert content["status"] == "ok"
    assert content["unix"] > 1e9
    broken = ask("GET", "/health", cells={"engines_ready": 0})
    assert (broken.status, json.loads(broken.body)["status"]) == (503, "no engine is ready")


@pytest.mark.holds("Infinity's routes")
@pytest.mark.parametrize(("path", "what"), [("/embeddings_image", "images"), ("/embeddings_audio", "sound")])
def test_images_and_sound_are_refused(path: str, what: str) -> None:
    called = ask("POST", path, b'{"input":["https://example.org/cat.png"]}')

    assert (called.status, called.error()["code"]) == (400, "unsupported_task")
    assert called.error()["message"] == f"{what} can't be embedded here; POST /embeddings embeds texts"
    assert ask("GET", path).status == 405
