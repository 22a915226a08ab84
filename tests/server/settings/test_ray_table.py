"""The [ray] table of a config file: what is read, and what is refused by its name."""

from pathlib import Path

import pytest

from server.features.ray.settings import read_ray
from server.settings.flag import SettingsError
from server.settings.precedence import settings_from


def written(folder: Path, text: str) -> str:
    path = folder / "embedline.toml"
    path.write_text(text)
    return str(path)


def test_the_table_is_read_beside_the_servers_keys(tmp_path: Path) -> None:
    text = 'engine = "fake"\nshutdown-timeout = 7\n[ray]\nnum_gpus = 1\nmin-replicas = 0\nmax_replicas = 3\n'
    config = read_ray(written(tmp_path, text))
    assert (config.ray.num_gpus, config.ray.min_replicas, config.ray.max_replicas) == (1.0, 0, 3)
    assert (config.text, config.shutdown_seconds, config.sets_threads) == (text, 7.0, False)


def test_a_server_takes_the_same_file(tmp_path: Path) -> None:
    config = written(tmp_path, 'engine = "fake"\n[ray]\nport = 9\n')
    assert settings_from({}, {}, config=config).models[0].engine == "fake"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[ray]\nreplicas = 2", "[ray]: unknown key 'replicas'"),
        ('[ray]\nport = "x"', "[ray]: port must be a whole number"),
        ("[ray]\nnum_gpus = -1", "[ray]: num_gpus must be at least 0"),
        ("[ray]\nmin_replicas = 2", "[ray]: max_replicas must be at least min_replicas"),
        ("ray = 1", "ray must be a table"),
        ("port = 1", "port can't be given for Ray: the port is that of [ray]"),
        ('uds = "/x"', "uds can't be given for Ray: replicas are reached through Ray"),
        ("unknown = 1", "unknown key 'unknown'"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(SettingsError) as found:
        read_ray(path)
    assert message in str(found.value)
    assert path in str(found.value)
