"""Renders a chart with several values and checks manifests by schemas. Runs in the environment of requirements.txt.

stdin: {"chart": path, "cases": [values, …], "schemas": {kind: of what others add to Kubernetes},
"manifests": others to check}
stdout: {"lint": messages, "cases": [{template: manifests} or an error's message, …], "problems": of what was rendered,
"others": of the other manifests}
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

import helm_python  # type: ignore[import-not-found,unused-ignore]
import jsonschema  # type: ignore[import-untyped,unused-ignore]
import kubernetes_validate  # type: ignore[import-not-found,unused-ignore]
import yaml  # type: ignore[import-untyped]

VERSION = "1.37"  # of Kubernetes

Manifest = dict[str, Any]


def main() -> None:
    asked = json.load(sys.stdin)
    cases = [rendered(asked["chart"], values) for values in asked["cases"]]
    manifests = [one for case in cases if isinstance(case, dict) for several in case.values() for one in several]
    answer = {
        "lint": helm_python.lint(asked["chart"])["messages"],
        "cases": cases,
        "problems": problems(manifests, asked["schemas"]),
        "others": problems(asked["manifests"], asked["schemas"]),
    }
    json.dump(answer, sys.stdout)


def rendered(chart: str, values: dict[str, Any]) -> dict[str, list[Manifest]] | str:
    """Manifests by template, or why there are none."""
    try:
        texts = helm_python.Chart.load(chart).render(values, name="embedline", namespace="search")
    except helm_python.HelmError as error:
        return str(error)
    named = {name.rpartition("/")[2]: text for name, text in texts.items() if name.endswith(".yaml")}
    return {name: [one for one in yaml.safe_load_all(text) if one] for name, text in named.items()}


def problems(manifests: list[Manifest], schemas: Mapping[str, Any]) -> list[str]:
    found = []
    for manifest in manifests:
        try:
            if manifest["kind"] in schemas:
                jsonschema.validate(manifest, schemas[manifest["kind"]])
            else:
                kubernetes_validate.validate(manifest, VERSION, strict=True)
        except (jsonschema.ValidationError, kubernetes_validate.ValidationError) as error:
            found.append(f"{manifest['kind']}: {error}")
    return found


if __name__ == "__main__":
    main()
