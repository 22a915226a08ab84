"""The addresses that a webhook may go to. Whoever sends a request chooses its URL, so it must not lead into the
server's own network.

Names prove nothing: what counts is the very address that is connected to, after DNS, at every attempt and at every
redirect. So `CheckedNetwork` resolves, checks and connects in one step, and nothing resolves a second time.
"""

import asyncio
import contextlib
import re
import socket
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import SplitResult, urlsplit

from httpcore import SOCKET_OPTION, AnyIOBackend, AsyncNetworkBackend, AsyncNetworkStream, ConnectError

MAX_URL_CHARACTERS = 2048
# The characters that a URL is written with. Others are read differently by different parsers.
_URL = re.compile(r"[A-Za-z0-9\-._~:/?\[\]@!$&'()*+,;=%]+")
_PORTS = {"http": 80, "https": 443}
_FIRST_FREE_PORT = 1024  # below it are the ports of other services
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
# Public by their numbers, but not everywhere or not for all Pythons: protocols and clouds' services for the machine
# that asks (Oracle's is in the first, Azure's is the second).
_NOT_PUBLIC = (IPv4Network("192.0.0.0/24"), IPv4Network("168.63.129.16/32"))
# Behind these prefixes a router may reach any v4 address.
_NAT64 = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
_MAX_LOOKUPS = 128  # at a time: several times as many as are waited for


class AddressRefused(ValueError):
    """The URL of a webhook is not allowed here. The message never repeats it."""


@dataclass(frozen=True, slots=True)
class AddressRules:
    """The addresses that are allowed.

    allows_private  addresses of private networks and of this machine, http to this machine, and all ports
    """

    allows_private: bool = False

    def check_url(self, url: str) -> SplitResult:
        """The parts of a URL that may be tried; its addresses are checked when it is connected to.

        Raises AddressRefused.
        """
        if len(url) > MAX_URL_CHARACTERS:
            raise AddressRefused(f"a webhook's URL may have {MAX_URL_CHARACTERS} characters")
        if not _URL.fullmatch(url):
            raise AddressRefused("a webhook's URL may have only the characters that URLs are written with, in ASCII")
        try:
            parts = urlsplit(url)
            port = parts.port if parts.port is not None else _PORTS.get(parts.scheme, 0)
        except ValueError:
            raise AddressRefused("a webhook's URL can't be read") from None
        if parts.scheme not in _PORTS or not parts.hostname:
            raise AddressRefused("a webhook's URL must begin with https:// and name a host")
        if parts.username is not None or parts.password is not None:
            raise AddressRefused("a webhook's URL may not have a user or a password in it")
        if parts.scheme == "http" and not (self.allows_private and parts.hostname in _LOCAL_NAMES):
            raise AddressRefused("a webhook's URL must begin with https://")
        if port < _FIRST_FREE_PORT and port not in _PORTS.values() and not self.allows_private:
            raise AddressRefused(f"a webhook's port must be 443, 80, or at least {_FIRST_FREE_PORT}")
        return parts

    def allows(self, address: IPv4Address | IPv6Address) -> bool:
        return self.allows_private or is_public(address)


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether an address is one of the open internet, also behind the ways to write a v4 address as a v6 one."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is not None:
            return is_public(inner)
        if address.teredo is not None or address.is_site_local or any(address in network for network in _NAT64):
            return False
    elif any(address in network for network in _NOT_PUBLIC):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


class Resolver:
    """Looks up hosts in threads of its own.

    A name server that never answers holds a lookup for up to a minute, and nothing can cut it. The loop's own lookups
    share a few threads, so some such names would hold up all others; and the end of the process would wait for them.
    `most` bounds the lookups that have not ended, also those that nobody waits for any more.
    """

    def __init__(self, most: int = _MAX_LOOKUPS) -> None:
        self._free = asyncio.Semaphore(most)

    async def addresses(self, host: str, port: int) -> list[str]:
        """The addresses of a host, each once, in the system's order. Raises OSError, UnicodeError."""
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        found: Future[list[str]] = Future()
        found.set_running_or_notify_cancel()  # it ends with the lookup, whoever waits for it

        def look_up() -> None:
            try:
                entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                found.set_result(list(dict.fromkeys(str(entry[4][0]) for entry in entries)))
            except (OSError, UnicodeError) as error:
                found.set_exception(error)
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                loop.call_soon_threadsafe(self._free.release)

        threading.Thread(target=look_up, name="webhook-lookup", daemon=True).start()
        return await asyncio.wrap_future(found)


class CheckedNetwork(AsyncNetworkBackend):
    """Opens TCP connections for httpcore, to allowed addresses alone."""

    def __init__(self, rules: AddressRules) -> None:
        self._rules = rules
        self._network = AnyIOBackend()
        self._resolver = Resolver()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109, httpcore's name
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> AsyncNetworkStream:
        """Connects to the first allowed address that answers. Raises AddressRefused, ConnectError, ConnectTimeout."""
        found = await self._resolved(host, port)
        allowed = [address for address in found if self._rules.allows(address)]
        if not allowed:
            raise AddressRefused("a webhook's host has no address that is allowed")
        failed: ConnectError | None = None
        for address in allowed:
            try:
                return await self._network.connect_tcp(str(address), port, timeout, local_address, socket_options)
            except ConnectError as error:
                failed = error
        assert failed is not None
        raise failed

    async def _resolved(self, host: str, port: int) -> list[IPv4Address | IPv6Address]:
        """The addresses of a host, each once. Raises ConnectError, AddressRefused."""
        try:
            names = await self._resolver.addresses(host, port)
        except (OSError, UnicodeError):
            raise ConnectError("a webhook's host has no address") from None
        if any("%" in name for name in names):
            raise AddressRefused("a webhook's host may not be an address of one network interface")
        return [ip_address(name) for name in names]
