"""Frames are cut right however the bytes come, and strangers are refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wire import frames
from wire.frames import FrameParser, ProtocolError

KIND = 0x0777


def parse(stream: bytes, sizes: list[int]) -> list[tuple[int, int, bytes]]:
    """Feed a stream in chunks of the given sizes, over and over, and gather what comes out."""
    delivered: list[tuple[int, int, bytes]] = []
    parser = FrameParser(lambda kind, frame_id, payload: delivered.append((kind, frame_id, bytes(payload))))
    turn = 0
    while stream:
        room = parser.writable()
        num_bytes = min(len(room), len(stream), sizes[turn % len(sizes)])
        turn += 1
        room[:num_bytes] = stream[:num_bytes]
        stream = stream[num_bytes:]
        parser.advance(num_bytes)
    return delivered


def stream_of(payloads: list[bytes]) -> bytes:
    parts = frames.hello()
    for index, payload in enumerate(payloads):
        parts += frames.frame(KIND, index, [payload])
    return b"".join(parts)


@pytest.mark.holds("A frame arrives whole or not at all")
@settings(max_examples=60, deadline=None)
@given(
    payloads=st.lists(st.binary(max_size=300), max_size=8),
    sizes=st.lists(st.integers(1, 200), min_size=1, max_size=5),
)
def test_frames_are_the_same_however_they_are_cut(payloads: list[bytes], sizes: list[int]) -> None:
    expected = [(KIND, index, payload) for index, payload in enumerate(payloads)]

    assert parse(stream_of(payloads), sizes) == expected


@pytest.mark.parametrize("size", [256 * 1024 - 17, 256 * 1024 - 16, 256 * 1024 - 15, 256 * 1024, 3_000_001])
def test_payloads_around_and_over_the_receive_buffer(size: int) -> None:
    payloads = [b"a" * 10, bytes(range(256)) * (size // 256) + b"z" * (size % 256), b"", b"b" * 70_000]

    assert [payload for _, _, payload in parse(stream_of(payloads), [65_536, 1, 100_000])] == payloads


@pytest.mark.holds("Unknown peers and other versions are disconnected")
def test_a_stranger_is_refused() -> None:
    with pytest.raises(ProtocolError, match="not a handshake"):
        parse(b"".join(frames.frame(KIND, 0, [b"GET / HT"])), [1000])


@pytest.mark.holds("Unknown peers and other versions are disconnected")
@pytest.mark.parametrize("version", [frames.VERSION - 1, frames.VERSION + 1])
def test_another_version_is_refused(version: int) -> None:
    hello = bytearray(b"".join(frames.hello()))
    hello[frames.HEADER.size + 4] = version

    with pytest.raises(ProtocolError, match=f"version {version}"):
        parse(bytes(hello), [1000])


@pytest.mark.holds("Unknown peers and other versions are disconnected")
def test_an_absurd_length_is_refused_before_it_is_allocated() -> None:
    header = frames.HEADER.pack(frames.MAX_PAYLOAD + 1, KIND, 0, 0)

    with pytest.raises(ProtocolError, match="over the limit"):
        parse(b"".join(frames.hello()) + header, [1000])


def test_what_is_too_large_to_send_is_not_the_peers_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_PAYLOAD", 10)

    assert b"".join(frames.frame(KIND, 0, [b"12345", b"12345"])).endswith(b"1234512345")
    with pytest.raises(frames.PayloadTooLarge) as refused:
        frames.frame(KIND, 0, [b"12345", b"123456"])
    assert not isinstance(refused.value, ProtocolError)


def test_empty_parts_are_left_out() -> None:
    """asyncio's `writelines` keeps an empty buffer at the end for ever, and the connection never closes."""
    large = bytes(32768)
    assert frames.frame(KIND, 1, [b"", large, memoryview(b""), b"c", b""])[1:] == [large, b"c"]
