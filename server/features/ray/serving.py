"""`embedline ray serve`: a Ray Serve application of whole servers, started, watched until it is ready, and ended."""

import contextlib
import http.client
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from server.features.ray.settings import RayConfig, RaySettings, read_ray
from server.settings.flag import SettingsError

APPLICATION = "embedline"
EVERY_ADDRESS = "0.0.0.0"
# HAProxy in front of the replicas, and Serve's own code out of the way: its Python proxy answers 90 requests a second.
ENVIRONMENT = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",  # a line for each request, read by Python
    # A request whose replica dies before it answers goes to another one, if it fits into this buffer: no route has
    # an effect that a second try could double. HAProxy can send again only what it had whole before the first try:
    # the option, which Ray has no variable for, makes it wait for the body.
    "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response\n    option http-buffer-request",
    "RAY_SERVE_HAPROXY_RETRIES": "10",  # more than there are dead ones before they are known to be
    "RAY_SERVE_HAPROXY_TUNE_BUFSIZE": "131072",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "5",  # until every proxy knows that a replica ends
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
    "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
    # Ray's own is 15, which HAProxy and servers would have too: they would come after all else on the machine.
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",  # no report to Ray's makers
}
_VERSION = "2.60."  # parts of Serve that are used here are new, and may change with any other
_DEPLOY_SECONDS = 60  # beside the start of the servers themselves
_ASK_SECONDS = 5.0
_STARTS = 2  # tries before a start has failed
_LOOK_BACK_SECONDS = 11.0  # Serve wants more than 10
_CHILD_SECONDS = 15.0  # that a server takes to end, beside its open requests


def serve(path: str) -> int:
    """Run until a signal; the exit code: 1 where no server gets ready. Raises SettingsError."""
    config = read_ray(path)
    check_version()
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)  # read by Ray as it is imported, here and in its processes
    import ray
    from ray import serve as ray_serve

    stop = threading.Event()
    ray.init(logging_level=logging.WARNING, log_to_driver=False, include_dashboard=False)
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())  # Ray has set its own
        options = {"runtime_env": {"env_vars": {name: os.environ[name] for name in ENVIRONMENT}}}
        ray_serve.start(http_options=_http(config), controller_options=options)
        target = ray_serve.RunTarget(application(config), name=APPLICATION)
        ray_serve.run_many([target], wait_for_applications_running=False)
        problem = _wait(ray_serve, stop, config.ray)
        if problem:
            print(f"embedline: {problem}", file=sys.stderr)
            return 1
        if not stop.is_set():
            print(f"embedline: ready on http://{config.ray.host}:{config.ray.port}", file=sys.stderr, flush=True)
        stop.wait()
        return 0
    finally:
        ray_serve.shutdown()
        ray.shutdown()


def check_version() -> None:
    """Raises SettingsError where there is no Ray, or another one than this code was written for."""
    try:
        found = version("ray")
    except PackageNotFoundError:
        raise SettingsError("this needs Ray, which is not installed here: pip install 'embedline[ray]'") from None
    if not found.startswith(_VERSION):
        raise SettingsError(f"this needs Ray {_VERSION}*, and {found} is installed: pip install 'embedline[ray]'")


def application(config: RayConfig) -> Any:
    """The application that Serve runs."""
    from ray import cloudpickle, serve
    from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, BackpressureConfig

    from server.features.ray import actors

    cloudpickle.register_pickle_by_value(actors)  # Ray's processes can't import it
    settings = config.ray
    deployment = serve.deployment(
        serve.ingress()(actors.Replica),
        name=APPLICATION,
        max_queued_requests=settings.max_queued_requests,
        backpressure_config=BackpressureConfig(status_code=429, retry_after_s=settings.retry_after_seconds),
        graceful_shutdown_timeout_s=config.shutdown_seconds + _CHILD_SECONDS,
        max_constructor_retry_count=_STARTS,
        ray_actor_options={"num_cpus": settings.num_cpus, "num_gpus": settings.num_gpus},
        autoscaling_config=AutoscalingConfig(
            min_replicas=settings.min_replicas,
            max_replicas=settings.max_replicas,
            upscale_delay_s=settings.upscale_delay_seconds,
            downscale_delay_s=settings.downscale_delay_seconds,
            look_back_period_s=_LOOK_BACK_SECONDS,
            policy=AutoscalingPolicy(
                policy_function=actors.QueuedTokens, policy_kwargs={"target_tokens": settings.target_tokens}
            ),
        ),
    )
    return deployment.bind(config.text, arguments(config), settings.start_seconds, config.shutdown_seconds)


def arguments(config: RayConfig) -> Sequence[str]:
    """The arguments of a replica's server, beside its file."""
    settings = config.ray
    given = ["--prometheus-port", "0", "--drain-delay", "0"]
    if not settings.num_gpus and not config.sets_threads:
        given += ["--cpu-threads", str(max(1, int(settings.num_cpus)))]
    return given


def _http(config: RayConfig) -> dict[str, Any]:
    settings = config.ray
    return {"host": settings.host, "port": settings.port, "request_timeout_s": settings.start_seconds}


def _wait(serve: Any, stop: threading.Event, settings: RaySettings) -> str:
    """Wait until the application is ready or the signal comes: "" in both cases, else why it is not ready."""
    seconds = settings.start_seconds * _STARTS + _DEPLOY_SECONDS
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = serve.status().applications[APPLICATION]
        if stop.wait(0.5) or (found.status == "RUNNING" and _is_known(settings)):
            return ""
        if found.status == "DEPLOY_FAILED":
            return (
                " ".join(_reason(one.message or found.message) for one in found.deployments.values()) or found.message
            )
    return f"no server was ready after {seconds:g} s: {found.message or 'the cluster has no room for one'}"


def _reason(message: str) -> str:
    """The message of what was raised, without Ray's traceback and the names of classes."""
    if "Traceback" not in message:
        return message
    return re.sub(r"^[\w.]+: ", "", message.strip().splitlines()[-1])


def _is_known(settings: RaySettings) -> bool:
    """Whether the proxy of this node, if there is one, sends requests to the application, which may be asleep."""
    host = "127.0.0.1" if settings.host == EVERY_ADDRESS else settings.host
    connection = http.client.HTTPConnection(host, settings.port, timeout=_ASK_SECONDS)
    with contextlib.closing(connection):
        try:
            connection.request("GET", "/-/routes")
            return APPLICATION in connection.getresponse().read(1 << 20).decode()
        except ConnectionRefusedError:
            return True
        except (OSError, http.client.HTTPException):
            return False
