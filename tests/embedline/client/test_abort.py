"""Connections that are aborted while they wait."""

import socket
import ssl
import threading

import pytest

from embedline.client.base_url import read_base_url
from embedline.client.connection import HttpConnection, Lookup
from embedline.client.failure import Failure, Kind
from tests.server_e2e.running import PATIENCE


def test_an_abort_ends_a_tls_handshake_that_nobody_answers() -> None:
    ended: list[Kind] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        origin = read_base_url(f"https://127.0.0.1:{server.getsockname()[1]}")
        connection = HttpConnection(origin, ssl.create_default_context(), Lookup(origin.host, origin.port))

        def connect() -> None:
            try:
                connection.open(600)
            except Failure as failure:
                ended.append(failure.kind)

        thread = threading.Thread(target=connect, daemon=True)
        thread.start()
        with server.accept()[0] as accepted:
            assert accepted.recv(1)  # the handshake has begun
            connection.abort(Kind.TIMEOUT)
            thread.join(PATIENCE)
            assert ended == [Kind.TIMEOUT]
    connection.close()


def test_a_body_without_a_length_that_we_cut_is_not_taken_for_whole() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        origin = read_base_url(f"http://127.0.0.1:{server.getsockname()[1]}")
        connection = HttpConnection(origin, None, Lookup(origin.host, origin.port))
        connection.open(30)
        with server.accept()[0] as accepted:
            connection.send("GET", "/", {}, None)
            accepted.sendall(b"HTTP/1.0 200 OK\r\n\r\nhalf of it")
            answer = connection.answer()
            connection.abort(Kind.TIMEOUT)
            with pytest.raises(Failure) as cut:
                answer.read_all()
            assert cut.value.kind is Kind.TIMEOUT
            answer.close()
    connection.close()
