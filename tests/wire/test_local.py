"""Connections within one process behave as those over a socket."""

import asyncio

import pytest

from wire import local
from wire.connection import Connection
from wire.frames import Buffer, PayloadTooLarge
from wire.local import LocalLink, LocalService


class Service:
    """Notes what comes, and answers each frame with its payload backwards."""

    def __init__(self) -> None:
        self.made: list[Connection] = []
        self.lost: list[Connection] = []
        self.came: list[int] = []

    def received(self, connection: Connection, kind: int, frame_id: int, payload: memoryview) -> None:
        self.came.append(frame_id)
        connection.send(kind, frame_id, [bytes(payload)[::-1]])

    def local(self) -> LocalService:
        return LocalService(self.received, self.made.append, self.lost.append)


class Peer:
    """A link, and what it was told."""

    def __init__(self, service: LocalService) -> None:
        self.told: list[str] = []
        self.came: list[tuple[int, int, bytes]] = []
        self.link: LocalLink = service.link(
            on_frame=lambda kind, frame_id, payload: self.came.append((kind, frame_id, bytes(payload))),
            on_up=lambda: self.told.append("up"),
            on_down=lambda: self.told.append("down"),
        )


async def ticks() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


async def test_frames_arrive_in_order_in_a_later_tick_and_are_answered() -> None:
    service = Service()
    peer = Peer(service.local())
    peer.link.send(7, 0, [b"too early"])
    peer.link.open()
    await ticks()
    assert peer.told == ["up"]
    assert len(service.made) == 1
    assert peer.link.is_up
    payloads: list[list[Buffer]] = [[], [b"ab"], [b"ab", memoryview(b"cd")]]
    for number, parts in enumerate(payloads, start=1):
        peer.link.send(7, number, parts)
    assert not service.came
    await ticks()
    assert service.came == [1, 2, 3]
    assert peer.came == [(7, 1, b""), (7, 2, b"ba"), (7, 3, b"dcba")]


async def test_what_was_sent_before_a_peer_closes_still_arrives_and_nothing_comes_back() -> None:
    service = Service()
    peer = Peer(service.local())
    peer.link.open()
    await ticks()
    peer.link.send(7, 1, [b"ab"])
    peer.link.close()
    await ticks()
    assert service.came == [1]
    assert service.lost == service.made
    assert not peer.came
    assert peer.told == ["up"]
    assert not peer.link.is_up


async def test_what_was_answered_before_a_service_closes_still_arrives() -> None:
    service = Service()
    peer = Peer(service.local())
    peer.link.open()
    await ticks()
    service.made[0].send(9, 1, [b"last"])
    service.made[0].close()
    await ticks()
    assert peer.came == [(9, 1, b"last")]
    assert peer.told == ["up", "down"]
    assert service.lost == service.made


async def test_a_link_that_is_closed_before_it_opened_stays_closed() -> None:
    service = Service()
    peer = Peer(service.local())
    peer.link.open()
    peer.link.close()
    await ticks()
    assert not service.made
    assert not peer.told


async def test_a_payload_beyond_a_frame_is_refused_to_its_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "MAX_PAYLOAD", 3)
    peer = Peer(Service().local())
    peer.link.open()
    await ticks()
    with pytest.raises(PayloadTooLarge, match="4 bytes"):
        peer.link.send(7, 1, [b"abcd"])


async def test_a_peer_whose_callback_fails_begins_anew_and_gets_nothing_of_before() -> None:
    """As over a socket: it sends again what it has no answer for, which would else wait for ever."""
    service, failed = Service(), list[object]()
    peer = Peer(service.local())
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context["exception"]))
    peer.link.open()
    await ticks()
    came, peer.came = peer.came, None  # type: ignore[assignment]  # so its callback fails
    peer.link.send(7, 1, [b"ab"])
    peer.link.send(7, 2, [b"ab"])
    await asyncio.sleep(0)
    service.made[0].send(7, 9, [b"of before"])
    await asyncio.sleep(0)
    peer.came = came
    await ticks()
    service.made[0].send(7, 9, [b"of before"])
    service.made[0].close()
    peer.link.send(7, 3, [b"ab"])
    await ticks()
    assert [type(error) for error in failed] == [AttributeError]
    assert peer.told == ["up", "down", "up"]
    assert (len(service.made), service.lost) == (2, service.made[:1])
    assert peer.came == [(7, 3, b"ba")]
