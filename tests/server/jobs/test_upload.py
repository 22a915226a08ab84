"""The form of an upload as it comes: passed on in pieces however it is cut, or refused with nothing left of it."""

import json
import random
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest

from server.features.jobs import batch_routes
from server.features.jobs.batch_routes import PIECE_BYTES
from server.features.rpc import Caller, Reply
from server.http.body import ClientLeft, Message
from server.requests.errors import InvalidRequest, MalformedBody, RequestError, UnsupportedMedia
from tests.server.edge import Edge

FORM = "multipart/form-data; boundary=cut"
CONTENT = random.Random(18).randbytes(3 * PIECE_BYTES + 5)


class Jobs(Caller):
    """Takes note of what it is asked, and does all of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.begun: Mapping[str, object] = {}
        self.pieces: list[bytes] = []

    async def call(self, what: str, owner: str, *, body: Any = b"", timeout_s: Any = 0.0, **fields: Any) -> Reply:
        assert owner == ""
        self.asked.append(what)
        if what == "file_begin":
            self.begun = fields
        if what == "file_append":
            self.pieces.append(bytes(body))
        return Reply({"file_id": "file-1"})


def part(name: str, content: bytes, more: str = "") -> bytes:
    return f'--cut\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + content + b"\r\n"


FILE = part("file", b"lines", '; filename="in.jsonl"')
PURPOSE = part("purpose", b"batch")
END = b"--cut--\r\n"


async def received(
    jobs: Jobs,
    form: bytes,
    *,
    cuts: tuple[int, ...] = (),
    leaves: bool = False,
    headers: Mapping[str, str] | None = None,
) -> Any:
    """What an upload is answered with that comes in pieces, cut at these places."""
    given = {"content-type": FORM, "content-length": str(len(form)), **(headers or {})}
    places = [0, *sorted(cuts), len(form)]
    pieces = [form[begin:end] for begin, end in pairwise(places)]
    messages: list[Message] = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    messages.append({"type": "http.disconnect"} if leaves else {"type": "http.request", "body": b""})
    coming = iter(messages)

    async def receive() -> Message:
        return next(coming)

    headers = {name: value for name, value in given.items() if value}
    return json.loads(bytes((await batch_routes.upload(jobs, Edge().request(receive, headers))).body))


async def test_a_file_is_passed_on_in_pieces_however_it_is_cut() -> None:
    form = PURPOSE + part("file", CONTENT, '; filename="in.jsonl"') + END
    chance = random.Random(19)
    for count in (0, 3, 200):
        jobs = Jobs()
        cuts = tuple(chance.randrange(len(form)) for _ in range(count))
        assert await received(jobs, form, cuts=cuts) == {"file_id": "file-1"}
        assert b"".join(jobs.pieces) == CONTENT
        assert max(map(len, jobs.pieces)) <= PIECE_BYTES
        assert jobs.begun == {"filename": "in.jsonl", "most": len(form)}
        assert jobs.asked[-1] == "file_end"


@pytest.mark.parametrize(
    ("form", "headers", "kind", "param"),
    [
        (FILE + PURPOSE + END, {"content-length": ""}, InvalidRequest, "content-length"),
        (b"{}", {"content-type": "application/json"}, UnsupportedMedia, None),
        (b"{}", {"content-type": "multipart/form-data"}, UnsupportedMedia, None),
        (b"{}", {"content-type": f"multipart/form-data; boundary={'x' * 257}"}, UnsupportedMedia, None),
        (b"no form at all", {}, MalformedBody, None),
        (PURPOSE + END, {}, MalformedBody, None),
        (
            FILE + part("expires_after[anchor]", b"created_at") + PURPOSE + END,
            {},
            InvalidRequest,
            "expires_after[anchor]",
        ),
        (FILE + FILE + PURPOSE + END, {}, InvalidRequest, "file"),
        (FILE + part("purpose", b"fine-tune") + END, {}, InvalidRequest, "purpose"),
        (FILE + END, {}, InvalidRequest, "purpose"),
        (FILE + part("purpose", b"x" * 2000) + END, {}, MalformedBody, None),
        (part("file", b"lines", "; filename=" + "x" * 9000) + END, {}, MalformedBody, None),
        (FILE + PURPOSE, {}, MalformedBody, None),
        (b"--cut\r\n\r\n\r\n" * 3 + FILE + PURPOSE + END, {}, InvalidRequest, ""),
        (FILE + PURPOSE + b"--cut\r\nx: y\r\n\r\n\r\n" + END, {}, InvalidRequest, ""),
    ],
    ids=range(15),
)
async def test_another_form_is_refused_and_leaves_nothing(
    form: bytes, headers: dict[str, str], kind: type[RequestError], param: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = Jobs()
    with pytest.raises(kind) as refused:
        await received(jobs, form, headers=headers)
    assert type(refused.value) is kind
    assert refused.value.param == param
    assert "file_end" not in jobs.asked
    assert ("file_abandon" in jobs.asked) == ("file_begin" in jobs.asked)
    assert caplog.records == []


async def test_a_client_that_leaves_leaves_nothing() -> None:
    jobs = Jobs()
    with pytest.raises(ClientLeft):
        await received(jobs, FILE, leaves=True)
    assert jobs.asked == ["file_begin", "file_abandon"]
