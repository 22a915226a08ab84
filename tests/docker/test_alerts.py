"""The alerts ask for metrics that exist, fire when they should, and each has a line in the runbook."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

from batch_manager.scheduling.engines import Loss
from engine.types import EngineErrorKind
from server.metrics.registry import ROLES, Registry
from tests.docker.test_dashboard import METRICS, check

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "docker" / "prometheus" / "alerts.yml"
CASES = Path(__file__).with_name("alert_cases.yml")
ALERTS = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def promtool(*arguments: str) -> None:
    ran = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_alerts_ask_for_metrics_that_exist() -> None:
    for alert in ALERTS:
        check(alert["expr"])


def test_what_an_alert_counts_is_there_before_the_first_event() -> None:
    """Or increase(), which compares, would not see it: the series would begin at 1."""
    families = text_string_to_metric_families("".join(Registry([], models=["m"]).collect()))
    samples = [each for family in families for each in family.samples]
    counted = {
        words for alert in ALERTS for words in re.findall(r"increase\((\w+)(?:{(\w+)=\"(\w+)\"})?", alert["expr"])
    }

    assert len(counted) > 7
    for name, label, value in counted:
        found = [each for each in samples if each.name == name and (not label or each.labels[label] == value)]
        assert {each.value for each in found} == {0}, name


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("embedline_batch_failures_total", {*(kind.name.lower() for kind in EngineErrorKind), "lost"}),
        ("embedline_engine_losses_total", set(Loss)),
        ("embedline_process_restarts_total", set(ROLES)),
    ],
)
def test_series_begin_for_everything_that_may_happen(name: str, values: set[str]) -> None:
    assert set(METRICS[name].zeros) == values


def test_each_alert_has_a_line_in_the_runbook() -> None:
    lines = re.findall(r"^\| (Embedline\w+) \| (\w+) \| \S", (ROOT / "docs/operations.md").read_text(), re.MULTILINE)

    assert lines == [(alert["alert"], alert["labels"]["severity"]) for alert in ALERTS]


def test_each_alert_has_a_case_where_it_fires_and_one_where_it_does_not() -> None:
    cases = [case for test in yaml.safe_load(CASES.read_text())["tests"] for case in test["alert_rule_test"]]
    fires = {case["alertname"] for case in cases if case["exp_alerts"]}
    silent = {case["alertname"] for case in cases if not case["exp_alerts"]}

    assert fires == silent == {alert["alert"] for alert in ALERTS}


@needs_promtool
def test_promtool_accepts_the_rules() -> None:
    promtool("check", "rules", str(RULES))


@needs_promtool
@pytest.mark.full
def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    cases = yaml.safe_load(CASES.read_text())
    (tmp_path / "cases.yml").write_text(yaml.safe_dump({**cases, "rule_files": [str(RULES)]}))

    promtool("test", "rules", str(tmp_path / "cases.yml"))
