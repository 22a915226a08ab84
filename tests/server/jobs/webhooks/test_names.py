"""Lookups of names, with name servers that never answer."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from server.features.jobs.webhook_addresses import Resolver
from tests.batch_manager.peers import until

PORT = 443


class NameServers:
    """Those of `silent.example` answer when they may; `broken.example` is no name."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.asked: list[str] = []

    def getaddrinfo(self, host: str, port: int, **more: Any) -> Any:
        self.asked.append(host)
        if host == "silent.example":
            self.may_answer.wait()
        if host == "broken.example":
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", port))] * 2


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServers]:
    names = NameServers()
    monkeypatch.setattr(socket, "getaddrinfo", names.getaddrinfo)
    yield names
    names.may_answer.set()


async def test_an_address_is_given_once_and_an_error_as_it_is(names: NameServers) -> None:
    assert await Resolver().addresses("well.example", PORT) == ["192.0.2.1"]
    with pytest.raises(socket.gaierror):
        await Resolver().addresses("broken.example", PORT)


async def test_silent_name_servers_hold_up_neither_other_names_nor_the_end(names: NameServers) -> None:
    resolver = Resolver()
    silent = [asyncio.create_task(resolver.addresses("silent.example", PORT)) for _ in range(50)]
    await until(lambda: len(names.asked) == 50)
    assert await resolver.addresses("well.example", PORT) == ["192.0.2.1"]
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "webhook-lookup")
    names.may_answer.set()
    assert await asyncio.gather(*silent) == [["192.0.2.1"]] * 50


async def test_a_lookup_that_nobody_waits_for_keeps_its_place_to_its_end(names: NameServers) -> None:
    resolver = Resolver(most=1)
    silent = asyncio.create_task(resolver.addresses("silent.example", PORT))
    await until(lambda: len(names.asked) == 1)
    silent.cancel()
    waiting = asyncio.create_task(resolver.addresses("well.example", PORT))
    await asyncio.wait([silent])
    assert names.asked == ["silent.example"]
    names.may_answer.set()
    assert await waiting == ["192.0.2.1"]
