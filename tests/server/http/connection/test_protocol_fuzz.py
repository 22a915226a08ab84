"""Mutated bytes over many connections: each is answered with what HTTP has for it, and nothing stays behind."""

import asyncio
import gc
import logging
import random

import pytest

from server.http.h1.connection import Exchange
from server.http.h1.framing import MAX_HEAD_BYTES
from server.http.h1.protocol import HttpProtocol
from tests.server.edge import Edge
from tests.server.http.bare import Bare, turns
from tests.server.http.running import CHUNKED, GET, POST

BODY = b'{"input":["hello","world"],"other":[[1],{"a":"b"}]}'
SEEDS = [
    GET % b"livez",
    GET % b"metrics" + GET % b"v1/models" + GET % b"nothing",
    POST % (b"v1/embeddings", len(BODY)) + BODY,
    (POST % (b"embed", 18) + b'{"inputs":"hello"}') * 5,
    CHUNKED % b"v1/embeddings" + b"%x\r\n%b\r\n0\r\nauthorization: a\r\n\r\n" % (len(BODY), BODY) + GET % b"readyz",
    CHUNKED % b"livez" + b"5\r\nhello\r\n" * 20 + b"0\r\n\r\n",
    b"POST /embed HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: h2c\r\ncontent-length: 2\r\n\r\n{}",
    b'POST /embed HTTP/1.0\r\nexpect: 100-continue\r\ncontent-length: 18\r\n\r\n{"inputs":"hello"}',
    b"POST /embed HTTP/1.1\r\nhost: a\r\ncontent-length: 70000\r\n\r\n" + b"x" * 70_000,
    b"GET /livez HTTP/1.1\r\nhost: a\r\n" + b"name: value\r\n" * 90 + b"\r\n",
]
TOKENS = [b"\r\n", b"\r\n\r\n", b"\0", b" ", b":", b"0\r\n\r\n", b"HTTP/1.1", b"\xff", b"x" * 40_000]
TOKENS += [b"content-length: 3\r\n", b"transfer-encoding: chunked\r\n", b"connection: close\r\n"]
TOKENS += [b"upgrade: a\r\n", b"ffffffffffffffff\r\n"]
READ = 64 * 1024


def mutated(random_: random.Random) -> bytes:
    data = bytearray(random_.choice(SEEDS))
    for _ in range(random_.randint(0, 6)):
        at = random_.randrange(len(data) + 1)
        match random_.randrange(5):
            case 0:
                data[at : at + 1] = bytes([random_.randrange(256)])
            case 1:
                del data[at : at + random_.randint(1, 20)]
            case 2:
                data[at:at] = random_.choice(TOKENS)
            case 3:
                data[at:at] = data[max(0, at - random_.randint(1, 200)) : at]
            case _:
                data[at:] = random_.choice(SEEDS)
    return bytes(data)


def pieces(random_: random.Random, data: bytes) -> list[bytes]:
    cuts = sorted(random_.randrange(len(data) + 1) for _ in range(random_.randint(0, 4)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@pytest.mark.holds("Errors", "Limits")
@pytest.mark.parametrize("num", [300, pytest.param(10_000, marks=pytest.mark.full)])
def test_mutated_requests_are_answered_or_refused(num: int, caplog: pytest.LogCaptureFixture) -> None:
    random_ = random.Random(13)
    seen: set[int] = set()

    async def test() -> None:
        server = Bare(Edge(max_bytes=60_000, max_requests=100_000).app)
        for number in range(num):
            client = server.connect()
            data = mutated(random_)
            await client.send(*pieces(random_, data))
            await turns(6)
            seen.update(client.statuses())
            assert client.num_kept <= MAX_HEAD_BYTES + READ
            assert max(client.statuses(), default=0) < 500, data
            client.transport.abort()
            if number % 100 == 0:
                await is_well(server)
        await turns(20)
        assert server.server._connections.tasks() == set()
        server.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(test())
    assert caplog.records == []
    gc.collect()
    assert [one for one in gc.get_objects() if issubclass(type(one), (HttpProtocol, Exchange))] == []
    assert seen >= {200, 400, 404, 413, 431}


async def is_well(server: Bare) -> None:
    client = server.connect()
    await client.send(POST % (b"v1/embeddings", len(BODY)) + BODY)
    await turns(20)
    assert client.statuses() == [200]
    client.transport.abort()
