"""What is shipped beside the program: alert rules and the systemd unit."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from brimful.client.settings import read_settings
from brimful.server.metrics import COUNTERS, GAUGES
from tests.conftest import missing

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "brimful-alerts.yml"
TESTS = Path(__file__).with_name("alerts.test.yml")
UNIT = ROOT / "deploy" / "systemd" / "brimful.service"


@pytest.fixture
def promtool() -> str:
    # Where tools/setup.sh puts it, then where anybody else would.
    found = shutil.which("promtool", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        missing("promtool", "`tools/setup.sh system` installs it")
    return found


def test_every_alert_fires_where_it_must_and_not_before(promtool: str, tmp_path: Path) -> None:
    for each in (RULES, TESTS):
        shutil.copy(each, tmp_path)
    for command in (["check", "rules", RULES.name], ["test", "rules", TESTS.name]):
        done = subprocess.run([promtool, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test_and_names_metrics_that_there_are() -> None:
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    tested = {
        case["alertname"]
        for test in yaml.safe_load(TESTS.read_text())["tests"]
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }
    assert {rule["alert"] for rule in rules} == tested
    known = {*GAUGES, *(f"{name}_total" for name in COUNTERS)}
    for rule in rules:
        assert set(re.findall(r"brimful_[a-z_]+", rule["expr"])) <= known, rule["alert"]
        assert set(rule["annotations"]) == {"summary", "description"}


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        missing("systemd-analyze", "`tools/setup.sh system` installs it")
    # It also looks whether the program is there, which nobody has installed here.
    unit = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", UNIT.read_text("utf-8"), flags=re.MULTILINE)
    (tmp_path / UNIT.name).write_text(unit, "utf-8")
    words = [analyze, "verify", "--man=no", str(tmp_path / UNIT.name)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    (tmp_path / UNIT.name).write_text(unit.replace("KillMode=process", "KillMode=nothing"), "utf-8")
    broken = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "kill mode" in broken.stderr, "it would say so"


def test_the_unit_starts_the_server_and_leaves_its_jobs_alone() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(UNIT)
    service = dict(unit["Service"])
    assert service["KillMode"] == "process", "a restart of the server must not end jobs"
    assert service["ExecStart"].endswith("/brimful up")
    given = dict(pair.split("=", 1) for pair in service["Environment"].split())
    settings = read_settings(env=given)
    assert (settings.data, settings.log_format) == ("/var/lib/brimful", "json")
