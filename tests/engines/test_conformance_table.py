"""The page of what each engine is tested on says what really runs."""

from __future__ import annotations

from tests.engines.conftest import FAULTS
from tools import conformance


def test_the_table_has_every_engine_and_the_faults_that_its_lab_makes() -> None:
    assert {*conformance.LABS, "live-kubernetes"} == FAULTS.keys()
    assert {name: conformance.faults_of(name) for name in conformance.LABS} == {
        name: faults for name, faults in FAULTS.items() if name in conformance.LABS
    }
    assert FAULTS["live-kubernetes"] == FAULTS["kubernetes"]


def test_every_fault_that_an_engine_does_not_meet_has_a_reason_and_no_other() -> None:
    every = frozenset[str]().union(*FAULTS.values())
    lacking = {(name, fault) for name in conformance.LABS for fault in every - FAULTS[name]}
    assert lacking == conformance.WHY_NOT.keys()
