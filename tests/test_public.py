"""What scripts import of brimful: every name that the previous release had is still there."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields

import pytest

import brimful
from brimful import job

NAMES = {"Client", "LightningMeter", "Meter", "TrainerMeter", "fit", "replay"}
OF_JOB = {
    *("BLOCK_BYTES", "Checkpoint", "LEFT_IN_TIME", "Run", "SEAL", "UNFINISHED"),
    *("damage", "newest", "read_seal", "seal", "sha256", "whole_ones"),
}
OF_RUN = {
    *("after", "deadline_s", "for_lightning", "for_trainer", "latest", "lightning_path"),
    *("saving", "told", "warned"),
}


@pytest.mark.parametrize("name", [*sorted(NAMES), pytest.param("trace", marks=pytest.mark.torch)])
@pytest.mark.parametrize("first", ["brimful", "brimful.fit.count"])
def test_what_the_package_offers_can_be_called_whatever_was_imported_before(name: str, first: str) -> None:
    """`fit` is a room too, and Python sets the package's attribute to it once anything in it is imported."""
    again = f"import {first}; from brimful import {name}; from brimful import {name} as again"
    check = f"assert callable({name}) and callable(again)"
    subprocess.run([sys.executable, "-c", f"{again}; {check}"], check=True)


def test_the_package_offers_these_names_alone() -> None:
    assert set(brimful._PLACES) == NAMES | {"trace"}
    assert brimful.__version__
    with pytest.raises(AttributeError):
        brimful.no_such_name  # noqa: B018


def test_what_a_running_job_imports_is_there() -> None:
    assert {name for name in OF_JOB if not hasattr(job, name)} == set()
    assert {name for name in OF_RUN if not hasattr(job.Run, name)} == set()
    assert {"folder", "step", "at_s", "files"} <= {each.name for each in fields(job.Checkpoint)}


def test_without_pytorch_the_meter_says_what_to_install() -> None:
    code = "import sys; sys.modules['torch'] = None; from brimful import Meter"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: brimful.Meter needs PyTorch, which this Python does not have: pip install torch"
    )
