"""The routes of files and batches over a real store: what a client may ask, and what it is told where that fails."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from server.dialects.answers import Streamed, openai_error
from server.dialects.route import Call, Route
from server.features.jobs import files as files_module
from server.features.jobs.batch_routes import pieces
from server.features.jobs.files import read_at
from server.features.jobs.routes import JobsPart
from server.frontend.parts import Part
from server.http.app import App
from server.http.body import Message
from server.requests.errors import InvalidRequest
from tests.server.edge import Called, Edge, call, scope_of
from tests.server.jobs.batches.fake_batches import FakeServer, Place, ended, input_lines, joined, opened
from tests.server.jobs.connected import connected


@dataclass
class Asked:
    """A frontend and the jobs process behind it."""

    edge: Edge
    place: Place

    async def __call__(self, method: str, path: str) -> Called:
        return await call(self.edge.app, method, path)


@asynccontextmanager
async def routes(folder: Path) -> AsyncIterator[Asked]:
    async with (
        opened(folder, FakeServer()) as place,
        connected(folder, place.calls()) as client,
    ):
        yield Asked(Edge(parts={"jobs": JobsPart(client)}), place)


LIMITS = ("0", "101", "-1", "+1", "01", "0" * 8 + "1999999", "0" * 8 + "9" * 5000, "1.5", "1e1", "", " 1", "1_0")
OTHER_DIGITS = ("\u0661", "\uff11")


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches"])
async def test_a_limit_is_a_number_in_its_bounds(tmp_path: Path, path: str) -> None:
    async with routes(tmp_path) as ask:
        for limit in LIMITS + OTHER_DIGITS:
            called = await ask("GET", f"{path}?limit={limit}")
            assert (called.status, called.error()["param"]) == (400, "limit"), limit


async def test_a_limit_bounds_a_page(tmp_path: Path) -> None:
    async with routes(tmp_path) as ask:
        for _ in range(3):
            await ask.place.uploaded(b"line")
        page = json.loads((await ask("GET", "/v1/files?limit=2")).body)
    assert (len(page["data"]), page["has_more"]) == (2, True)


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches"])
async def test_what_would_list_otherwise_is_refused_by_its_name(tmp_path: Path, path: str) -> None:
    async with routes(tmp_path) as ask:
        for query in ("order=asc", "purpose=batch", "before=file-1", "order=desc&order=asc", "Limit=2"):
            called = await ask("GET", f"{path}?limit=2&{query}")
            assert (called.status, called.error()["param"]) == (400, query.partition("=")[0]), query
        assert (await ask("GET", f"{path}?limit=2&order=desc")).status == 200


async def test_head_of_a_file_reads_none_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    def counted(path: Path, offset: int, count: int) -> bytes:
        counts.append(count)
        return read_at(path, offset, count)

    async with routes(tmp_path) as ask:
        file_id = await ask.place.uploaded(bytes(3 << 20))
        monkeypatch.setattr(files_module, "read_at", counted)
        called = await ask("HEAD", f"/v1/files/{file_id}/content")
    assert (called.status, called.headers["content-length"], called.body) == (200, str(3 << 20), b"")
    assert counts == [1]


async def test_a_folder_of_files_that_fails_is_unavailable(tmp_path: Path) -> None:
    async with routes(tmp_path) as ask:
        file_id = await ask.place.uploaded(b"line")
        (tmp_path / "files").rename(tmp_path / "away")
        (tmp_path / "files").write_text("in its place")
        called = await ask("GET", f"/v1/files/{file_id}/content")
        head = await ask("HEAD", f"/v1/files/{file_id}/content")
    assert (called.status, head.status) == (503, 503)
    assert int(called.headers["retry-after"]) > 0
    assert str(tmp_path) not in called.body.decode()


async def test_a_batch_that_has_ended_can_be_deleted(tmp_path: Path) -> None:
    async with routes(tmp_path) as ask:
        batch_id = await ask.place.made(joined(input_lines(2)))
        assert (await ask("DELETE", f"/v1/batches/{batch_id}")).status == 409
        shown = await ended(ask.place, batch_id)
        deleted = await ask("DELETE", f"/v1/batches/{batch_id}")
        assert json.loads(deleted.body) == {"id": batch_id, "object": "batch", "deleted": True}
        assert (await ask("DELETE", f"/v1/batches/{batch_id}")).status == 404
        assert (await ask("GET", f"/v1/batches/{batch_id}")).status == 404
        assert (await ask("GET", f"/v1/files/{shown['output_file_id']}")).status == 200


@pytest.mark.parametrize(
    ("metadata", "is_taken"),
    [
        ({f"k{n}": "v" for n in range(16)}, True),
        ({f"k{n}": "v" for n in range(17)}, False),
        ({"k" * 64: "\U0001f600" * 512}, True),
        ({"k" * 65: "v"}, False),
        ({"a": "v", "k": "v" * 513}, False),
    ],
)
async def test_metadata_has_the_bounds_of_openai(tmp_path: Path, metadata: dict[str, str], is_taken: bool) -> None:
    async with opened(tmp_path, FakeServer()) as place:
        if is_taken:
            assert (await place.shown(await place.made(b"line", **metadata)))["metadata"] == metadata
            return
        with pytest.raises(InvalidRequest) as refused:
            await place.made(b"line", **metadata)
    assert refused.value.param == "metadata"
    assert not any(len(text) > 3 and text in str(refused.value) for pair in metadata.items() for text in pair)


def app_with(answer: Callable[[Call], Awaitable[Streamed]]) -> App:
    part = Part()
    part.routes = [Route(method="GET", path="/pieces", answer=answer, error_shape=openai_error, summary="")]
    return Edge(parts={"jobs": part}).app


async def test_a_file_that_is_deleted_while_it_is_read_ends_where_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """Its last message does not come, so that the connection closes."""
    sent = list[Message]()

    async def answer(_: Call) -> Streamed:
        return Streamed(200, [], 15, pieces(b"first", 15, nothing))

    async def nothing(offset: int) -> bytes:
        return b""

    async def receive() -> Message:
        return await asyncio.Future[Message]()

    async def send(message: Message) -> None:
        sent.append(message)

    await app_with(answer)(scope_of("GET", "/pieces", {}), receive, send)
    assert b"".join(message.get("body", b"") for message in sent) == b"first"
    assert all(message.get("more_body") for message in sent if message["type"] == "http.response.body")
    assert caplog.records == []


async def test_the_next_piece_of_a_file_is_read_once_the_one_before_was() -> None:
    """Of a client that does not read one piece is here, however small it is."""
    asked, reads = list[int](), asyncio.Event()

    async def more(offset: int) -> bytes:
        asked.append(offset)
        return b"piece"

    async def answer(_: Call) -> Streamed:
        return Streamed(200, [], 15, pieces(b"first", 15, more))

    async def receive() -> Message:
        return await asyncio.Future[Message]()

    async def send(message: Message) -> None:  # the transport has no room left
        if message.get("more_body") and not message["body"]:
            await reads.wait()

    task = asyncio.create_task(app_with(answer)(scope_of("GET", "/pieces", {}), receive, send))
    for _ in range(100):
        await asyncio.sleep(0)
    assert asked == []
    reads.set()
    await task
    assert asked == [5, 10]
