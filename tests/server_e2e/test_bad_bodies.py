"""Forty malformed bodies, to OpenAI's route and to TEI's of a running server: the right 4xx in the route's own shape,
or the answer that JSON allows, and the same server answering well right after."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.server_e2e.expected import FAKE, rows_of
from tests.server_e2e.running import Server, serving

SECRET = "QXZJ-9173-secret"  # in no message of ours


@dataclass(frozen=True)
class Dialect:
    path: str
    field: str  # where the inputs are

    def body(self, inputs: bytes, *rest: bytes) -> bytes:
        return b"{" + b",".join([b'"%b":%b' % (self.field.encode(), inputs), *rest]) + b"}"


OPENAI = Dialect("/v1/embeddings", "input")
TEI = Dialect("/embed", "inputs")
TEXT = b'"' + SECRET.encode() + b'"'
DEEP_LISTS, DEEP_OBJECTS = b"[" * 64 + b"]" * 64, b'{"a":' * 64 + b"1" + b"}" * 64
MANY = b"[" + b",".join([TEXT] * 65) + b"]"

# inputs, other fields; the status from OpenAI's route, the status and the type from TEI's
Case = tuple[bytes, list[bytes], int, int, str]
CASES: list[Case] = [
    # types
    (b"5", [], 400, 422, "Validation"),
    (b"true", [], 400, 422, "Validation"),
    (b"null", [], 400, 422, "Validation"),
    (b'{"text":%b}' % TEXT, [], 400, 422, "Validation"),
    (b"[%b,5]" % TEXT, [], 400, 422, "Validation"),
    (b"[5,%b]" % TEXT, [], 400, 422, "Validation"),
    (b"[[5],[%b]]" % TEXT, [], 400, 422, "Validation"),
    (b"[[[5]]]", [], 400, 422, "Validation"),
    (b"[5.5]", [], 400, 422, "Validation"),
    (b"[true]", [], 400, 422, "Validation"),
    (b"[null]", [], 400, 422, "Validation"),
    (b"[-1]", [], 400, 422, "Validation"),
    (b"[99999999]", [], 400, 422, "Validation"),
    (TEXT, [b'"dimensions":%b' % TEXT], 400, 422, "Validation"),
    (TEXT, [b'"dimensions":0'], 400, 422, "Validation"),
    (TEXT, [b'"dimensions":-4'], 400, 422, "Validation"),
    (TEXT, [b'"dimensions":1000000'], 400, 422, "Validation"),
    (TEXT, [b'"dimensions":1.5'], 400, 422, "Validation"),
    (TEXT, [b'"dimensions":[4]'], 400, 422, "Validation"),
    (TEXT, [b'"prompt_name":%b' % TEXT], 400, 422, "Validation"),
    (MANY, [], 400, 422, "Validation"),
    # nothing in it
    (b'""', [], 400, 400, "Empty"),
    (b"[]", [], 400, 400, "Empty"),
    (b'[%b,""]' % TEXT, [], 400, 400, "Empty"),
    (b"[[5],[]]", [], 400, 400, "Empty"),
    # what JSON is not
    (b"NaN", [], 400, 400, "Validation"),
    (b"[NaN]", [], 400, 400, "Validation"),
    (b"[Infinity]", [], 400, 400, "Validation"),
    (TEXT, [b'"dimensions":NaN'], 400, 400, "Validation"),
    (b"[1e999]", [], 400, 422, "Validation"),
    (TEXT, [b'"dimensions":1e999'], 400, 422, "Validation"),
    (b'"\\ud800"', [], 400, 400, "Validation"),
    (b'["a","\\udc00 %b"]' % SECRET.encode(), [], 400, 400, "Validation"),
    (b'"\xed\xa0\x80"', [], 400, 400, "Validation"),
    (b'"\xff"', [], 400, 400, "Validation"),
    (b'"\x00"', [], 400, 400, "Validation"),
    (b"'%b'" % SECRET.encode(), [], 400, 400, "Validation"),
    (TEXT, [b'"user":"a",'], 400, 400, "Validation"),
    # too much of it
    (TEXT, [b'"other":' + DEEP_LISTS], 400, 400, "Validation"),
    (TEXT, [b'"other":' + DEEP_OBJECTS], 400, 400, "Validation"),
    (b"[" * 65 + b"]" * 65, [], 400, 422, "Validation"),
    (b"[" + b"1" * 100_000 + b"]", [], 400, 422, "Validation"),
    (TEXT, [b'"dimensions":' + b"1" * 100_000], 400, 422, "Validation"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = (*FAKE, "--max-client-batch-size", "64")
    with serving(*flags, folder=tmp_path_factory.mktemp("bad-bodies")) as running:
        yield running
        assert not [line for line in running.log.lines if " ERROR " in line or "Traceback" in line]


def is_well(server: Server) -> bool:
    reply = server.embed("hello world", encoding_format="bytes")
    return reply.status == 200 and np.array_equal(np.frombuffer(reply.body, "<f4"), rows_of(["hello world"])[0])


def openai_type(body: Any) -> Any:
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return body["error"]["type"]


def tei_type(body: Any) -> Any:
    assert set(body) == {"error", "error_type"}
    return body["error_type"]


def test_there_are_forty_of_them() -> None:
    assert len({(inputs, *rest) for inputs, rest, *_ in CASES}) >= 40


@pytest.mark.holds("Errors")
@pytest.mark.parametrize("case", CASES, ids=lambda case: (case[0] + b" " + b",".join(case[1])).decode("latin-1")[:40])
def test_malformed_bodies(server: Server, case: Case) -> None:
    inputs, rest, openai_status, tei_status, error_type = case
    openai = server.request("POST", OPENAI.path, OPENAI.body(inputs, *rest))
    tei = server.request("POST", TEI.path, TEI.body(inputs, *rest))

    assert (openai.status, openai_type(openai.json())) == (openai_status, "invalid_request_error")
    assert (tei.status, tei_type(tei.json())) == (tei_status, error_type)
    assert SECRET.encode() not in openai.body + tei.body
    assert is_well(server)


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize("dialect", [OPENAI, TEI], ids=lambda dialect: dialect.path)
def test_what_json_allows_is_answered(server: Server, dialect: Dialect) -> None:
    raw = b'"normalize":false'
    first, last = dialect.body(b'"hello"')[1:-1], dialect.body(b'"hello world"', raw)[1:-1]
    duplicate = server.request(
        "POST", dialect.path, b"{" + first + b"," + last + b"}", accept="application/octet-stream"
    )
    nul = server.request(
        "POST", dialect.path, dialect.body(b'"hello\\u0000world"', raw), accept="application/octet-stream"
    )
    nested = server.request("POST", dialect.path, dialect.body(b'"hi"', b'"other":' + DEEP_LISTS[1:-1]))

    assert np.array_equal(np.frombuffer(duplicate.body, "<f4"), rows_of(["hello world"])[0]), "the last wins"
    assert np.array_equal(np.frombuffer(nul.body, "<f4"), rows_of(["hello\0world"])[0])
    assert (duplicate.status, nul.status, nested.status) == (200, 200, 200)


@pytest.mark.holds("Limits")
@pytest.mark.parametrize("dialect", [OPENAI, TEI], ids=lambda dialect: dialect.path)
def test_80_megabytes_are_refused_before_they_are_read(server: Server, dialect: Dialect) -> None:
    connection = server.connect()
    connection.putrequest("POST", dialect.path)
    connection.putheader("content-length", str(80_000_000))
    connection.endheaders()
    answer = connection.getresponse()  # not a byte of the body was sent

    assert answer.status == 413
    body = json.loads(answer.read())
    assert body["error"]
    connection.close()
    assert is_well(server)
