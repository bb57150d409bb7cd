"""`brimful demo` where its server does not come up."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from brimful.cli.main import main


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (
            {"ok": False, "error": {"problem": "uvicorn is missing", "hint": "install it"}},
            "uvicorn is missing",
        ),
        (None, "brimful up"),
    ],
)
def test_a_demo_whose_server_does_not_start_says_why(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: object,
    shown: str,
) -> None:
    """Without the server's packages: the error comes as JSON over several lines."""
    said = tmp_path / "answer"
    said.write_text(json.dumps(answer, indent=2) if answer else "{ no JSON\n")
    stand_in = tmp_path / "python"
    stand_in.write_text(f"#!/bin/sh\ncat {said}\n")
    stand_in.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stand_in))
    assert main(["demo"]) == 3
    assert shown in capsys.readouterr().err
