"""The alerts ask for metrics that exist, fire when they should, and each has a line in the runbook."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from tests.docker.test_dashboard import check

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
