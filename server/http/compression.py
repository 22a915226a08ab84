"""gzip and zstd: bodies that come compressed, and answers that leave so. Both are done in slices.

zstd needs Python 3.14 or the package backports.zstd, which has the same interface; without both only gzip is known.
"""

import re
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Protocol

from server.dialects.answers import Answer
from server.requests.errors import MalformedBody, UnsupportedMedia
from server.requests.limits import TimeSlice

try:
    from compression import zstd
except ModuleNotFoundError:
    try:
        from backports import zstd
    except ModuleNotFoundError:
        zstd = None

_STEP_BYTES = 64 * 1024  # of compressed data at once, or of an answer; gzip takes about a millisecond for it
_PIECE_BYTES = 256 * 1024  # of decompressed data at once
_MAX_PARTS = 1000  # that follow each other in one body, each compressed alone
_MAX_WINDOW_LOG = 23  # 8 MiB, the most that RFC 9659 allows for zstd in HTTP; it is held in memory
_MIN_ANSWER_BYTES = 1024  # a shorter one fits into a packet or two as it is
_WEIGHT = re.compile(rb"\s*q=([01](?:\.\d{0,3})?)\s*")
_FASTEST = 1  # higher levels make floats hardly smaller
_GZIP_FORMAT = 31  # zlib's number for it, with the largest window


class _Decoder(Protocol):
    """Decompresses one part, as in bz2, lzma and zstd."""

    def decompress(self, data: bytes, max_length: int) -> bytes: ...

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...


class _GzipDecoder:
    """zlib's, made like the others."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(_GZIP_FORMAT)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def needs_input(self) -> bool:
        return not self._zlib.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data


def _zstd_decoder() -> Any:
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _MAX_WINDOW_LOG})


_DECODERS: dict[bytes, Callable[[], _Decoder]] = {b"gzip": _GzipDecoder, b"x-gzip": _GzipDecoder}
_ENCODERS: dict[bytes, Callable[[], Any]] = {b"gzip": lambda: zlib.compressobj(_FASTEST, wbits=_GZIP_FORMAT)}
_ERRORS: tuple[type[Exception], ...] = (zlib.error,)
if zstd is not None:
    _DECODERS[b"zstd"] = _zstd_decoder
    _ENCODERS = {b"zstd": lambda: zstd.ZstdCompressor(_FASTEST), **_ENCODERS}
    _ERRORS = (zlib.error, zstd.ZstdError)


def coding_of(headers: Mapping[bytes, bytes]) -> bytes | None:
    """The coding by which a body is compressed; None if it is not. Raises UnsupportedMedia."""
    coding = headers.get(b"content-encoding")
    if coding is None or (coding := coding.lower()) == b"identity":
        return None
    if coding not in _DECODERS:
        known = ", ".join(name.decode() for name in _DECODERS)
        raise UnsupportedMedia(f"content-encoding must be one of {known}, or be left out", param="content-encoding")
    return coding


async def decompressed(body: bytes, coding: bytes) -> AsyncIterator[bytes]:
    """The pieces of a compressed body. Raises MalformedBody."""
    time_slice = TimeSlice()
    for piece in _pieces(body, coding):
        yield piece
        await time_slice.end_if_over()


def _pieces(body: bytes, coding: bytes) -> Iterator[bytes]:
    decoder, num_parts = _DECODERS[coding](), 1
    try:
        for start in range(0, len(body), _STEP_BYTES):
            data = body[start : start + _STEP_BYTES]
            while data:
                if decoder.eof:
                    data = data.lstrip(b"\0") if coding != b"zstd" else data  # gzip may be padded with zeros
                    if not data:
                        break
                    decoder, num_parts = _DECODERS[coding](), num_parts + 1
                yield decoder.decompress(data, _PIECE_BYTES)
                while not (decoder.eof or decoder.needs_input):
                    yield decoder.decompress(b"", _PIECE_BYTES)
                data = decoder.unused_data if decoder.eof else b""
                if num_parts > _MAX_PARTS:
                    raise MalformedBody(f"the body has more than {_MAX_PARTS} parts that are compressed each alone")
    except _ERRORS:
        raise MalformedBody(f"the body is not valid {coding.decode()}") from None
    if not decoder.eof:
        raise MalformedBody(f"the body ends before its {coding.decode()} does")


async def compressed(answer: Answer, accept_encoding: bytes) -> Answer:
    """A long answer in JSON as the client reads it best. Others stay as they are: numbers in bytes hardly shrink."""
    coding = _accepted(accept_encoding)
    is_json = (b"content-type", b"application/json") in answer.headers
    if coding is None or not is_json or len(answer.body) < _MIN_ANSWER_BYTES:
        return answer
    encoder, out, time_slice = _ENCODERS[coding](), bytearray(), TimeSlice()
    body = memoryview(answer.body)
    for start in range(0, len(body), _STEP_BYTES):
        out += encoder.compress(body[start : start + _STEP_BYTES])
        await time_slice.end_if_over()
    out += encoder.flush()
    more = [(b"content-encoding", coding), (b"vary", b"accept-encoding")]
    return Answer(answer.status, [*answer.headers, *more], out)


@lru_cache(maxsize=64)
def _accepted(accept_encoding: bytes) -> bytes | None:
    """The known coding that an answer may have: the one with the highest weight, of several the first known."""
    named = dict(weights(accept_encoding))
    best = max(_ENCODERS, key=lambda name: named.get(name, 0.0))
    return best if named.get(best, 0.0) > 0 else None


def weights(value: bytes) -> Iterator[tuple[bytes, float]]:
    """The names of a header in lower case, each with its weight; 0 where the weight is nonsense."""
    for item in value.lower().split(b","):
        name, *parameters = item.split(b";")
        weight = 1.0
        for parameter in parameters:
            if parameter.lstrip().startswith(b"q="):
                number = _WEIGHT.fullmatch(parameter)
                weight = float(number[1]) if number else 0.0
        yield name.strip(), weight
