"""Grafana's dashboard asks for metrics that exist, by labels that they have."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from server.http.access import HEALTH_PATHS, METRICS_PATHS
from server.metrics.declared import Declared
from server.metrics.gauges import GAUGES, PROCESS_GAUGES
from server.metrics.registry import ALL
from server.metrics.tei import TEI

GRAFANA = Path(__file__).resolve().parents[2] / "docker" / "grafana"
DASHBOARD = json.loads((GRAFANA / "dashboards" / "embedline.json").read_text())
METRICS = {declared.name: declared for declared in (*ALL, *GAUGES, *PROCESS_GAUGES, *TEI)}
_OF_HISTOGRAMS = re.compile(r"_(bucket|sum|count)$")
_NAME = re.compile(r"\b(?:embedline|te|process)_\w+")
_SELECTED = re.compile(r"(\w+)\{([^}]*)\}")
_OF_SCRAPES = {"job", "instance"}


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def declared(name: str) -> Declared:
    """Raises KeyError where there is no such series."""
    base = _OF_HISTOGRAMS.sub("", name)
    if base != name and METRICS[base].kind != "histogram":
        raise KeyError(name)
    if base == name and METRICS[name].kind == "histogram":
        raise KeyError(name)
    return METRICS[base]


def check(expression: str) -> None:
    """Raises KeyError for a metric, ValueError for a label that is not there."""
    names = _NAME.findall(expression)
    if not names:
        raise KeyError(expression)
    labels = {name: {*declared(name).labels, *_OF_SCRAPES} for name in names}
    for name in names:
        if name.endswith("_bucket"):
            labels[name].add("le")
    for name, selected in _SELECTED.findall(expression):
        if unknown := set(re.findall(r"(\w+)\s*[=!]", selected)) - labels[name]:
            raise ValueError(f"{name} has no {unknown}")
    for grouped, inside in re.findall(r"by \(([^)]*)\) \((?:\w+\()?(\w+)", expression):
        if unknown := {label.strip() for label in grouped.split(",")} - labels[inside]:
            raise ValueError(f"{inside} has no {unknown}")


def test_there_is_enough_to_see() -> None:
    shown = {_OF_HISTOGRAMS.sub("", name) for expression in expressions() for name in _NAME.findall(expression)}
    assert len(shown) > 25
    assert {
        "embedline_ready",
        "embedline_requests_total",
        "embedline_rejected_total",
        "embedline_queue_tokens",
    } <= shown


@pytest.mark.parametrize("expression", expressions())
def test_what_is_asked_for_exists(expression: str) -> None:
    check(expression)


def test_rates_of_requests_leave_out_who_only_asks_how_it_is() -> None:
    """At little traffic they would be most of it, and their 503 is no failure while a model loads."""
    asked = [each for each in expressions() if re.search(r"embedline_request(s_total|_duration)", each)]
    assert len(asked) == 6
    for each in asked:
        for _, selected in re.findall(r"(embedline_request\w+)\{?([^}\[]*)", each):
            (routes,) = re.findall(r'route!~"([^"]*)"', selected)
            assert set(routes.split("|")) == HEALTH_PATHS | METRICS_PATHS


@pytest.mark.parametrize("metric", ["embedline_ready", "embedline_engines_ready"])
def test_a_server_that_is_gone_is_not_ready(metric: str) -> None:
    """A panel of one number keeps the last one there was."""
    (shown,) = [each for each in expressions() if metric in re.findall(r"\w+", each)]
    assert shown.endswith(" or vector(0)")


@pytest.mark.parametrize(
    "wrong",
    [
        "sum(embedline_redy)",
        "sum(embedline_requests_total_sum)",
        "sum(rate(embedline_request_duration_seconds[5m]))",
        'sum(rate(embedline_requests_total{model="a"}[5m]))',
        "sum by (model) (rate(embedline_requests_total[5m]))",
        "sum by (le, status) (rate(embedline_request_duration_seconds_bucket[5m]))",
        "up",
    ],
)
def test_a_mistake_would_show(wrong: str) -> None:
    with pytest.raises((KeyError, ValueError)):
        check(wrong)


def test_legends_name_labels_that_are_left() -> None:
    for target in (target for panel in panels() for target in panel["targets"]):
        grouped = re.search(r"by \(([^)]*)\)", target["expr"])
        left = {label.strip() for label in grouped[1].split(",")} if grouped else set()
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= left, target


def test_panels_do_not_overlap_and_have_one_source() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        rows, columns = range(place["y"], place["y"] + place["h"]), range(place["x"], place["x"] + place["w"])
        cells = {(row, column) for row in rows for column in columns}
        assert max(columns) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
    (source,) = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "prometheus.yaml").read_text())[
        "datasources"
    ]
    assert {panel["datasource"]["uid"] for panel in panels()} == {source["uid"]}
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
