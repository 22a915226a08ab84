"""`embedline ray manifest`: a RayService for the KubeRay operator, from the config of `embedline ray serve`."""

import math
from typing import Any

from server.features.ray.serving import APPLICATION, ENVIRONMENT, EVERY_ADDRESS
from server.features.ray.settings import RayConfig
from server.settings.flag import SettingsError

_SERVE_PORT = "serve"  # the name that the operator's Service looks for
_PORTS = {"gcs-server": 6379, "dashboard": 8265, "client": 10001}
_HEAD = {"cpu": "2", "memory": "8Gi"}


def manifest(config: RayConfig, *, image: str, name: str) -> str:
    """The manifest in YAML. Each worker pod has one replica. Raises SettingsError for what pods can't be given."""
    import yaml  # type: ignore[import-untyped]

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        """Texts of several lines as they are."""

        def represent_text(self, text: str) -> Any:
            return self.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Dumper.add_representer(str, Dumper.represent_text)

    def dump(document: Any) -> str:
        return str(yaml.dump(document, Dumper=Dumper, sort_keys=False))

    if not config.ray.num_gpus.is_integer():
        raise SettingsError("[ray] num_gpus must be a whole number on Kubernetes, which gives a pod whole GPUs")
    for what, port in _PORTS.items():
        if config.ray.port == port:
            raise SettingsError(f"[ray] port can't be {port} on Kubernetes: it is that of Ray's {what}")
    serve = dump(_serve(config))
    return dump(
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayService",
            "metadata": {"name": name},
            "spec": {"serveConfigV2": serve, "rayClusterConfig": _cluster(config, image)},
        }
    )


def _serve(config: RayConfig) -> dict[str, Any]:
    """Serve's own config: as `embedline ray serve` starts it, on all addresses of a pod."""
    settings = config.ray
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": EVERY_ADDRESS, "port": settings.port, "request_timeout_s": settings.start_seconds},
        "applications": [
            {
                "name": APPLICATION,
                "route_prefix": "/",
                "import_path": "embedline.ray_serve:application",
                "args": {"config": config.text.rstrip() + "\n"},
            }
        ],
    }


def _cluster(config: RayConfig, image: str) -> dict[str, Any]:
    settings = config.ray
    return {
        "rayVersion": "2.60.0",
        "enableInTreeAutoscaling": True,  # a pod for each replica that the application asks for
        "headGroupSpec": {
            "rayStartParams": {"num-cpus": "0"},  # no replica lies there
            "template": _pod("ray-head", image, _HEAD, {**_PORTS, _SERVE_PORT: settings.port}),
        },
        "workerGroupSpecs": [
            {
                "groupName": APPLICATION,
                "replicas": settings.min_replicas,
                "minReplicas": settings.min_replicas,
                "maxReplicas": settings.max_replicas,
                "rayStartParams": {},
                "template": _worker_pod(config, image),
            }
        ],
    }


def _worker_pod(config: RayConfig, image: str) -> dict[str, Any]:
    settings = config.ray
    resources = {"cpu": str(max(1, math.ceil(settings.num_cpus)))}
    if settings.num_gpus:
        resources["nvidia.com/gpu"] = str(int(settings.num_gpus))
    pod = _pod("ray-worker", image, resources, {_SERVE_PORT: settings.port})
    pod["spec"]["terminationGracePeriodSeconds"] = math.ceil(config.shutdown_seconds) + 30
    return pod


def _pod(name: str, image: str, resources: dict[str, str], ports: dict[str, int]) -> dict[str, Any]:
    container = {
        "name": name,
        "image": image,
        "env": [{"name": key, "value": value} for key, value in ENVIRONMENT.items()],
        "ports": [{"name": key, "containerPort": port} for key, port in ports.items()],
        "resources": {"requests": dict(resources), "limits": dict(resources)},
    }
    return {"spec": {"containers": [container]}}
