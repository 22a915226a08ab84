"""The tasks of deploy/sky are what SkyPilot reads, and start Embedline with flags that it has.

No cloud is asked. SkyPilot's own parser is in an environment of its own, 460 MB: make .clients/sky/.made
"""

import copy
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml  # type: ignore[import-untyped]

from server.http.access import HEALTH_PATHS
from server.settings.flag import flags_of
from server.settings.model import ModelSettings
from server.settings.settings import server_flags
from tests.docker.sky.task_schema import TASK

ROOT = Path(__file__).resolve().parents[3]
PYTHON = ROOT / ".clients" / "sky" / "bin" / "python"
PATHS = {path.stem: path for path in sorted((ROOT / "deploy" / "sky").glob("*.yaml"))}
TASKS: dict[str, Any] = {name: yaml.safe_load(path.read_text()) for name, path in PATHS.items()}
FLAGS = [flag for flag in (*server_flags(), *flags_of(ModelSettings))]
PRINTS = '#!/bin/sh\nprintf "%s\\n" "$@"\n'
MISSPELT = [
    ("service", ("service", "replica_policy"), "min_replica"),
    ("service", ("service", "readiness_probe"), "initial_delay"),
    ("service", ("resources", "any_of", 0), "accelerator"),
    ("service", (), "secret"),
    ("backfill", ("resources",), "spot"),
    ("backfill", ("file_mounts", "/vectors"), "modes"),
]


def with_key(name: str, place: tuple[str | int, ...], key: str) -> Any:
    """The task with a key more at this place."""
    task = copy.deepcopy(TASKS[name])
    at = task
    for step in place:
        at = at[step]
    at[key] = 1
    return task


def arguments(name: str, home: Path, **variables: str) -> list[str]:
    """What the task's `run` starts Embedline with; it is a script here that prints them."""
    program = home / "embedline" / "bin" / "embedline"
    program.parent.mkdir(parents=True)
    program.write_text(PRINTS)
    program.chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "HOME": str(home)} | TASKS[name]["envs"] | variables
    command = ["bash", "-c", TASKS[name]["run"]]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("name", TASKS)
def test_the_schema_takes_our_tasks(name: str) -> None:
    jsonschema.validate(TASKS[name], TASK)
    assert len(TASKS[name]["resources"]["any_of"]) == 4


@pytest.mark.parametrize(("name", "place", "key"), MISSPELT)
def test_the_schema_refuses_a_key_that_it_does_not_know(name: str, place: tuple[str | int, ...], key: str) -> None:
    with pytest.raises(jsonschema.ValidationError, match=key):
        jsonschema.validate(with_key(name, place, key), TASK)


@pytest.mark.parametrize("name", TASKS)
def test_variables_are_flags(name: str) -> None:
    known = {variable for flag in FLAGS for variable in flag.variables}
    assert {*TASKS[name]["envs"], *TASKS[name].get("secrets", {})} <= known


def test_a_service_answers_where_it_is_probed_and_needs_a_key(tmp_path: Path) -> None:
    task = TASKS["service"]
    given = arguments("service", tmp_path, API_KEY="k")
    flags = dict(zip(given[1::2], given[2::2], strict=True))

    assert given[0] == "serve"
    assert flags["--port"] == str(task["service"]["ports"]) == str(task["resources"]["ports"])
    assert set(flags) <= {name for flag in FLAGS for name in flag.spellings}
    assert task["service"]["readiness_probe"]["path"] in HEALTH_PATHS
    with pytest.raises(subprocess.CalledProcessError) as failed:
        arguments("service", tmp_path / "without", API_KEY="")
    assert "API_KEY" in failed.value.stderr


def test_each_machine_of_a_backfill_does_its_part_in_a_mounted_bucket(tmp_path: Path) -> None:
    given = arguments("backfill", tmp_path, SKYPILOT_NODE_RANK="2", SKYPILOT_NUM_NODES="4")

    assert given[given.index("--worker") + 1] == "2/4"
    assert "--resume" in given
    for mount, folder in zip(TASKS["backfill"]["file_mounts"], given[1:3], strict=True):
        assert Path(folder).is_relative_to(mount)


@pytest.mark.nightly
@pytest.mark.skipif(not PYTHON.exists(), reason="skypilot is not installed: make .clients/sky/.made")
def test_the_parser_of_skypilot_takes_them_and_refuses_misspelt_keys(tmp_path: Path) -> None:
    wrong = [with_key(*one) for one in MISSPELT]
    for number, task in enumerate(wrong):
        (tmp_path / f"{number}.yaml").write_text(yaml.safe_dump(task))
    paths = [*map(str, PATHS.values()), *(str(tmp_path / f"{number}.yaml") for number in range(len(wrong)))]
    ran = subprocess.run(
        [str(PYTHON), "-P", str(Path(__file__).with_name("parse.py"))],
        input=json.dumps(paths),
        env={"HOME": str(tmp_path), "PATH": os.environ["PATH"], "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    backfill, service, *others = json.loads(ran.stdout)

    assert backfill["nodes"] == TASKS["backfill"]["num_nodes"]
    assert len(backfill["machines"]) == len(service["machines"]) == 4
    assert all(one["use_spot"] for one in (*backfill["machines"], *service["machines"]))
    assert backfill["service"] is None
    assert service["service"] == TASKS["service"]["service"]
    for (_, _, key), other in zip(MISSPELT, others, strict=True):
        assert key in other["error"]
