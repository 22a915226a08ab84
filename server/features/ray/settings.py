"""The [ray] table of a config file: how `embedline ray` runs servers. The file's other keys are the servers' own."""

from dataclasses import dataclass

from server.settings.flag import SettingsError, flag, flags_of
from server.settings.http_flags import MAX_PORT
from server.settings.precedence import RAY, parsed, read_config, values_of

# Keys of the server that have no meaning here, or another place.
_REFUSED = {
    "port": "the port is that of [ray]",
    "hostname": "the host is that of [ray]",
    "prometheus_port": "replicas report to Ray",
    "uds": "replicas are reached through Ray",
    "grpc_port": "gRPC does not go through Ray",
    "ssl_certfile": "Ray's proxy speaks plain HTTP",
    "ssl_keyfile": "Ray's proxy speaks plain HTTP",
    "takeover": "Ray replaces replicas",
    "jobs": "a replica keeps nothing when it ends",
    "jobs_redis": "a replica keeps nothing when it ends",
    "jobs_files": "a replica keeps nothing when it ends",
    "metrics_auth": "replicas read their own /metrics for the autoscaler",
    "drain_delay": "Ray says when a replica ends",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RaySettings:
    """The number of servers, what each one gets, and when there are more of them."""

    host: str = flag("127.0.0.1", RAY, "Where the proxy of each node and its replicas listen.")
    port: int = flag(8000, RAY, "The proxy's port.", least=1, most=MAX_PORT)
    num_gpus: float = flag(0.0, RAY, "GPUs of a replica: 1 for a server on each GPU.", least=0)
    num_cpus: float = flag(
        1.0, RAY, "Cores of a replica. Without a GPU its engine has as many threads, and one at least.", least=0
    )
    min_replicas: int = flag(1, RAY, "With 0 the last server ends when nobody asks.", least=0, most=10_000)
    max_replicas: int = flag(1, RAY, "At most so many servers.", least=1, most=10_000)
    target_tokens: int = flag(
        16_384,
        RAY,
        "Tokens that wait or are computed, for each replica: there are as many replicas as keep to it. Choose what "
        "one computes in the time that a request may wait.",
        least=1,
    )
    upscale_delay_seconds: float = flag(10.0, RAY, "So long above it before replicas are added.", least=0, most=3600)
    downscale_delay_seconds: float = flag(300.0, RAY, "The same below it.", least=0, most=86_400)
    max_queued_requests: int = flag(
        1000,
        RAY,
        "Requests that wait for a first replica; more are 429. A server's own queue has its own limits.",
        least=1,
    )
    retry_after_seconds: int = flag(2, RAY, "Retry-After of those. A server's own 429 has its own.", least=1, most=3600)
    start_seconds: int = flag(600, RAY, "A replica that is not ready by then has failed.", least=1, most=86_400)


@dataclass(frozen=True, slots=True, kw_only=True)
class RayConfig:
    """A config file as `embedline ray` uses it."""

    ray: RaySettings
    text: str  # of the whole file, for the replicas
    shutdown_seconds: float  # that a replica's open requests get when it ends
    sets_threads: bool  # whether the servers' own keys say how many threads an engine has


def read_ray(path: str) -> RayConfig:
    """What the file sets. Raises SettingsError that names the file and the key."""
    server = read_config(path)
    for name, reason in _REFUSED.items():
        if name in server.values:
            raise SettingsError(f"{path}: {name.replace('_', '-')} can't be given for Ray: {reason}")
    document, text = parsed(path)
    table = document.get(RAY, {})
    if not isinstance(table, dict):
        raise SettingsError(f"{path}: {RAY} must be a table")
    ray = RaySettings(**values_of(table, {one.name: one for one in flags_of(RaySettings)}, where=f"{path}: [{RAY}]"))
    if ray.max_replicas < ray.min_replicas:
        raise SettingsError(f"{path}: [{RAY}]: max_replicas must be at least min_replicas")
    return RayConfig(
        ray=ray,
        text=text,
        shutdown_seconds=server.values.get("shutdown_timeout", 30.0),
        sets_threads="cpu_threads" in server.values,
    )
