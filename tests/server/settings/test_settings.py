"""Settings are checked once, with one line that names the flag, and can't be changed after."""

import dataclasses
import math
from importlib.util import find_spec
from typing import Any

import pytest

from engine.machine import cores
from engine.machine.cores import Cores
from server.features.grpc import feature
from server.features.jobs.feature import JobsFlags
from server.settings.flag import Flag, SettingsError, flags_of
from server.settings.model import ModelSettings
from server.settings.settings import FEATURE_FLAGS, GROUPS, Settings

FLAGS: dict[str, tuple[type, Flag]] = {
    flag.name: (settings, flag) for settings in (Settings, ModelSettings, *FEATURE_FLAGS) for flag in flags_of(settings)
}
BOUNDED = [name for name, (_, flag) in FLAGS.items() if flag.least is not None]


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def with_one(name: str, value: Any) -> Any:
    return FLAGS[name][0](**{name: value})


def refusal(**settings: Any) -> str:
    made = FLAGS[next(iter(settings))][0]
    with pytest.raises(SettingsError) as refused:
        made(**settings)
    message = str(refused.value)
    assert "\n" not in message
    return message


def test_the_defaults_are_possible_and_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().port = 1  # type: ignore[misc]


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("beyond", [-0.001, -1e9, -math.inf, math.inf, math.nan])
def test_numbers_have_bounds(name: str, beyond: float) -> None:
    least = FLAGS[name][1].least
    assert least is not None

    assert refusal(**{name: least + beyond}).startswith(f"{flag_of(name)} must be at least {least:g}")
    assert getattr(with_one(name, least), name) == least


@pytest.mark.parametrize("name", [name for name, (_, flag) in FLAGS.items() if flag.most is not None])
def test_ports_and_processes_have_an_upper_bound(name: str) -> None:
    most = FLAGS[name][1].most
    assert most is not None

    assert refusal(**{name: most + 1}) == f"{flag_of(name)} must be at most {most:g}"
    assert getattr(with_one(name, most), name) == most


@pytest.mark.parametrize("name", [name for name, (_, flag) in FLAGS.items() if flag.one_of])
def test_words_are_one_of_a_list(name: str) -> None:
    words = FLAGS[name][1].one_of
    assert refusal(**{name: "nonsense"}) == f"{flag_of(name)} must be one of {', '.join(words)}"
    for word in words:
        assert getattr(with_one(name, word), name) == word


@pytest.mark.parametrize(
    ("num_processors", "num_cores", "quota", "most"), [(8, 4, None, 8), (8, 4, 1.5, 1), (8, 4, 0.5, 1), (2, 2, 6.0, 2)]
)
def test_threads_are_bounded_by_the_cpu_set_and_the_quota(
    num_processors: int, num_cores: int, quota: float | None, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Cores(num_processors=num_processors, num_cores=num_cores, quota=quota)
    monkeypatch.setattr(cores, "find", lambda: found)

    assert Settings(cpu_threads=most).cpu_threads == most
    assert refusal(cpu_threads=most + 1) == f"--cpu-threads must be at most {most} here: {found}"


def test_every_number_has_a_lower_bound() -> None:
    assert [name for name, (_, flag) in FLAGS.items() if flag.kind in (int, float)] == BOUNDED


def test_two_prompts_exclude_each_other() -> None:
    message = refusal(default_prompt="query: ", default_prompt_name="query")
    assert "--default-prompt " in message
    assert "--default-prompt-name" in message


def test_devices_have_names() -> None:
    assert ModelSettings().devices == "auto"
    for devices in ("", ",", "cpu,", "cpu,,cpu"):
        assert refusal(devices=devices).startswith("--devices")


@pytest.mark.holds("There is one list of flags")
@pytest.mark.holds("gRPC")
@pytest.mark.parametrize("missing", ["grpc", "grpc_health", "grpc_reflection"])
def test_without_the_packages_of_the_extra_there_is_no_grpc(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature, "find_spec", lambda name: None if name == missing else find_spec(name))
    assert "pip install 'embedline[grpc]'" in refusal(grpc_port=0)
    assert not Settings().features_on()  # nobody else needs them


def test_each_flag_says_how_to_choose_it() -> None:
    helps = {name: flag.help for name, (_, flag) in FLAGS.items()}
    assert [name for name, text in helps.items() if len(text) < 40 or not text.endswith(".")] == []
    assert {flag.group for _, flag in FLAGS.values()} == set(GROUPS)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"jobs_redis": "redis://a", "jobs": None}, "--jobs-redis needs --jobs DIR"),
        ({"jobs_files": "s3://bucket", "jobs": None}, "--jobs-files needs --jobs DIR"),
        ({"jobs_files": "/a/folder", "jobs": "/jobs"}, "--jobs-files takes one URL"),
        ({"jobs_files": "simplecache::s3://bucket", "jobs": "/jobs"}, "--jobs-files takes one URL"),
        ({"jobs_files": "s3://key:hunter2@bucket", "jobs": "/jobs"}, "--jobs-files takes a URL without a name"),
        ({"jobs_redis": "http://:hunter2@a", "jobs": "/jobs"}, "one of redis://"),
    ],
    ids=["no folder", "files without a folder", "a folder", "a chain", "a password", "another scheme"],
)
def test_a_place_of_jobs_that_cannot_be_is_refused(settings: dict[str, Any], words: str) -> None:
    message = refusal(**settings)
    assert words in message
    assert "hunter2" not in message


def test_the_url_of_redis_is_not_shown() -> None:
    assert "hunter2" not in repr(Settings(features=(JobsFlags(jobs="/jobs", jobs_redis="redis://:hunter2@a"),)))
