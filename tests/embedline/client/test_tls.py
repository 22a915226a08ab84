"""The client over TLS: rows, certificates that are checked, deadlines and cancellation."""

import ssl
import threading

import numpy as np
import pytest

from embedline import CancellationToken, Cancelled, Client, DeadlineExceeded, RequestFailed, RequestProcessingPreference
from tests.embedline.client.stub import http, raw, rows_of, stub, texts
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
