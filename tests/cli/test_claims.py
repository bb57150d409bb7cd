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
def test_a_paste_is_summed_up_and_fits_the_terminal(
    columns: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    paste = tmp_path / "answer.txt"
    paste.write_text("Hello\n\nTurn compile off, it eats memory.\n\x1b[31mdtype = 'float16'\x07\n")

    assert main([*CLAIMS, "--text", str(paste)]) == YES
    text = capsys.readouterr().out
    assert text.startswith(words("claims.summary_counts", n=1, false=1, partly=0, true=0, unknown=0))
    assert "FALSE  “Turn compile off, it eats memory.”" in text
    assert "Hello" not in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= int(columns)


def test_a_paste_is_answered_in_its_own_language_unless_told_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paste = tmp_path / "antwort.txt"
    paste.write_text("Voller Speicher heißt nicht, dass die Karte voll ausgelastet ist.", encoding="utf-8")

    for lang, code in (([], "de"), (["--lang", "en"], "en")):
        assert main(["claims", "--text", str(paste), "--json", *lang]) == YES
        data = json.loads(capsys.readouterr().out)["data"]
        assert data["language"] == code
        assert [(one["claim"], one["verdict_code"]) for one in data["claims"]] == [("memory_is_work", "true")]


def test_the_card_has_to_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(CLAIMS[:2]) == BAD_INPUT
    assert "--gpu" in capsys.readouterr().err
