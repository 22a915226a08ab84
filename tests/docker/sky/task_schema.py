"""A JSON schema of SkyPilot's tasks (0.14): the keys that deploy/sky uses, and no others."""

from tests.docker.chart.crd_schemas import BY_NAME, COUNT, TEXT, Schema, fields, several

SECONDS: Schema = {"type": "number", "minimum": 0}
_AT_LEAST: Schema = {"type": "string", "pattern": r"^\d+\+?$"}
_MACHINE = fields(
    accelerators={"type": "string", "pattern": r"^[A-Z0-9]+:\d+$"},
    cpus=_AT_LEAST,
    infra=TEXT,
)
_RESOURCES = fields(
    "any_of",
    any_of=several(_MACHINE),
    ports={"type": "integer", "minimum": 1, "maximum": 65535},
    disk_size=COUNT,
    memory=_AT_LEAST,
    use_spot={"type": "boolean"},
    job_recovery=fields("strategy", strategy={"enum": ["FAILOVER", "EAGER_NEXT_REGION"]}, max_restarts_on_errors=COUNT),
)
_RATES: Schema = {
    "type": "object",
    "patternProperties": {r"^[A-Z0-9]+(:\d+)?$": {"type": "number", "exclusiveMinimum": 0}},
    "additionalProperties": False,
}
_SERVICE = fields(
    "readiness_probe",
    "replica_policy",
    ports={"type": "integer", "minimum": 1, "maximum": 65535},
    readiness_probe=fields("path", path=TEXT, initial_delay_seconds=SECONDS, timeout_seconds=SECONDS),
    replica_policy=fields(
        "min_replicas",
        min_replicas=COUNT,
        max_replicas=COUNT,
        base_ondemand_fallback_replicas=COUNT,
        target_qps_per_replica=_RATES,
        upscale_delay_seconds=SECONDS,
        downscale_delay_seconds=SECONDS,
    ),
    load_balancing_policy={"enum": ["round_robin", "least_load", "instance_aware_least_load"]},
)
_MOUNT = fields("source", "mode", source={"type": "string", "pattern": r"^\w+://"}, mode={"enum": ["MOUNT"]})

TASK = fields(
    "name",
    "resources",
    "setup",
    "run",
    name=TEXT,
    workdir=TEXT,
    num_nodes={"type": "integer", "minimum": 1},
    resources=_RESOURCES,
    service=_SERVICE,
    file_mounts={"type": "object", "patternProperties": {"^/": _MOUNT}, "additionalProperties": False},
    envs=BY_NAME,
    secrets=BY_NAME,
    setup=TEXT,
    run=TEXT,
)
