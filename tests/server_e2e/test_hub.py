"""The command line with a model from the hub: a server that starts from it and answers, another that starts without
it, and refusals in one line. The hub is a small one on this machine."""

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.engine.store.local_hub import COMMIT, MODEL, LocalHub, serving_hub
from tests.server_e2e.expected import FAKE, minilm, rows_of
from tests.server_e2e.running import PATIENCE, Server, serving
from tests.server_e2e.test_refusals_at_start import refusal
from tests.tiers import full

TEXTS = ["hello world", "embed this"]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[LocalHub]:
    """All of MiniLM but the weights' values, which the fake engine does without."""
    folder = tmp_path / "on the hub"
    shutil.copytree(minilm(), folder, ignore=shutil.ignore_patterns("*.safetensors"))
    (folder / "model.safetensors").write_bytes(b"weights" * 1000)
    with serving_hub(folder) as running:
        yield running


def environment(hub: LocalHub, cache: Path) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.url, "HF_HOME": str(cache), "HUGGINGFACE_HUB_CACHE": str(cache), "NO_PROXY": "*"}


@pytest.mark.full
@pytest.mark.holds("Network access")
def test_a_server_starts_from_the_hub_and_again_without_it(hub: LocalHub, tmp_path: Path) -> None:
    settings = environment(hub, tmp_path / "cache")
    sources = []
    for more in ({}, {"HF_HUB_OFFLINE": "1"}):
        with serving(*FAKE, "--model-id", MODEL, folder=tmp_path, environment={**settings, **more}) as server:
            row = server.embed(TEXTS, encoding_format="bytes").body
            (model,) = server.request("GET", "/info").json()["models"]
            assert np.array_equal(np.frombuffer(row, "<f4").reshape(2, -1), rows_of(TEXTS))
            assert server.stop() == 0
        sources.append((model["source"], model["revision"], len(hub.asked)))

    (first, revision, num_asked), again = sources
    assert (first, revision) == ("hub", COMMIT)
    assert again == ("hub cache", COMMIT, num_asked)


@pytest.mark.parametrize("number", [signal.SIGTERM, *full(signal.SIGINT)])
def test_a_start_that_waits_for_the_hub_can_be_stopped(hub: LocalHub, tmp_path: Path, number: int) -> None:
    hub.silent = True
    settings = environment(hub, tmp_path / "cache")
    server = Server(*FAKE, "--model-id", MODEL, folder=tmp_path, environment=settings)
    try:
        server.log.wait_for("fetching org/model from the hub")
        server.process.send_signal(number)
        assert server.process.wait(PATIENCE) == 0
    finally:
        server.close()
    assert not [line for line in server.log.lines if " INFO " not in line]


@pytest.mark.holds("Containers")
@pytest.mark.parametrize("number", [signal.SIGTERM, *full(signal.SIGINT)])
def test_a_start_in_the_middle_of_a_file_can_be_stopped(hub: LocalHub, tmp_path: Path, number: int) -> None:
    """Threads of the library fetch it, which an ordinary exit would wait for; Docker kills after 10 s."""
    hub.stalls = True
    settings = environment(hub, tmp_path / "cache") | {"HF_HUB_DOWNLOAD_TIMEOUT": "3600"}  # they would wait for
    server = Server(*FAKE, "--model-id", MODEL, folder=tmp_path, environment=settings)
    try:
        assert hub.stalled.wait(PATIENCE)
        server.process.send_signal(number)
        assert server.process.wait(PATIENCE) == 0
    finally:
        server.close()
    assert not [line for line in server.log.lines if " INFO " not in line]
    assert not [line for line in server.log.lines if hub.url in line], "addresses may be signed"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--model-id", MODEL), "--hf-token"),
        *full(
            (("--model-id", MODEL, "--hf-token", "hf_wrong"), "--hf-token"),
            (("--model-id", "org/absent"), "--model-id"),
            (("--model-id", MODEL, "--hf-token", "hf_right", "--revision", "v9"), "--revision"),
        ),
    ],
)
def test_what_the_hub_refuses(hub: LocalHub, tmp_path: Path, flags: tuple[str, ...], words: str) -> None:
    hub.needs_token = "hf_right"
    told = refusal(*FAKE, *flags, folder=tmp_path, environment=environment(hub, tmp_path / "cache"))
    assert words in told
    assert "\n" not in told
