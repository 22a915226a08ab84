"""The Helm chart renders to manifests that Kubernetes accepts, for each of our values, and refuses what can't work.

Nothing here needs a cluster. What renders and validates is in an environment of its own: make .clients/helm/.made
"""

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from embedline import __version__
from server.features.jobs.batches.batches import MAX_RUNNING
from server.features.jobs.batches.state import KIND, OPEN
from server.features.jobs.store.redis import PREFIX
from server.http.access import HEALTH_PATHS
from server.program import _CHANGE_GRAPHS
from server.settings.flag import flags_of
from server.settings.model import ModelSettings
from server.settings.precedence import settings_from
from server.settings.settings import server_flags
from tests.docker.chart.crd_schemas import SCHEMAS
from tests.docker.test_dashboard import check

ROOT = Path(__file__).resolve().parents[3]
HELM = ROOT / "deploy" / "helm"
PYTHON = ROOT / ".clients" / "helm" / "bin" / "python"
VALUES = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((HELM / "values").glob("*.yaml"))}
JOBS = {"enabled": True, "claim": "jobs", "redis": {"secret": "redis"}}
TO_ZERO = {
    "jobs": JOBS,
    "monitoring": {"serviceMonitor": True},
    "scaling": {"kind": "keda", "min": 0, "redis": {"address": "redis:6379", "passwordKey": "password", "database": 3}},
}
HPA = {"scaling": {"kind": "hpa"}}
COMPILED = {
    "config": {
        "quantization": "int8",
        "trust-config-key": ["a", "b"],
        "model": [
            {"model-id": "one", "revision": "abc", "served-model-name": "first"},
            {"model-id": "two", "quantization": "none", "max-input-length": 131072},
        ],
    },
    "hfToken": {"secret": "hub"},
    "modelCache": {"kind": "existing", "claim": "models", "compile": True},
}
UNLIMITED = {"image": {"variant": "cuda"}, "gpus": 2, "resources": {"limits": {"memory": None}}}
STORED = {"jobs": {**JOBS, "files": {"url": "s3://bucket/prefix", "secret": "store"}}, "apiKeys": {"secret": "123"}}
OTHERS = {"to-zero": TO_ZERO, "hpa": HPA, "compiled": COMPILED, "unlimited": UNLIMITED, "stored": STORED}
EXAMPLES = [
    manifest for path in sorted((HELM / "examples").glob("*.yaml")) for manifest in yaml.safe_load_all(path.read_text())
]
BROKEN = [
    EXAMPLES[-1] | {"spec": {"ruls": []}},
    {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": "x"}, "spec": {"minReplicas": 2}},
]
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"replicaCount": 2}, "replicaCount"),
    ({"scaling": {"minimum": 2}}, "minimum"),
    ({"config": {"model": []}}, "config.model"),
    ({"config": {"port": 80}}, "config.port"),
    ({"config": {"api-key": ["k"]}}, "config.api-key"),
    ({"config": {"dtype": None}}, "dtype"),
    ({"config": {"metrics-auth": True}, "monitoring": {"serviceMonitor": True}}, "config.metrics-auth"),
    ({"service": {"port": 9000}}, "service.port"),
    ({"podLabels": {"app.kubernetes.io/name": "other"}}, "app.kubernetes.io/name"),
    ({"podAnnotations": {"scrape": True}}, "podAnnotations"),
    ({"disruptionBudget": {"enabled": True, "maxUnavailable": "some"}}, "disruptionBudget"),
    ({"jobs": {**JOBS, "files": {"secret": "store"}}}, "jobs.files.secret"),
    ({"config": {"ssl-certfile": "/tls.pem"}}, "config.ssl-certfile"),
    ({"gpus": 1}, "gpus"),
    ({"image": {"variant": "cuda"}}, "gpus"),
    ({"modelCache": {"kind": "existing"}}, "modelCache.claim"),
    ({"modelCache": {"kind": "claim"}, "replicas": 2}, "modelCache.accessMode"),
    ({"modelCache": {"compile": True}}, "modelCache.compile"),
    ({"modelCache": {"kind": "claim", "compile": True}, "image": {"variant": "cuda"}, "gpus": 1}, "modelCache.compile"),
    (COMPILED | {"config": {"engine": "transformers", "model": [{"model-id": "m"}]}}, "config.engine"),
    (COMPILED | {"config": {"model": [{"model-id": "m", "compiled-model": "/m"}]}}, "config.compiled-model"),
    ({"jobs": {"enabled": True}}, "jobs.claim"),
    ({"jobs": {"claim": "jobs"}}, "jobs.enabled"),
    ({"jobs": {"enabled": True, "claim": "jobs"}, "replicas": 2}, "jobs.redis.secret"),
    ({"scaling": {"kind": "keda", "min": 9, "max": 2}}, "scaling.min"),
    ({"scaling": {"kind": "hpa", "min": 0}}, "scaling.min"),
    ({"scaling": {"kind": "keda"}}, "monitoring.serviceMonitor"),
    ({"scaling": {"redis": {"address": "redis:6379"}}}, "jobs.redis.secret"),
    ({"scaling": {"redis": {"passwordKey": "password"}}, "jobs": JOBS}, "scaling.redis.passwordKey"),
    ({"monitoring": {"serviceMonitor": True}, "service": {"type": "NodePort"}}, "monitoring.serviceMonitor"),
]

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="helm-python-sdk is not installed: make .clients/helm/.made"
)
Manifests = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def rendered() -> dict[str, Any]:
    """Of all cases at once: a start of the renderer takes a second."""
    cases = [*VALUES.values(), *OTHERS.values(), *(values for values, _ in WRONG)]
    others = [*EXAMPLES, *BROKEN]
    asked = json.dumps({"chart": str(HELM / "embedline"), "cases": cases, "schemas": SCHEMAS, "manifests": others})
    command = [str(PYTHON), "-P", str(Path(__file__).with_name("render.py"))]
    ran = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    answer: dict[str, Any] = json.loads(ran.stdout)
    return answer


@pytest.fixture(scope="module")
def ours(rendered: dict[str, Any]) -> dict[str, Manifests]:
    names = [*VALUES, *OTHERS]
    return dict(zip(names, rendered["cases"], strict=False))


def container(manifests: Manifests) -> dict[str, Any]:
    (deployment,) = manifests["deployment.yaml"]
    (one,) = deployment["spec"]["template"]["spec"]["containers"]
    assert isinstance(one, dict)
    return one


def of_others(manifests: Manifests) -> Iterator[dict[str, Any]]:
    """Those whose kinds Kubernetes itself does not know."""
    for several in manifests.values():
        yield from (one for one in several if one["kind"] in SCHEMAS)


def test_the_chart_is_of_this_version() -> None:
    assert yaml.safe_load((HELM / "embedline" / "Chart.yaml").read_text())["appVersion"] == __version__


def test_there_are_values_for_each_place() -> None:
    assert set(VALUES) == {"laptop", "one-h100", "b200-node", "two-models", "cpu-fleet"}


def test_the_linter_has_nothing_but_advice(rendered: dict[str, Any]) -> None:
    assert [message["error"] for message in rendered["lint"]] == ["icon is recommended"]


def test_every_manifest_is_one_that_kubernetes_accepts(rendered: dict[str, Any], ours: dict[str, Manifests]) -> None:
    assert rendered["problems"] == []
    kinds = {one["kind"] for manifests in ours.values() for one in of_others(manifests)}
    assert kinds == {"ScaledObject", "TriggerAuthentication", "ServiceMonitor", "PrometheusRule"}


def test_the_examples_are_accepted_and_broken_ones_are_not(rendered: dict[str, Any]) -> None:
    assert [one["kind"] for one in EXAMPLES] == ["InferencePool", "HTTPRoute", "Ingress"]
    assert [problem.partition(":")[0] for problem in rendered["others"]] == ["Ingress", "ScaledObject"]
    assert "ruls" in rendered["others"][0]
    assert "minReplicas" in rendered["others"][1]


@pytest.mark.parametrize(("number", "part"), list(enumerate(part for _, part in WRONG)))
def test_values_that_can_not_work_are_refused_by_name(number: int, part: str, rendered: dict[str, Any]) -> None:
    message = rendered["cases"][len(VALUES) + len(OTHERS) + number]
    assert isinstance(message, str), "it was rendered"
    assert part in message


@pytest.mark.parametrize("name", VALUES)
def test_the_server_reads_the_configuration(name: str, ours: dict[str, Manifests], tmp_path: Path) -> None:
    path = tmp_path / "embedline.toml"
    path.write_text(ours[name]["config.yaml"][0]["data"]["embedline.toml"])
    given = VALUES[name].get("config") or yaml.safe_load((HELM / "embedline" / "values.yaml").read_text())["config"]

    settings = settings_from({}, {}, config=str(path))

    assert [model.model_id for model in settings.models] == [model["model-id"] for model in given["model"]]
    assert {model.quantization for model in settings.models} == {given.get("quantization", "auto")}


def test_variables_are_flags(ours: dict[str, Manifests]) -> None:
    known = {name for flag in (*server_flags(), *flags_of(ModelSettings)) for name in flag.variables}
    used = {one["name"] for manifests in ours.values() for one in container(manifests)["env"]}
    assert used <= known
    assert {"EMBEDLINE_API_KEY_FILE", "EMBEDLINE_JOBS_REDIS", "HF_TOKEN"} <= used


def test_kubernetes_waits_for_the_drain_and_asks_paths_that_need_no_key(ours: dict[str, Manifests]) -> None:
    for manifests in ours.values():
        one = container(manifests)
        seconds = {
            each["name"]: int(each["value"])
            for each in one["env"]
            if each["name"] in ("EMBEDLINE_DRAIN_DELAY", "EMBEDLINE_SHUTDOWN_TIMEOUT")
        }
        grace = manifests["deployment.yaml"][0]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        assert grace == sum(seconds.values()) + 10
        probes = {one[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
        assert probes == {"/startupz", "/livez", "/readyz"}
        assert probes <= HEALTH_PATHS


def compile_containers(manifests: Manifests) -> list[dict[str, Any]]:
    (deployment,) = manifests["deployment.yaml"]
    found = deployment["spec"]["template"]["spec"].get("initContainers", [])
    assert isinstance(found, list)
    return found


def test_models_are_compiled_with_what_changes_their_graph_and_served_from_there(ours: dict[str, Manifests]) -> None:
    config = tomllib.loads(ours["compiled"]["config.yaml"][0]["data"]["embedline.toml"])
    first, second = compile_containers(ours["compiled"])
    mounts = container(ours["compiled"])["volumeMounts"]

    shared = ["--trust-config-key", "a", "--trust-config-key", "b"]
    assert first["command"][4:] == ["one", "--revision", "abc", *shared, "--quantization", "int8"]
    assert second["command"][4:] == ["two", *shared, "--max-input-length", "131072", "--quantization", "none"]
    folders = [one["command"][3] for one in (first, second)]
    assert [model["compiled-model"] for model in config["model"]] == folders
    assert len({*folders, compile_containers(ours["cpu-fleet"])[0]["command"][3]}) == 3
    assert [one["name"] for one in first["env"]] == ["HF_TOKEN"]
    assert {"name": "models", "mountPath": "/data/compiled", "subPath": "compiled", "readOnly": True} in mounts
    assert compile_containers(ours["laptop"]) == []


def test_the_chart_knows_every_flag_that_changes_a_graph() -> None:
    names = (HELM / "embedline" / "templates" / "_names.tpl").read_text()
    flags = [flag for flag in flags_of(ModelSettings) if flag.name in _CHANGE_GRAPHS]
    assert len(flags) == len(_CHANGE_GRAPHS)
    for flag in flags:
        assert all(f'"{spelling[2:]}"' in names for spelling in flag.spellings)


def test_a_model_is_compiled_once_for_all_pods(ours: dict[str, Manifests], tmp_path: Path) -> None:
    """Against another pod that was faster too, whose folder `embedline compile` does not overwrite."""
    program = tmp_path / "embedline"
    program.write_text(
        '#!/bin/sh\necho "$@" >> "$LOG"\nmkdir "$FOLDER" && echo {} > "$FOLDER/manifest.json"; exit "$CODE"\n'
    )
    program.chmod(0o755)
    (one,) = compile_containers(ours["cpu-fleet"])
    log, model = tmp_path / "log", one["command"][4]

    def begun(folder: Path, code: int) -> int:
        command = [*one["command"][:3], str(folder), *one["command"][4:]]
        variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "LOG": str(log), "FOLDER": str(folder), "CODE": str(code)}
        return subprocess.run(command, env=variables, check=False).returncode

    folder, other = tmp_path / "compiled" / "a", tmp_path / "compiled" / "b"
    assert [begun(folder, 0), begun(folder, 0), begun(other, 1)] == [0, 0, 0]
    assert log.read_text().splitlines() == [f"compile {model} --out {place}" for place in (folder, other)]
    assert begun(tmp_path / "log" / "c", 1) != 0


def test_scaling_asks_for_metrics_that_exist(ours: dict[str, Manifests]) -> None:
    triggers = [trigger["metadata"] for trigger in ours["cpu-fleet"]["scaling.yaml"][0]["spec"]["triggers"]]
    for trigger in triggers:
        assert '{namespace="search",service="embedline"}' in trigger["query"]
        check(re.sub(r"\{.*\}", "", trigger["query"]))
    (metric,) = ours["hpa"]["scaling.yaml"][0]["spec"]["metrics"]
    check(metric["pods"]["metric"]["name"])
    (picked,) = re.findall(r"-metric=(\w+)", (HELM / "examples" / "inference-gateway.yaml").read_text())
    check(picked)


def test_waiting_jobs_and_open_batches_start_the_first_replica(ours: dict[str, Manifests]) -> None:
    scaled, authentication = ours["to-zero"]["scaling.yaml"]
    queues = [trigger for trigger in scaled["spec"]["triggers"] if trigger["type"] == "redis"]

    *requests, batches = [queue["metadata"] for queue in queues]
    assert [queue["listName"] for queue in requests] == [f"{PREFIX}waiting:{n}" for n in range(3)]
    assert (batches["listName"], batches["listLength"]) == (f"{PREFIX}stated:{KIND}:{OPEN}", str(MAX_RUNNING))
    assert {queue["metadata"]["databaseIndex"] for queue in queues} == {"3"}
    assert {queue["authenticationRef"]["name"] for queue in queues} == {authentication["metadata"]["name"]}
    assert "fallback" not in scaled["spec"]


def test_a_gpu_needs_no_limit_of_memory(ours: dict[str, Manifests]) -> None:
    assert container(ours["unlimited"])["resources"]["limits"] == {"nvidia.com/gpu": 2}


def test_files_of_jobs_lie_in_a_store_that_a_secret_opens(ours: dict[str, Manifests]) -> None:
    one = container(ours["stored"])
    assert {"name": "EMBEDLINE_JOBS_FILES", "value": "s3://bucket/prefix"} in one["env"]
    assert one["envFrom"] == [{"secretRef": {"name": "store"}}]


def test_the_chart_has_no_copies_of_alerts_and_dashboard(ours: dict[str, Manifests]) -> None:
    monitor, rules, board = ours["cpu-fleet"]["monitoring.yaml"]
    docker = ROOT / "docker"

    assert monitor["spec"]["jobLabel"] == "app.kubernetes.io/name"
    assert rules["spec"] == yaml.safe_load((docker / "prometheus" / "alerts.yml").read_text())
    assert board["data"]["embedline.json"] == (docker / "grafana" / "dashboards" / "embedline.json").read_text()
