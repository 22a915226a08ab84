"""Settings are checked once, with one line that names the flag, and can't be changed after."""

import dataclasses
import math
from typing import Any

import pytest

from server.settings import Flag, Settings, SettingsError

FLAGS: dict[str, Flag] = {field.name: field.metadata["flag"] for field in dataclasses.fields(Settings)}
BOUNDED = [name for name, flag in FLAGS.items() if flag.least is not None]


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def with_one(name: str, value: Any) -> Settings:
    return Settings(**{name: value})


def refusal(**settings: Any) -> str:
    with pytest.raises(SettingsError) as refused:
        Settings(**settings)
    message = str(refused.value)
    assert "\n" not in message
    return message


def test_the_defaults_are_possible() -> None:
    settings = Settings()

    assert settings.hostname == "127.0.0.1"
    assert settings.payload_limit == 64_000_000
    assert (settings.max_client_batch_size, settings.max_concurrent_requests) == (2048, 4096)
    assert settings.auto_truncate is True
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.port = 1  # type: ignore[misc]


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("beyond", [-0.001, -1e9, -math.inf, math.inf, math.nan])
def test_numbers_have_bounds(name: str, beyond: float) -> None:
    least = FLAGS[name].least
    assert least is not None

    assert refusal(**{name: least + beyond}).startswith(f"{flag_of(name)} must be at least {least:g}")
    assert getattr(with_one(name, least), name) == least


@pytest.mark.parametrize("name", [name for name, flag in FLAGS.items() if flag.most is not None])
def test_ports_have_an_upper_bound(name: str) -> None:
    most = FLAGS[name].most
    assert most is not None

    assert refusal(**{name: most + 1}) == f"{flag_of(name)} must be at most {most:g}"
    assert getattr(with_one(name, most), name) == most


@pytest.mark.parametrize("name", [name for name, flag in FLAGS.items() if flag.one_of])
def test_words_are_one_of_a_list(name: str) -> None:
    assert refusal(**{name: "nonsense"}) == f"{flag_of(name)} must be one of {', '.join(FLAGS[name].one_of)}"
    for word in FLAGS[name].one_of:
        assert getattr(with_one(name, word), name) == word


def test_every_number_has_a_lower_bound() -> None:
    numeric = [field.name for field in dataclasses.fields(Settings) if field.type in (int, float, int | None)]
    assert numeric == BOUNDED


def test_two_prompts_exclude_each_other() -> None:
    message = refusal(default_prompt="query: ", default_prompt_name="query")
    assert "--default-prompt " in message
    assert "--default-prompt-name" in message


def test_devices() -> None:
    assert Settings(devices="cpu").device_list == ("cpu",)
    assert Settings(devices="cuda:0, cuda:1").device_list == ("cuda:0", "cuda:1")
    for devices in ("", ",", "cpu,", "cpu,,cpu"):
        assert refusal(devices=devices).startswith("--devices")


def test_batch_managers_share_the_devices_out() -> None:
    assert Settings(devices="a").num_batch_managers == 1
    assert Settings(devices="a,b,c,d").num_batch_managers == 2
    assert Settings(devices="a,b,c,d", batch_managers=4).num_batch_managers == 4
    assert refusal(devices="a", batch_managers=2).startswith("--batch-managers")


def test_each_flag_says_how_to_choose_it() -> None:
    assert [name for name, flag in FLAGS.items() if len(flag.help) < 15 or not flag.help.endswith(".")] == []
