"""What can be held without Ray: a server's arguments, the version of Ray, and how many servers there are."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from server.features.ray import serving
from server.features.ray.actors import QueuedTokens
from server.features.ray.settings import RayConfig, read_ray
from server.settings.flag import SettingsError


def config(folder: Path, text: str) -> RayConfig:
    path = folder / "embedline.toml"
    path.write_text(text)
    return read_ray(str(path))


@pytest.mark.parametrize(
    ("text", "has", "lacks"),
    [
        ("[ray]\nnum_cpus = 4", ["--cpu-threads", "4"], "--allowed-hosts"),
        ("cpu-threads = 1\n[ray]\nnum_cpus = 4", [], "--cpu-threads"),
        ("[ray]\nnum_gpus = 1", [], "--cpu-threads"),
    ],
)
def test_a_replicas_server_is_given(tmp_path: Path, text: str, has: list[str], lacks: str) -> None:
    given = serving.arguments(config(tmp_path, text))
    assert [one for one in given if one in has] == has
    assert lacks not in given or not lacks


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("no node has 9 CPUs", "no node has 9 CPUs"),
        (
            "Failed. Error:\nTraceback (most recent call last):\n  x\nserver.ray.child.StartFailed: it ended: why\n",
            "it ended: why",
        ),
    ],
)
def test_a_start_that_fails_is_a_line(message: str, reason: str) -> None:
    assert serving._reason(message) == reason


@pytest.mark.parametrize("found", ["2.59.0", "2.61.0", "3.0.0"])
def test_another_ray_is_refused(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setattr(serving, "version", lambda name: found)
    with pytest.raises(SettingsError, match=rf"needs Ray 2\.60\.\*, and {found} is installed"):
        serving.check_version()


@pytest.mark.parametrize(
    ("tokens", "num_requests", "replicas"),
    [
        ([], 0, 5),  # none has reported yet: as it was
        ([0], 0, 0),
        ([0], 1, 1),
        ([100], 1, 1),
        ([101], 1, 2),
        ([150, 90, 61], 3, 4),
    ],
)
def test_there_are_as_many_replicas_as_keep_to_the_target(tokens: list[int], num_requests: int, replicas: int) -> None:
    points = {
        str(number): [SimpleNamespace(value=0.0), SimpleNamespace(value=count)] for number, count in enumerate(tokens)
    }
    context = SimpleNamespace(
        raw_metrics={"queued_tokens": points}, target_num_replicas=5, total_num_requests=num_requests
    )
    assert QueuedTokens(100)(context) == (replicas, {})
