"""The RayService that is written: by KubeRay's schema, and from the keys of the config."""

import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml  # type: ignore[import-untyped]

from server.features.ray.manifest import manifest
from server.settings.flag import SettingsError
from tests.server.ray.test_serving import config

SCHEMA = json.loads((Path(__file__).parent / "kuberay.json").read_text())
GPU = """model-id = "Qwen/Qwen3-Embedding-0.6B"
max-batch-tokens = 65536

[ray]
port = 9000
num_gpus = 1
max_replicas = 8
"""


def written(folder: Path, text: str) -> Any:
    return yaml.safe_load(manifest(config(folder, text), image="registry/embedline:1", name="embedline"))


@pytest.mark.parametrize("text", [GPU, "", 'engine = "fake"\n[ray]\nmin_replicas = 0\nnum_cpus = 0.5'])
def test_it_is_valid_by_the_schema_of_kuberay(tmp_path: Path, text: str) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(written(tmp_path, text))


def test_the_schema_refuses_what_kuberay_would_drop(tmp_path: Path) -> None:
    document = written(tmp_path, GPU)
    document["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["maxReplica"] = 3
    with pytest.raises(jsonschema.ValidationError, match="maxReplica"):
        jsonschema.Draft202012Validator(SCHEMA).validate(document)


def test_it_says_what_the_config_says(tmp_path: Path) -> None:
    spec = written(tmp_path, GPU)["spec"]
    (group,) = spec["rayClusterConfig"]["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    assert (group["minReplicas"], group["maxReplicas"], container["image"]) == (1, 8, "registry/embedline:1")
    assert container["resources"]["limits"] == {"cpu": "1", "nvidia.com/gpu": "1"}
    assert {"name": "RAY_SERVE_ENABLE_HA_PROXY", "value": "1"} in container["env"]
    serve = yaml.safe_load(spec["serveConfigV2"])
    assert serve["http_options"]["port"] == 9000
    assert serve["applications"][0]["args"] == {"config": GPU}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[ray]\nnum_gpus = 0.5", "num_gpus must be a whole number on Kubernetes"),
        ("[ray]\nport = 8265", "port can't be 8265 on Kubernetes: it is that of Ray's dashboard"),
    ],
)
def test_what_is_wrong_in_the_config_is_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        written(tmp_path, text)
