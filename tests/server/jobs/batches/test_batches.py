"""Batches: what each line becomes, and what a crash, a full disk, a cancel and the end of the window leave."""

import asyncio
import json
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from server.features.jobs.batches import batches as batches_module
from server.features.jobs.batches import lines as batch_lines
from server.features.jobs.batches import outputs
from server.features.jobs.batches import run as batch_run
from server.features.jobs.http_client import HttpAnswer
from server.features.jobs.pace import SendQueue
from server.features.jobs.store.store import StoreFull
from server.requests.errors import Conflict, InvalidRequest
from tests.server.jobs.batches.fake_batches import (
    FakeServer,
    Gate,
    cut_off,
    ended,
    input_lines,
    joined,
    names,
    opened,
    ran,
    running,
    when_ended,
)


@pytest.mark.holds("Each line of a batch has exactly one line of output")
async def test_each_line_gets_one_line_in_order(tmp_path: Path) -> None:
    it = await ran(tmp_path, joined(input_lines(200)))
    assert [line["custom_id"] for line in it.found] == names(200)
    assert [line["response"]["body"] for line in it.found] == [{"echo": {"n": number}} for number in range(200)]
    assert (it.shown["status"], it.shown["error_file_id"], it.counts) == ("completed", None, (200, 200, 0))


BROKEN = {
    b'{"custom_id": "x", ': "invalid_line",
    b"[1, 2]": "invalid_line",
    b"\xff\xfe": "invalid_line",
    b'{"custom_id": "\\ud800", "method": "POST", "url": "/v1/embeddings", "body": {}}': "invalid_line",
    b'{"custom_id": "x", "method": "POST", "url": "/v1/embeddings"}': "invalid_line",
    # deeper than the parser goes, in three places; a little less deep is for the server to judge
    **{
        b'{"custom_id": "x", "method": "POST", "url": "/v1/embeddings", "body": %b}' % nested: "invalid_line"
        for nested in (b"[" * 990 + b"]" * 990, b'{"a":' * 2000 + b"1" + b"}" * 2000)
    },
    b"[" * 100_000: "invalid_line",
    b'{"custom_id": 7, "method": "POST", "url": "/v1/embeddings", "body": {}}': "invalid_line",
    b'{"custom_id": "x", "method": "POST", "url": "/v1/embeddings", "body": {}, "priority": 1}': "invalid_line",
    b'{"custom_id": "x", "method": "GET", "url": "/v1/embeddings", "body": {}}': "invalid_method",
    b'{"custom_id": "x", "method": "POST", "url": "/v1/rerank", "body": {}}': "mismatched_url",
    b'{"custom_id": "", "method": "POST", "url": "/v1/embeddings", "body": {}}': "invalid_custom_id",
    b'{"custom_id": "c0", "method": "POST", "url": "/v1/embeddings", "body": {}}': "duplicate_custom_id",
}


@pytest.mark.parametrize(("broken", "code"), BROKEN.items(), ids=range(len(BROKEN)))
async def test_a_broken_line_fails_alone_with_its_number(tmp_path: Path, broken: bytes, code: str) -> None:
    first, second = input_lines(2)
    it = await ran(tmp_path, joined([first, b"", broken, second]))
    assert [line["custom_id"] for line in it.found] == ["c0", "c1"]
    assert [(line["error"]["code"], line["error"]["line"]) for line in it.errors] == [(code, 3)]
    assert it.counts == (3, 2, 1)


HALF = rb'"a\ud83d"'
DEEP = b"[" * 2000 + b"]" * 2000


@pytest.mark.holds("Errors of single items")
@pytest.mark.parametrize(
    "line",
    [
        b'{"custom_id": "x", "method": "POST", "url": "/v1/embeddings", "body": %b}' % DEEP,
        b'{"custom_id": "x", "method": NaN, "url": "/v1/embeddings", "body": {}}',
        b'{"method": "POST", "url": "/v1/embeddings", "body": {}, "other": %b, "custom_id": "x"}' % HALF,
        b'{"custom_id": "x", "method": "POST", "url": "/v1/embeddings", "body": {"input": "a',
        b'{"custom_id": "x", "method": "POST"; "url"}',
    ],
    ids=range(5),
)
async def test_a_line_that_no_decoder_takes_keeps_its_custom_id(tmp_path: Path, line: bytes) -> None:
    errors = (await ran(tmp_path, joined([line, line]))).errors
    assert [(each["custom_id"], each["error"]["code"]) for each in errors] == [("x", "invalid_line")] * 2


@pytest.mark.holds("Errors of single items")
@pytest.mark.parametrize(
    "body",
    [
        b'{"input": ["a", %b, 1, %b], "on_error": "null"}' % (HALF, HALF),
        b'{"input": ["a", NaN]}',
        b'{"input": "a", "dimensions": -Infinity }',
        b'{"input": "\\x", "x": %b}' % HALF,
    ],
)
async def test_what_no_decoder_takes_in_a_body_comes_to_the_server_as_it_is(tmp_path: Path, body: bytes) -> None:
    asked = list[bytes]()

    class Refusing(FakeServer):
        async def ask(self, queue: SendQueue, route: str, body: bytes, request_id: str, **more: Any) -> HttpAnswer:
            asked.append(body)
            return HttpAnswer(400, {"content-type": "application/json"}, b'{"error":{"param":"input[1]"}}')

    line = b'{"custom_id": "x", "method": "POST", "url": "/v1/embeddings", "body": %b}' % body
    (error,) = (await ran(tmp_path, joined([line]), Refusing())).errors
    assert asked == [body]
    assert (error["custom_id"], error["response"]["body"]) == ("x", {"error": {"param": "input[1]"}})


async def test_a_file_in_utf_16_gets_a_sentence(tmp_path: Path) -> None:
    errors = (await ran(tmp_path, joined(input_lines(1)).decode().encode("utf-16"))).errors
    assert errors[0]["error"]["message"] == "the line is not in UTF-8"


@pytest.mark.parametrize("content", [b"\n".join, b"\r\n".join, lambda lines: b"\xef\xbb\xbf" + joined(lines)])
async def test_other_ends_of_lines_and_a_byte_order_mark_are_taken(
    tmp_path: Path, content: Callable[[list[bytes]], bytes]
) -> None:
    assert (await ran(tmp_path, content(input_lines(3)))).counts == (3, 3, 0)


async def test_a_line_that_is_too_long_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_lines, "MAX_LINE_BYTES", 200)
    first, second = input_lines(2)
    it = await ran(tmp_path, joined([first, b"x" * 1000, second]))
    assert [(line["error"]["code"], line["error"]["line"]) for line in it.errors] == [("line_too_long", 2)]
    assert it.counts == (3, 2, 1)


async def test_an_answer_that_is_no_success_goes_to_the_errors_as_it_is(tmp_path: Path) -> None:
    it = await ran(tmp_path, joined(input_lines(1)), FakeServer(status=413))
    assert [(line["response"]["status_code"], line["error"]) for line in it.errors] == [(413, None)]
    assert (it.shown["status"], it.shown["output_file_id"]) == ("completed", None)


@pytest.mark.parametrize("content", [b"\n\n", None])
async def test_a_file_without_lines_or_with_too_many_fails_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    monkeypatch.setattr(batch_lines, "MAX_LINES", 3)
    shown = (await ran(tmp_path, content or joined(input_lines(4)))).shown
    assert shown["status"] == "failed"
    assert [error["code"] for error in shown["errors"]["data"]] == ["empty_file" if content else "too_many_lines"]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"endpoint": "/v1/chat/completions"}, "endpoint"),
        ({"input_id": "file-unknown"}, "input_file_id"),
        ({"window": "soon"}, "completion_window"),
        ({"window": "31d"}, "completion_window"),
        ({"output_format": "csv"}, "metadata"),
    ],
)
async def test_what_can_not_be_a_batch_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], param: str) -> None:
    async with opened(tmp_path, FakeServer()) as place:
        with pytest.raises(InvalidRequest) as caught:
            await place.made(b"{}", **changes)
    assert caught.value.param == param


@pytest.mark.parametrize("committed_often", [True, False])
@pytest.mark.holds("Each line of a batch has exactly one line of output")
async def test_a_batch_that_was_interrupted_goes_on_with_one_line_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, committed_often: bool
) -> None:
    monkeypatch.setattr(batch_run, "COMMIT_SECONDS", 0.0 if committed_often else 3600.0)
    gate = Gate(60)
    async with opened(tmp_path, gate) as place:
        batch_id = await cut_off(place, gate, joined(input_lines(120)))
        state = await place.batches.get("", batch_id)
        assert state is not None
        with (tmp_path / "files" / state.output_file_id).open("ab") as torn:  # what a crash may leave
            torn.write(b'{"id": "half a li')
    server = FakeServer()
    async with opened(tmp_path, server) as place:
        shown = await ended(place, batch_id)
        found = await place.custom_ids(shown["output_file_id"])
    assert found == names(120)
    assert shown["request_counts"] == {"total": 120, "completed": 120, "failed": 0}
    assert (len(server.asked) < 120) == committed_often


async def test_a_full_disk_only_delays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, failures = outputs.write, iter([OSError(28, "No space left on device")] * 3)

    def full(path: Path, content: bytes, at: int) -> None:
        for failure in failures:
            write(path, content[: len(content) // 2], at)
            raise failure
        write(path, content, at)

    monkeypatch.setattr(outputs, "write", full)
    it = await ran(tmp_path, joined(input_lines(50)))
    assert [line["custom_id"] for line in it.found] == names(50)


async def test_a_cancelled_batch_keeps_what_was_answered(tmp_path: Path) -> None:
    gate = Gate(10)
    async with opened(tmp_path, gate) as place:
        batch_id = await place.made(joined(input_lines(300)))
        async with running(place):
            await gate.closed.wait()
            state = await place.batches.cancel("", batch_id)
            assert state is not None
            assert state.status == "cancelling"
            shown = await when_ended(place, batch_id)  # although no answer comes any more
        found = await place.lines(shown["output_file_id"])
        assert (await place.batches.cancel("", batch_id)) == await place.batches.get("", batch_id)
    assert shown["status"] == "cancelled"
    assert shown["request_counts"]["completed"] == len(found) == 10


async def test_a_batch_that_waits_is_cancelled_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_module, "MAX_RUNNING", 1)
    gate = Gate(0)
    async with opened(tmp_path, gate) as place:
        first, second = [await place.made(joined(input_lines(3))) for _ in range(2)]
        async with running(place):
            await gate.closed.wait()
            await place.batches.cancel("", second)
            assert (await when_ended(place, second))["status"] == "cancelled"
            assert (await place.shown(first))["status"] == "in_progress"


async def test_an_owners_many_batches_leave_a_place_to_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_module, "MAX_RUNNING", 2)
    asked: set[str] = set()

    class Noting(Gate):
        async def ask(self, queue: SendQueue, *rest: Any, **more: Any) -> HttpAnswer:
            asked.add(queue.owner)
            if asked == {"", "other"}:
                self.closed.set()
            await asyncio.Event().wait()
            raise AssertionError

    gate = Noting(0)
    async with opened(tmp_path, gate) as place:
        for owner in ("", "", "", "other"):
            await place.made(joined(input_lines(1)), owner=owner)
        async with running(place):
            await gate.closed.wait()


async def test_no_more_batches_than_may_be_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_module, "_MAX_OPEN_OF_ONE", 2)
    async with opened(tmp_path, FakeServer()) as place:
        first, _ = [await place.made(joined(input_lines(1))) for _ in range(2)]
        with pytest.raises(StoreFull):
            await place.made(joined(input_lines(1)))
        await place.made(joined(input_lines(1)), owner="other")
        await ended(place, first)
        await place.made(joined(input_lines(1)))


async def test_files_of_a_batch_that_has_not_ended_stay(tmp_path: Path) -> None:
    async with opened(tmp_path, FakeServer()) as place:
        batch_id = await place.made(joined(input_lines(1)))
        state = await place.batches.get("", batch_id)
        assert state is not None
        for file_id in (state.input_file_id, state.output_file_id):
            with pytest.raises(Conflict, match=batch_id):
                await place.batches.delete_file("", file_id)
        assert await place.files.read("other", state.input_file_id, 0, 9) is None
        await ended(place, batch_id)
        assert await place.batches.delete_file("", state.input_file_id)
        assert await place.batches.delete_file("", state.output_file_id)
        with pytest.raises(InvalidRequest, match="input_file_id is not"):
            await place.made(b"", input_id=state.input_file_id)


async def test_lines_that_the_window_left_over_have_an_error_each(tmp_path: Path) -> None:
    gate = Gate(0)
    async with opened(tmp_path, gate) as place:
        batch_id = await place.made(joined(input_lines(30)))
        place.batches._clock = lambda: 4e9
        shown = await ended(place, batch_id)
        errors = await place.lines(shown["error_file_id"])
    assert shown["status"] == "expired"
    assert [line["error"]["code"] for line in errors] == ["batch_expired"] * 30


async def test_a_clock_that_was_set_back_makes_the_window_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches_module, "_seconds", lambda window: 0)
    async with opened(tmp_path, Gate(0)) as place:
        batch_id = await place.made(joined(input_lines(30)))
        place.batches._clock = lambda: 0.0
        shown = await ended(place, batch_id)
    assert (shown["status"], shown["request_counts"]["failed"]) == ("expired", 30)


async def test_the_place_in_the_input_is_in_bytes(tmp_path: Path) -> None:
    content = "\n".join(json.dumps({"text": text}, ensure_ascii=False) for text in ("ä", "€", "😀")).encode()
    (tmp_path / "in").write_bytes(content)
    ends = list(accumulate(map(len, content.splitlines(keepends=True))))
    assert [line.end for line in batch_lines.lines_of(tmp_path / "in") if line is not None] == ends
