"""The client over TLS: rows, certificates that are checked, deadlines and cancellation."""

import socket
import ssl
import threading

import numpy as np
import pytest

from embedline import CancellationToken, Cancelled, Client, DeadlineExceeded, RequestFailed, RequestProcessingPreference
from tests.embedline.client.stub import CLOSE, RESET, Step, http, raw, rows_of, stub, texts
from tests.server.certificates import make_pair


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The server's, and that of a client who trusts it."""
    pair = make_pair(tmp_path_factory.mktemp("certificates") / "pair")
    of_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    of_server.load_cert_chain(pair.certfile, pair.keyfile)
    return of_server, pair.trusting()


def test_rows_come_over_tls_and_connections_are_kept(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    of_server, trusting = contexts
    with stub(lambda seen: [raw(seen.texts)], of_server) as server, Client(server.url, ssl_context=trusting) as client:
        preference = RequestProcessingPreference(batch_size=7, max_concurrent_requests=2)
        assert np.array_equal(client.embed(texts(200), preference=preference).numpy(), rows_of(texts(200)))
    assert server.num_connections <= 4


def test_a_certificate_that_nobody_vouches_for_is_refused_at_once(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    with (
        stub(lambda seen: [raw(seen.texts)], contexts[0]) as server,
        Client(server.url) as client,
        pytest.raises(RequestFailed, match=r"its certificate is not trusted: self.signed certificate"),
    ):
        client.embed("text")
    assert (len(server.seen), server.num_connections) == (0, 1)


@pytest.mark.parametrize("broken", [[RESET], [CLOSE], [raw(texts(1))[:-7], CLOSE], [raw(texts(1))[:-7], RESET]])
def test_what_breaks_over_tls_is_asked_for_again(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], broken: list[Step]
) -> None:
    of_server, trusting = contexts
    script = lambda seen: broken if seen.number < 2 else [raw(seen.texts)]  # noqa: E731
    preference = RequestProcessingPreference(initial_backoff_ms=1)
    with stub(script, of_server) as server, Client(server.url, ssl_context=trusting, preference=preference) as client:
        assert np.array_equal(client.embed("text 3").numpy(), rows_of(["text 3"]))
    assert len(server.seen) == 3


def test_a_second_copy_is_sent_over_a_new_connection_too(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    """TLS has messages of its own on one: they are no answer."""
    never, (of_server, trusting) = threading.Event(), contexts
    script = lambda seen: [never] if seen.number == 0 else [raw(seen.texts)]  # noqa: E731
    preference = RequestProcessingPreference(hedge_delay=0.05, timeout_s=10, max_retries=0)
    with stub(script, of_server) as server, Client(server.url, ssl_context=trusting, preference=preference) as client:
        assert np.array_equal(client.embed("text 3").numpy(), rows_of(["text 3"]))
        never.set()


def test_an_answer_that_comes_while_the_body_is_sent_over_tls(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    of_server, trusting = contexts
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse_in_the_middle() -> None:
            accepted, _ = listener.accept()
            with of_server.wrap_socket(accepted, server_side=True) as connection:
                connection.recv(100)
                connection.sendall(http(413, b"too large"))

        server = threading.Thread(target=refuse_in_the_middle)
        server.start()
        url = f"https://localhost:{listener.getsockname()[1]}"
        preference = RequestProcessingPreference(max_retries=0)
        with (
            Client(url, ssl_context=trusting, preference=preference) as client,
            pytest.raises(RequestFailed, match=r"HTTP 413: too large|the connection broke while the request was sent"),
        ):
            client.embed("a" * (1 << 25))
        server.join()


@pytest.mark.parametrize("sent", [b"", http(200, b"", content_length="99")], ids=["no head", "no body"])
def test_waits_end_over_tls_too(contexts: tuple[ssl.SSLContext, ssl.SSLContext], sent: bytes) -> None:
    never, token = threading.Event(), CancellationToken()
    of_server, trusting = contexts
    with stub(lambda _: [sent, never], of_server) as server, Client(server.url, ssl_context=trusting) as client:
        with pytest.raises(DeadlineExceeded):
            client.embed("text", preference=RequestProcessingPreference(timeout_s=0.2, max_retries=0))
        number = len(server.seen)

        def cancel() -> None:
            server.wait_until(lambda: len(server.seen) > number)
            token.cancel()

        thread = threading.Thread(target=cancel)
        thread.start()
        with pytest.raises(Cancelled):
            client.embed("text", preference=RequestProcessingPreference(cancel_token=token))
        thread.join()
        never.set()
