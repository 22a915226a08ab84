"""docker/compose.yaml: closed containers, secrets that stand nowhere, and names that other files use."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from server.settings.flag import flags_of
from server.settings.model import ModelSettings
from server.settings.settings import server_flags
from server.supervisor.monitor import _DEFAULT_PROMETHEUS_PORT
from server.supervisor.supervisor import _EXIT_SECONDS

DOCKER = Path(__file__).resolve().parents[2] / "docker"
SERVERS = ("cpu", "cuda", "tensorrt-llm")
VARIABLES = {name: flag for flag in (*server_flags(), *flags_of(ModelSettings)) for name in flag.variables}
_INTERPOLATED = re.compile(r"\$\{(\w+):-([^}]*)\}")  # what compose puts in: a variable, or its default


def load(file: str) -> dict[str, Any]:
    found = yaml.safe_load((DOCKER / file).read_text())
    assert isinstance(found, dict)
    return found


COMPOSE = load("compose.yaml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


@pytest.fixture(params=SERVICES, ids=str)
def service(request: pytest.FixtureRequest) -> dict[str, Any]:
    return SERVICES[request.param]


def with_defaults(text: str) -> str:
    return _INTERPOLATED.sub(r"\2", text)


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


def test_one_server_is_chosen_by_profile() -> None:
    assert {name for name in SERVICES if "profiles" in SERVICES[name]} == set(SERVERS)
    assert all(SERVICES[name]["profiles"] == [name] for name in SERVERS)
    assert "COMPOSE_PROFILES=cpu" in (DOCKER / ".env").read_text().splitlines()


def test_containers_are_closed(service: dict[str, Any]) -> None:
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service.keys() & {"privileged", "cap_add", "pid", "network_mode", "ipc", "user"}


def test_images_are_pinned_or_built_here(service: dict[str, Any]) -> None:
    if "build" in service:
        assert (DOCKER / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        assert service["image"] == f"embedline:{service['build']['dockerfile'].rpartition('.')[2]}"
    else:
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"])


def test_each_says_how_it_is(service: dict[str, Any]) -> None:
    assert service["healthcheck"]["test"][0] == "CMD"
    assert service["restart"] == "unless-stopped"
    assert seconds(service["stop_grace_period"]) > 10


@pytest.mark.parametrize("name", SERVERS)
def test_a_stop_is_waited_for(name: str) -> None:
    """Frontends have the drain and their last words, then engines have theirs."""
    drain = float(SERVICES[name]["environment"]["EMBEDLINE_SHUTDOWN_TIMEOUT"])
    assert seconds(SERVICES[name]["stop_grace_period"]) > drain + 2 * _EXIT_SECONDS


@pytest.mark.parametrize("name", SERVERS)
def test_variables_are_flags_with_values_that_they_take(name: str) -> None:
    for variable, value in SERVICES[name]["environment"].items():
        VARIABLES[variable].from_text(with_defaults(value))


@pytest.mark.parametrize("name", SERVERS)
def test_keys_come_as_a_secret(name: str) -> None:
    environment = SERVICES[name]["environment"]
    assert "API_KEY" not in environment
    assert environment["EMBEDLINE_API_KEY_FILE"] in {f"/run/secrets/{secret}" for secret in SERVICES[name]["secrets"]}


def test_secrets_are_files_that_git_does_not_take() -> None:
    used = {secret for service in SERVICES.values() for secret in service.get("secrets", ())}
    assert used == COMPOSE["secrets"].keys()
    for secret in COMPOSE["secrets"].values():
        assert Path(secret["file"]).parent == Path("secrets")
    assert "*" in (DOCKER / "secrets" / ".gitignore").read_text().splitlines()


def test_nothing_is_reached_from_outside_unless_asked_for(service: dict[str, Any]) -> None:
    assert all(with_defaults(port).startswith("127.0.0.1:") for port in service["ports"])


def test_what_is_mounted_is_there(service: dict[str, Any]) -> None:
    for mount in service["volumes"]:
        source, _, target = mount.partition(":")
        if source.startswith("."):
            assert target.endswith(":ro")
            assert (DOCKER / source).exists()
        else:
            assert source in COMPOSE["volumes"]


@pytest.mark.parametrize("name", ["cuda", "tensorrt-llm"])
def test_gpus_are_asked_for(name: str) -> None:
    (device,) = SERVICES[name]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}


def test_tensorrt_llm_has_the_limits_that_nvidia_asks_for() -> None:
    service = SERVICES["tensorrt-llm"]
    assert service["ulimits"] == {"memlock": -1, "stack": 67_108_864}
    assert service["shm_size"] == "2gb"


def test_prometheus_asks_whichever_server_runs() -> None:
    (job,) = load("prometheus/prometheus.yml")["scrape_configs"]
    (found,) = job["dns_sd_configs"]
    assert found["port"] == _DEFAULT_PROMETHEUS_PORT
    for name in SERVERS:
        assert found["names"] == SERVICES[name]["networks"]["default"]["aliases"]


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    (source,) = load("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in SERVICES
    (provider,) = load("grafana/provisioning/dashboards/embedline.yaml")["providers"]
    assert f"./grafana/dashboards:{provider['options']['path']}:ro" in SERVICES["grafana"]["volumes"]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (DOCKER / "grafana" / "dashboards" / Path(home).name).is_file()
