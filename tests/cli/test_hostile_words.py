"""Names of files, arguments and words of a file are anybody's: they reach the terminal as text alone."""

from __future__ import annotations

import contextlib
import json
import re
import zipfile
from pathlib import Path

import pytest

from brimful.cli import render
from brimful.cli.fleet import job
from brimful.cli.main import main
from tests.accuracy.test_score import ROW, a_table

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
ESCAPE = "\x1b[2J\u202e\x9b1m"
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def credit(tenant: str) -> str:
    body = {"at_s": 0, "tenant": tenant, "microusd": 5}
    return json.dumps({"kind": "CreditGranted", "body": body})


@pytest.mark.parametrize(
    "typed",
    [
        ["market", "ledger", f"no{ESCAPE}"],
        ["market", "ledger", f"log{ESCAPE}.jsonl"],
        ["market", "ledger", "tenant.jsonl"],
        ["invoice", "--log", "kind.jsonl"],
        ["fit", "gpt2", f"what{ESCAPE}"],
        [f"fit{ESCAPE}"],
        ["fleet", f"show{ESCAPE}"],
        ["simulate", "header.csv"],
        ["simulate", f"synthetic:{ESCAPE}"],
        ["simulate", "\udcff.csv"],
        ["admin", "restore", "new.zip", "--data", "there"],
        ["admin", "restore", "new.zip", "--data", "there", "--dry-run"],
        ["admin", "doctor", "--data", "\udcff"],
        ["job", "show", "\udcff"],
        ["budget", "\udcff", "--unlimited", "--yes"],
    ],
    ids=ascii,
)
def test_no_word_of_a_stranger_moves_the_cursor(
    typed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(f"log{ESCAPE}.jsonl").write_text("{")
    Path("tenant.jsonl").write_text(credit(f"a{ESCAPE}\nb"))
    Path("kind.jsonl").write_text(json.dumps({"kind": ESCAPE, "body": {}}))
    Path("header.csv").write_text(f"job,{ESCAPE},gpus\n1,2,3\n")
    made = {"schema": 99, "brimful": f"1.0{ESCAPE}", "rows": {ESCAPE: 1}, "sha256": {ESCAPE: "0"}}
    with zipfile.ZipFile("new.zip", "w") as archive:
        archive.writestr("manifest.json", json.dumps(made))
    main(typed)
    shown = "".join(capsys.readouterr())
    assert shown
    assert not UNSAFE.search(shown)


def test_a_name_of_several_lines_is_told_on_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["market", "ledger", "a\nerror: b"]) == 2
    assert "a\N{REPLACEMENT CHARACTER}error: b" in capsys.readouterr().err.splitlines()[0]


def test_what_is_not_utf_8_is_refused_where_only_text_can_go(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "show", "\udcff", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["code"], error["reason"]["code"]) == ("bad_input", "cli.not_utf8")


@pytest.mark.parametrize("tty", [True, False])
def test_our_own_colours_stay_where_a_person_looks(tty: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "colours", lambda: tty)
    text = f"{render.paint('fits', 'green')}\n\tb"
    assert render.clean(text) == text
    assert render.clean(text + "\x1b[8m\r") == text + "\N{REPLACEMENT CHARACTER}[8m\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("tty", [True, False])
@pytest.mark.parametrize("follow", [True, False])
def test_the_log_of_a_job_cannot_harm_a_terminal_and_reaches_a_pipe_as_it_came(
    tty: bool, follow: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bars and colours stay; cursor, title, clipboard, questions to the terminal do not."""
    kept = "50 %\r\x1b[1m100 %\x1b[0m\t\x1b[K\n"
    attacks = "\x1b[2J\x1b]0;title\x07\x1b]52;c;cm0gLXJm\x07\x1b[6n\x9b1m\u202e\x08\n"
    pieces = [{"text": kept + attacks, "phase": "finished"}]
    monkeypatch.setattr(job, "Client", lambda: None)
    monkeypatch.setattr(job, "_until_now", lambda *_: pieces)
    monkeypatch.setattr(job, "_until_over", lambda *_: pieces)
    monkeypatch.setattr("sys.stdout.isatty", lambda: tty, raising=False)
    if follow:
        monkeypatch.setattr(job, "tell", lambda *_a, **_k: None)
        with contextlib.suppress(AttributeError):  # there is no client to ask how it ended
            main(["job", "logs", "-f", "job-1"])
    else:
        assert main(["job", "logs", "job-1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(kept)
    assert (out == kept + attacks) == (not tty)
    if tty:
        assert not set(out.removeprefix(kept)) & set("\x1b\x07\x9b\u202e\x08")


FORGED = "x\nFITS  anything (0.1 M parameters)\r\tMARKED\u2028FITS\x85FITS"


@pytest.mark.parametrize(
    "typed",
    [
        ["fit", "config.json", "--gpu", "rtx-4070"],
        ["fit", "config.json", "--gpu", "rtx-4070", "--compare", "batch_size=2"],
        ["fit", "config.json", "--gpu", "all"],
        ["sweep", "config.json", "--gpu", "rtx-4070", "--batch-size", "1:4"],
        ["sweep", "config.json", "--gpu", "rtx-4070", "--batch-size", "1:4", "--seq-len", "64,128"],
        ["claims", "config.json", "--gpu", "rtx-4070"],
        ["fit", f"{FORGED}.json", "--gpu", "rtx-4070"],
        ["market", "clear", "book.json"],
        ["market", "clear", f"{FORGED}.json"],
        ["runs", "score", "runs.csv"],
    ],
    ids=ascii,
)
def test_no_name_in_a_file_starts_a_line_of_ours(
    typed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shape = {"n_layer": 2, "n_head": 2, "n_embd": 64, "vocab_size": 128, "n_positions": 128}
    Path("config.json").write_text(json.dumps({"model_type": FORGED, **shape}))
    book = json.loads((EXAMPLES / "book.json").read_text())
    book["pool"] = FORGED
    for bid in book["bids"]:
        bid["bid"] += FORGED
    Path("book.json").write_text(json.dumps(book))
    a_table(Path("runs.csv"), {**ROW, "id": f"{FORGED}-1"})
    main(typed)
    shown = "".join(capsys.readouterr())
    assert "MARKED" in shown
    verdicts = [line for line in shown.splitlines() if line.lstrip().startswith(("MARKED", "FITS"))]
    assert not [line for line in verdicts if "x\N{REPLACEMENT CHARACTER}FITS" not in line]
