"""Models from the hub: what is asked of it, where it redirects to, what it refuses, what breaks, and what is found
later without it. The hub is a small one on this machine; the library reads its address when it is imported, so
each start is a process of its own."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.store.hub import _why
from engine.store.hub_cache import is_needed
from tests.engine.folder_files import write
from tests.engine.store.local_hub import COMMIT, MODEL, REVISIONS, LocalHub, serving_hub
from tests.engine.store.starts import NOBODY, Starter
from tests.tiers import full

UNWANTED = (
    *("pytorch_model.bin", "model.pt", "tf_model.h5", "modeling_custom.py"),
    *("onnx/model.onnx", "onnx/config.json", "LICENSE"),
)
WANTED = ("model.safetensors", "vocab.txt", "spiece.model")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[LocalHub]:
    folder = tmp_path / "on the hub"
    for name in ("config.json", "1_Pooling/config.json", "tokenizer.json"):
        write(folder / name, {"name": name})
    write(folder / "modules.json", [])
    for name in (*WANTED, *UNWANTED):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(name.encode() * 1000)
    with serving_hub(folder) as running:
        yield running


@pytest.fixture
def start(hub: LocalHub, tmp_path: Path) -> Starter:
    return Starter(hub, tmp_path / "cache")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def asked_for(hub: LocalHub) -> set[str]:
    """The repository's files that were asked for."""
    return {path.partition(f"/resolve/{COMMIT}/")[2] for path in hub.paths("HEAD")}


@pytest.mark.holds("Network access")
def test_what_serves_a_model_is_fetched_and_nothing_else(hub: LocalHub, start: Starter) -> None:
    found = start()

    assert (found.source, found.revision, found.error) == ("hub", COMMIT, "")
    wanted = {name: content for name, content in contents(hub.folder).items() if name not in UNWANTED}
    assert contents(found.path) == wanted
    assert asked_for(hub) == set(wanted)
    assert not any(path.endswith(UNWANTED) for path in hub.paths())
    assert found.stderr == ""  # no bars in a server's log


@pytest.mark.full
@pytest.mark.holds("A cached model starts without the network", "Network access")
def test_nobody_is_told_who_runs_what(hub: LocalHub, start: Starter) -> None:
    """Without the library's switch it fetches a list of programs, to say in each request which of them runs it."""
    start(HF_HUB_DISABLE_TELEMETRY="0")
    assert {path for path in hub.paths() if MODEL not in path} == {"/elsewhere/model.safetensors"}


@pytest.mark.holds("A cached model starts without the network", "Network access")
def test_the_token_stays_with_the_hub(hub: LocalHub, start: Starter) -> None:
    found = start(token="hf_secret\n")  # as files of secrets end

    assert found.source == "hub"
    assert {asked.token for asked in hub.asked if asked.host == "127.0.0.1"} == {"hf_secret"}
    assert {asked.token for asked in hub.asked if asked.host == "localhost"} == {""}
    assert [asked.path for asked in hub.asked if asked.host == "localhost"] == ["/elsewhere/model.safetensors"]


@pytest.mark.full
def test_a_gated_model_needs_the_token_of_who_may_read_it(hub: LocalHub, start: Starter) -> None:
    hub.needs_token = "hf_right"

    assert "--hf-token must be the token of an account that may read it" in start().error
    assert "the hub refuses the token (--hf-token)" in start(token="hf_wrong").error
    assert start(HF_TOKEN="hf_right").source == "hub"
    assert start(token="hf_right").source == "hub cache"


def test_a_token_that_is_none_is_not_shown(hub: LocalHub, start: Starter) -> None:
    found = start(token="hf_\x07 secret")
    assert "--hf-token" in found.error
    assert "secret" not in found.error + found.stderr
    assert hub.asked == []


@pytest.mark.parametrize("token", [None, *full("hf_any")])
def test_a_model_that_is_not_there(start: Starter, token: str | None) -> None:
    assert start("org/absent", token=token).error == (
        "--model-id 'org/absent' is not on the hub, or is private and needs --hf-token"
    )


@pytest.mark.parametrize("revision", ["v9", *full("f" * 40)])
def test_a_revision_that_is_not_there(start: Starter, revision: str) -> None:
    assert start(revision=revision).error == f"--revision {revision!r} is no revision of 'org/model' on the hub"


@pytest.mark.full
@pytest.mark.parametrize("revision", ["v1", *full(REVISIONS["v1"])])
def test_a_branch_and_a_commit(hub: LocalHub, start: Starter, revision: str) -> None:
    assert start(revision=revision).revision == REVISIONS["v1"]
    before = len(hub.asked)

    again = start(revision=revision)

    assert (again.source, again.revision) == ("hub cache", REVISIONS["v1"])
    assert len(hub.asked) == before
    assert start(HF_HUB_OFFLINE="1").source == ""  # main is another commit, and was never fetched


def test_a_connection_that_breaks_is_resumed(hub: LocalHub, start: Starter) -> None:
    """The library keeps 10 MiB at a time."""
    weights = bytes(range(256)) * (50 * 1024)
    (hub.folder / "model.safetensors").write_bytes(weights)
    hub.num_cuts, hub.cut_after = 1, 11 * 2**20

    found = start()

    assert (found.path / "model.safetensors").read_bytes() == weights
    ranges = [asked.range for asked in hub.asked if asked.path == "/elsewhere/model.safetensors"]
    assert ranges == ["", f"bytes={10 * 2**20}-"]


@pytest.mark.full
def test_a_start_that_failed_half_way_is_completed_by_the_next(hub: LocalHub, start: Starter) -> None:
    hub.weights_status = 403
    assert "--model-id 'org/model'" in start().error
    hub.weights_status = 200
    hub.asked.clear()

    assert start(HF_HUB_OFFLINE="1").error != ""  # what is not whole is not served
    found = start()

    assert contents(found.path)["model.safetensors"] == (hub.folder / "model.safetensors").read_bytes()
    assert asked_for(hub) == {"model.safetensors"}


@pytest.mark.holds("A cached model starts without the network", "Network access")
def test_the_second_start_asks_nobody(hub: LocalHub, start: Starter) -> None:
    first = start()
    hub.asked.clear()

    for environment in ({}, {"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": NOBODY}):
        again = start(**environment)
        assert (again.path, again.source, again.revision) == (first.path, "hub cache", COMMIT)
    assert hub.asked == []
    assert "huggingface_hub.file_download" not in again.imported  # which takes as long as the rest of the start


@pytest.mark.full
def test_a_cache_without_a_listing_is_compared_with_the_hub(hub: LocalHub, start: Starter) -> None:
    """A plain transformers model, fetched by an older library: nobody here knows whether a file is missing."""
    (hub.folder / "modules.json").unlink()
    (start().path.parents[1] / "trees" / f"{COMMIT}.json").unlink()
    hub.asked.clear()

    assert "may lack modules.json" in start(HF_HUB_OFFLINE="1").error
    assert start().revision == COMMIT
    assert hub.paths("HEAD") == []  # the listing is asked for, no file
    assert start(HF_HUB_OFFLINE="1").revision == COMMIT


def test_a_hub_out_of_reach(start: Starter) -> None:
    message = "--model-id 'org/model' is not on this machine and can't be fetched from the hub: "
    assert start(HF_ENDPOINT=NOBODY).error.startswith(message)
    assert start(HF_HUB_OFFLINE="1").error.startswith(message)


def test_a_hub_that_never_answers(hub: LocalHub, start: Starter) -> None:
    """The library's own first request has no timeout, so without ours this would not end."""
    hub.silent = True
    found = start(patience=0.2, HF_HUB_DISABLE_TELEMETRY="1")  # which is set too late where our patience is changed
    assert "can't be fetched from the hub: Got: ReadTimeout" in found.error


@pytest.mark.parametrize("name", ["HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"])
@pytest.mark.parametrize("value", ["abc", *full("1.5", "", "-1")])
def test_a_timeout_that_is_no_number(hub: LocalHub, start: Starter, name: str, value: str) -> None:
    for model_id in (MODEL, str(hub.folder)):
        found = start(model_id, **{name: value})
        assert found.error == f"{name} in the environment is not a whole number of seconds from 0"
        assert found.imported == []


@pytest.mark.parametrize(
    ("name", "value"), [("HTTPS_PROXY", "foo://name:secret@127.0.0.1"), ("SSL_CERT_FILE", "/nowhere/at/all.pem")]
)
def test_an_environment_in_which_nothing_can_be_reached(start: Starter, name: str, value: str) -> None:
    found = start(**{"NO_PROXY": "", name: value})
    assert found.error.startswith("no connection to the hub can be set up")
    assert name in found.error
    assert value not in found.error + found.stderr


def test_a_cache_that_cannot_be_written(start: Starter, tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    error = start(cache=tmp_path / "a file").error
    assert error.startswith("--huggingface-hub-cache can't take the files of 'org/model': ")


def test_a_disk_that_is_full(hub: LocalHub, start: Starter) -> None:
    """As far as a process can tell that may write files of 10,000 bytes only."""
    error = start(largest_file=10_000).error
    assert error.startswith("--huggingface-hub-cache can't take the files of 'org/model': [Errno 27]")
    assert not list(start.cache.rglob("*.incomplete"))


@pytest.mark.parametrize(
    ("name", "below"),
    [("HF_HOME", "hub"), *full(("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HOME", ".cache"))],
)
def test_where_the_cache_is_unless_told(start: Starter, tmp_path: Path, name: str, below: str) -> None:
    found = start(cache=None, **{name: str(tmp_path / "mine")})
    assert found.path.is_relative_to(tmp_path / "mine" / below)
    assert start(cache=None, **{name: str(tmp_path / "mine")}).source == "hub cache"


def test_a_folder_needs_nothing_of_the_library(hub: LocalHub, start: Starter) -> None:
    found = start(str(hub.folder))
    assert (found.source, found.imported) == ("local folder", [])


@pytest.mark.parametrize(
    ("file", "needed"),
    [
        ("2_Dense/model.safetensors", True),
        ("model-00001-of-00002.safetensors", True),
        ("spiece.model", True),
        ("openvino/openvino_model.xml", False),
        ("openvino/config.json", False),
        ("tf_model.h5", False),
        ("custom_st.py", False),
        ("README.md", False),
    ],
)
def test_without_which_files_a_snapshot_is_not_whole(file: str, needed: bool) -> None:
    assert is_needed(file) is needed


def test_a_download_into_somebody_elses_folder() -> None:
    message = _why(PermissionError(errno.EACCES, "Permission denied", "/data/models--a--b"), "a/b", None)
    assert message.startswith("--huggingface-hub-cache can't take the files of 'a/b': [Errno 13] Permission denied")
    assert message.endswith("(docker run --user $(id -u):$(id -g))")


def test_a_repository_of_weights_for_other_programs(hub: LocalHub, start: Starter) -> None:
    """What it holds is told by the hub's listing, and what it was made of by its card."""
    for file in (*hub.folder.rglob("*.safetensors"), *hub.folder.rglob("*.bin"), *hub.folder.rglob("*.json")):
        file.unlink()
    (hub.folder / "model-Q8_0.gguf").write_bytes(b"GGUF")
    (hub.folder / "README.md").write_text("---\nbase_model: org/plain\nbase_model_relation: quantized\n---\n")
    found = start()
    assert found.error.endswith(
        "has its weights as GGUF and ONNX, and only *.safetensors are read; its card (README.md) names the model that "
        "was quantized: org/plain"
    )
    assert not any(path.endswith(".gguf") for path in hub.paths())
