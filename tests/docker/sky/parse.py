"""Reads tasks with SkyPilot's own parser. Runs in the environment of requirements.txt, and asks no cloud.

stdin: a list of paths
stdout: for each {"nodes", "machines", "service"}, or {"error": why it was refused}
"""

import json
import sys
from typing import Any

import sky  # type: ignore[import-not-found,unused-ignore]


def main() -> None:
    json.dump([parsed(path) for path in json.load(sys.stdin)], sys.stdout)


def parsed(path: str) -> dict[str, Any]:
    """What SkyPilot understands of a file."""
    try:
        task = sky.Task.from_yaml(path)
    except ValueError as error:  # as its InvalidSkyPilotConfigError is
        return {"error": str(error)}
    return {
        "nodes": task.num_nodes,
        "machines": [one.to_yaml_config() for one in task.resources],
        "service": task.service and task.service.to_yaml_config(),
    }


if __name__ == "__main__":
    main()
