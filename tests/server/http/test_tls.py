"""TLS around the HTTP server: what is answered, and certificates that are replaced, half replaced and broken."""

import asyncio
import contextlib
import os
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from server.dialects.answers import Answer
from server.http import server
from server.http.app import send_answer
from server.http.body import Receive, Scope, Send
from server.http.server import HttpServer
from server.http.tls import Certificate, copied, load
from server.settings import files
from server.settings.flag import SettingsError
from tests.server.certificates import Pair, make_pair, openssl
from tests.server_e2e.running import PATIENCE

pytestmark = pytest.mark.both_loops

LARGE = b"x" * 24_000_000  # more than the kernel keeps for a client that does not read


class App:
    """Answers with the scheme, or with much at /large."""

    def __init__(self) -> None:
        self.num_unread_answers = 0  # large ones

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_large = scope["path"] == "/large"
        body = LARGE if is_large else scope["scheme"].encode()
        self.num_unread_answers += is_large
        await send_answer(send, Answer(200, [(b"content-length", b"%d" % len(body))], body))
        self.num_unread_answers -= is_large


class Running:
    """A server with a certificate, on a free port."""

    def __init__(self, pair: Pair, *, copies: Sequence[int] = (), max_connections: int = sys.maxsize) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = listener.getsockname()[1]
        self.certificate = Certificate(str(pair.certfile), str(pair.keyfile), copies=copies)
        self.app = App()
        self.server = HttpServer(self.app, [listener], certificate=self.certificate, max_connections=max_connections)

    async def connect(self, trusted: Pair) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=trusted.trusting())

    async def shown(self) -> bytes:
        """The certificate that a new connection gets."""
        blind = ssl.create_default_context()
        blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
        _, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=blind)
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        await close(writer)
        assert isinstance(certificate, bytes)
        return certificate


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        await writer.wait_closed()


async def get(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str = "/") -> bytes:
    writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    assert head.startswith(b"http/1.1 200 ")
    return await reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r\n")[0]))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Pair, Pair]:
    folder = tmp_path_factory.mktemp("certificates")
    return make_pair(folder / "first"), make_pair(folder / "second")


@pytest.fixture
def used(pairs: tuple[Pair, Pair], tmp_path: Path) -> Pair:
    """The files that a server reads: at first those of the first pair."""
    used = Pair(tmp_path / "certificate.pem", tmp_path / "key.pem")
    pairs[0].copy_to(used)
    return used


@pytest.fixture
async def running(used: Pair, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    """It looks at its files at each handshake."""
    monkeypatch.setattr(files, "LOOK_SECONDS", 0)
    started = Running(used)
    await started.server.start()
    yield started
    await started.server.stop(5)


@pytest.mark.holds("TLS")
async def test_requests_over_tls(running: Running, used: Pair) -> None:
    reader, writer = await running.connect(used)
    session = writer.get_extra_info("ssl_object")
    assert session.version() in ("TLSv1.2", "TLSv1.3")
    assert [await get(reader, writer) for _ in range(2)] == [b"https"] * 2
    assert await get(reader, writer, "/large") == LARGE
    await close(writer)


@pytest.mark.holds("TLS", "Limits")
async def test_an_answer_that_is_not_read_counts_until_it_is(running: Running, used: Pair) -> None:
    """TLS encrypts what it is given, and what is encrypted waits where nobody counts it."""
    reader, writer = await running.connect(used)
    writer.transport.pause_reading()  # type: ignore[attr-defined]  # a stream's transport reads, too
    asking = asyncio.create_task(get(reader, writer, "/large"))
    other = await running.connect(used)
    for _ in range(50):
        assert await get(*other) == b"https"
    assert running.app.num_unread_answers == 1

    writer.transport.resume_reading()  # type: ignore[attr-defined]
    assert await asking == LARGE
    assert await get(*other) == b"https"
    assert running.app.num_unread_answers == 0
    await close(writer)
    await close(other[1])


@pytest.mark.holds("TLS")
async def test_a_new_certificate_is_for_new_connections(running: Running, used: Pair, pairs: tuple[Pair, Pair]) -> None:
    reader, writer = await running.connect(pairs[0])
    pairs[1].copy_to(used)

    assert await running.shown() == pairs[1].der
    assert await get(reader, writer) == b"https"
    newer = await running.connect(pairs[1])
    assert await get(*newer) == b"https"
    await close(writer)
    await close(newer[1])


@pytest.mark.holds("TLS")
async def test_a_certificate_whose_key_does_not_fit_yet(
    running: Running, used: Pair, pairs: tuple[Pair, Pair], caplog: pytest.LogCaptureFixture
) -> None:
    used.certfile.write_bytes(pairs[1].certfile.read_bytes())
    assert [await running.shown() for _ in range(3)] == [pairs[0].der] * 3
    used.keyfile.write_bytes(pairs[1].keyfile.read_bytes())
    assert await running.shown() == pairs[1].der
    await running.server.stop(5)
    (record,) = caplog.records
    assert record.getMessage().startswith("--ssl-certfile and --ssl-keyfile: ")
    assert record.getMessage().endswith("; the certificate that was read before stays")


@pytest.mark.holds("TLS")
async def test_a_process_that_starts_while_they_do_not_fit_shows_the_first_ones(
    running: Running, used: Pair, pairs: tuple[Pair, Pair]
) -> None:
    copies = copied(str(used.certfile), str(used.keyfile))
    used.certfile.write_bytes(pairs[1].certfile.read_bytes())
    restarted = Running(used, copies=copies)
    await restarted.server.start()
    assert [await restarted.shown() for _ in range(2)] == [pairs[0].der] * 2
    used.keyfile.write_bytes(pairs[1].keyfile.read_bytes())
    assert await restarted.shown() == pairs[1].der
    await restarted.server.stop(5)


@pytest.mark.holds("TLS")
@pytest.mark.parametrize("content", [b"", b"no certificate", None])
async def test_files_that_are_broken_or_gone(
    running: Running, used: Pair, pairs: tuple[Pair, Pair], content: bytes | None
) -> None:
    for file in (used.certfile, used.keyfile):
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)
        assert await running.shown() == pairs[0].der
    pairs[1].copy_to(used)
    assert await running.shown() == pairs[1].der


@pytest.mark.holds("TLS")
@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n", b"\x16\x03\x01" + b"\xff" * 500])
async def test_what_is_no_handshake_is_closed(
    running: Running, used: Pair, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(sent)
    with contextlib.suppress(ConnectionError):
        assert b"HTTP" not in await reader.read()
    await close(writer)
    usual = await running.connect(used)
    assert await get(*usual) == b"https"
    await close(usual[1])
    await running.server.stop(5)
    assert caplog.records == []


@pytest.mark.holds("TLS")
async def test_who_says_nothing_is_closed_after_a_while(
    used: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "_HANDSHAKE_SECONDS", 0.05)
    running = Running(used)
    await running.server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    assert await reader.read() == b""
    await close(writer)
    await running.server.stop(5)
    assert caplog.records == []


@pytest.mark.holds("TLS", "Limits")
async def test_handshakes_count_as_connections(running: Running, used: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that connect and say nothing can't take all descriptors."""
    monkeypatch.setattr(server, "_HANDSHAKE_SECONDS", 1000)
    limited = Running(used, max_connections=3)
    await limited.server.start()
    silent = [await asyncio.open_connection("127.0.0.1", limited.port) for _ in range(3)]
    usual = await limited.connect(used)
    with contextlib.suppress(ConnectionError):
        assert await silent[0][0].read() == b""
    assert await get(*usual) == b"https"
    for _, writer in [*silent, usual]:
        await close(writer)
    await limited.server.stop(5)


@pytest.mark.holds("TLS", "Shutdown", "A connection that was established is answered")
async def test_a_handshake_under_way_at_the_stop_is_finished_and_its_request_answered(
    running: Running, used: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_LAST_HANDSHAKE_SECONDS", PATIENCE)
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    while not running.server._connections:  # noqa: ASYNC110 - until it is accepted
        await asyncio.sleep(0)
    stopping = asyncio.create_task(running.server.stop(PATIENCE))
    await asyncio.sleep(0)
    await writer.start_tls(used.trusting(), server_hostname="127.0.0.1")
    assert await get(reader, writer) == b"https"
    assert await reader.read() == b""
    await stopping
    await close(writer)


@pytest.mark.holds("TLS", "Shutdown")
async def test_a_handshake_that_does_not_end_holds_up_no_stop(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_HANDSHAKE_SECONDS", 1000)
    monkeypatch.setattr(server, "_LAST_HANDSHAKE_SECONDS", 0.01)
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    while not running.server._connections._by_age:  # noqa: ASYNC110 - until it is accepted
        await asyncio.sleep(0)
    await asyncio.wait_for(running.server.stop(1000), PATIENCE)
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    await close(writer)


def test_old_protocols_and_renegotiation_are_off(used: Pair) -> None:
    context = load(str(used.certfile), str(used.keyfile))

    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION


@pytest.mark.holds("TLS")
def test_the_key_may_be_in_the_same_file(used: Pair, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(used.keyfile.read_bytes() + used.certfile.read_bytes())

    copies = copied(str(both), None)
    with pytest.raises(SettingsError, match=r"^--ssl-certfile: "):
        load(str(used.certfile), None)
    with pytest.raises(SettingsError):
        Certificate(str(used.certfile), None)
    Certificate(str(used.certfile), None, copies=copies)


@pytest.mark.holds("TLS")
def test_what_can_not_be_used_names_the_flag(used: Pair, pairs: tuple[Pair, Pair], tmp_path: Path) -> None:
    encrypted = tmp_path / "encrypted.pem"
    openssl("pkey", "-in", str(used.keyfile), "-aes256", "-passout", "pass:sesame", "-out", str(encrypted))

    def refusal(certfile: Path, keyfile: Path) -> str:
        with pytest.raises(SettingsError) as refused:
            load(str(certfile), str(keyfile))
        return str(refused.value)

    assert refusal(tmp_path / "none", used.keyfile) == "--ssl-certfile can't be read: No such file or directory"
    assert refusal(used.certfile, tmp_path) == "--ssl-keyfile can't be read: Is a directory"
    os.mkfifo(tmp_path / "pipe")
    assert refusal(tmp_path / "pipe", used.keyfile) == "--ssl-certfile is a pipe; it must be a file"
    assert refusal(used.certfile, encrypted).startswith("--ssl-keyfile is encrypted")
    assert refusal(used.certfile, pairs[1].keyfile).startswith("--ssl-certfile and --ssl-keyfile: ")
