"""`brimful claims` as people call it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from brimful.cli.commands import BAD_INPUT, YES
from brimful.cli.main import main
from brimful.language import words

ROOT = Path(__file__).resolve().parent.parent.parent
CLAIMS = ["claims", str(ROOT / "examples" / "nanogpt" / "train_fineweb.py"), "--gpu", "rtx-4070"]


def test_all_claims_are_told_with_verdict_and_effect(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CLAIMS, "--json"]) == YES
    claims = json.loads(capsys.readouterr().out)["data"]["claims"]

    assert len(claims) == 9
    assert {claim["verdict"] for claim in claims} <= {"true", "partly", "false", "cannot tell"}


@pytest.mark.parametrize("columns", ["80", "120"])
def test_a_paste_is_shown_line_by_line_and_fits_the_terminal(
    columns: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    paste = tmp_path / "answer.txt"
    paste.write_text("Hello\ncompile = False\n\x1b[31mdtype = 'float16'\x07\n")

    assert main([*CLAIMS, "--text", str(paste)]) == YES
    text = capsys.readouterr().out
    assert "  1 | Hello\n" in text
    assert f"FALSE  {words('diagnose.claim_compile_off')}" in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= int(columns)


def test_the_card_has_to_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(CLAIMS[:2]) == BAD_INPUT
    assert "--gpu" in capsys.readouterr().err
