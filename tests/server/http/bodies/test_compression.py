"""Compressed bodies and answers: whole, bounded, and refused where they are not what they say."""

import asyncio
import json
import zlib
from typing import Any

import numpy as np
import pytest

from server.http import compression
from server.http.compression import coding_of
from server.requests.errors import UnsupportedMedia
from tests.server.edge import Called, Edge, call
from tests.server.loop_share import turns_during

PATH = "/v1/embeddings"
LIMIT = 1 << 20
BODY = json.dumps({"input": ["ab", "c"]}).encode()
PADDED = BODY[:-1] + b" " * 300_000 + b"}"  # several pieces, and no more text


def gzipped(data: bytes) -> bytes:
    return zlib.compress(data, wbits=31)


def zstd_compressed(data: bytes) -> bytes:
    return bytes(pytest.importorskip("backports.zstd").compress(data))


CODINGS: Any = {"gzip": gzipped, "x-gzip": gzipped, "GZIP": gzipped, "zstd": zstd_compressed}


def ask(body: bytes, coding: str = "", *, compress_answers: bool = False, **headers: str) -> Called:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if coding:
        named["content-encoding"] = coding

    async def run() -> Called:
        edge = Edge(max_bytes=LIMIT, compress_answers=compress_answers)
        rows = np.random.default_rng(0).standard_normal((2, 8), np.float32)
        edge.managers.rows = np.tile(rows, (1, 100))
        called = await call(edge.app, "POST", PATH, body, named)
        assert edge.shared.bodies._open.num_bytes == 0  # all is given back
        return called

    return asyncio.run(run())


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("body", [BODY, PADDED])
def test_a_compressed_body_is_read(coding: str, body: bytes) -> None:
    called = ask(CODINGS[coding](body), coding)
    assert (called.status, len(json.loads(called.body)["data"])) == (200, 2)


@pytest.mark.parametrize("coding", CODINGS)
def test_parts_that_follow_each_other_are_one_body(coding: str) -> None:
    parts = [CODINGS[coding](part) for part in (BODY[:5], b"", BODY[5:6], BODY[6:])]
    assert ask(b"".join(parts), coding).status == 200


def test_zeros_behind_a_gzip_are_padding() -> None:
    assert ask(gzipped(BODY[:5]) + bytes(3) + gzipped(BODY[5:]) + bytes(200_000), "gzip").status == 200
    assert ask(gzipped(BODY) + bytes(9) + b"behind", "gzip").status == 400


@pytest.mark.holds("Limits")
@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_a_body_that_expands_past_the_limit_is_413(coding: str) -> None:
    called = ask(CODINGS[coding](BODY[:-1] + b" " * LIMIT + b"}"), coding)
    assert (called.status, called.error()["code"]) == (413, "payload_too_large")
    fits = BODY[:-1] + b" " * (LIMIT - len(BODY)) + b"}"
    assert ask(CODINGS[coding](fits), coding).status == 200


@pytest.mark.holds("Limits")
def test_a_bomb_is_never_expanded_further_than_the_limit() -> None:
    """A gigabyte in a megabyte."""
    edge_bytes = 0
    bomb = gzipped(bytes(1 << 24)) * 64

    async def run() -> None:
        nonlocal edge_bytes
        async for piece in compression.decompressed(bomb, b"gzip"):
            edge_bytes = max(edge_bytes, len(piece))
            if edge_bytes:
                break

    asyncio.run(run())
    assert edge_bytes <= 256 * 1024
    assert ask(bomb[: LIMIT // 2], "gzip").status == 413


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize("coding", ["gzip", "zstd"])
@pytest.mark.parametrize("change", ["cut", "nonsense", "behind", "flipped", "empty"])
def test_what_is_not_compressed_as_it_says_is_refused(coding: str, change: str) -> None:
    good = CODINGS[coding](BODY)
    wrong = {
        "cut": good[:-3],
        "nonsense": BODY,
        "behind": good + b"nonsense",
        "flipped": good[:12] + bytes((good[12] ^ 255,)) + good[13:],
        "empty": b"",
    }[change]
    called = ask(wrong, coding)
    assert called.status == 400, called.body
    assert coding in called.error()["message"] or change == "flipped"


def test_very_many_parts_are_refused() -> None:
    assert ask(gzipped(BODY) + gzipped(b"") * 2000, "gzip").status == 400


def test_a_window_that_takes_much_memory_is_refused() -> None:
    zstd = pytest.importorskip("backports.zstd")
    large = {zstd.CompressionParameter.window_log: 27, zstd.CompressionParameter.content_size_flag: 0}
    encoder = zstd.ZstdCompressor(options=large)
    data = encoder.compress(BODY) + encoder.flush()
    assert ask(data, "zstd").status == 400


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize("coding", ["br", "deflate", "identity, gzip", "gzip, zstd", "", "\xff"])
def test_other_codings_are_415(coding: str) -> None:
    with pytest.raises(UnsupportedMedia, match="gzip"):
        coding_of({b"content-encoding": coding.encode("latin-1")})
    if coding:
        assert ask(BODY, coding.encode().decode("latin-1")).status == 415


def test_a_body_without_compression_needs_no_header() -> None:
    assert coding_of({}) is coding_of({b"content-encoding": b"Identity"}) is None


def test_others_get_their_turn_during_a_large_body() -> None:
    data = gzipped(np.random.default_rng(0).standard_normal(1 << 18).tobytes())

    async def run() -> None:
        async for _ in compression.decompressed(data, b"gzip"):
            pass

    assert turns_during(run()) >= 3


def expanded(called: Called) -> Any:
    match called.headers.get("content-encoding"):
        case "gzip":
            return json.loads(zlib.decompress(called.body, 31))
        case "zstd":
            return json.loads(pytest.importorskip("backports.zstd").decompress(called.body))
        case _:
            return json.loads(called.body)


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        ("gzip, deflate", "gzip"),
        ("zstd", "zstd"),
        ("gzip, deflate, br, zstd", "zstd"),
        ("zstd;q=0.5, gzip", "gzip"),
        ("gzip;q=0", None),
        ("br", None),
        ("identity", None),
        ("", None),
    ],
)
def test_answers_in_json_are_compressed_where_that_is_asked_for(accepted: str, coding: str | None) -> None:
    if coding == "zstd":
        pytest.importorskip("backports.zstd")
    plain = ask(BODY)
    called = ask(BODY, compress_answers=True, accept_encoding=accepted)

    assert called.headers.get("content-encoding") == coding
    assert called.headers.get("vary") == ("accept-encoding" if coding else None)
    assert called.headers["content-length"] == str(len(called.body))
    assert expanded(called)["data"] == json.loads(plain.body)["data"]
    assert (len(called.body) < len(plain.body)) is (coding is not None)


@pytest.mark.parametrize("accept", ["application/octet-stream", "application/msgpack", "application/x-npy"])
def test_numbers_in_bytes_are_never_compressed(accept: str) -> None:
    called = ask(BODY, compress_answers=True, accept_encoding="gzip", accept=accept)
    assert (called.headers["content-type"], called.headers.get("content-encoding")) == (accept, None)


def test_short_answers_are_never_compressed_and_without_the_flag_none_is() -> None:
    assert "content-encoding" not in ask(BODY, accept_encoding="gzip, br, zstd").headers
    assert "content-encoding" not in ask(b"{}", compress_answers=True, accept_encoding="gzip").headers
