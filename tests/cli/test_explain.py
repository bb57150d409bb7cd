"""`brimful explain` as people call it: a file or a pipe in, sentences or JSON out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from brimful.cli.commands import BAD_INPUT, NO, WORLD_FAILED, YES
from brimful.cli.main import main
from brimful.language import words

ROOT = Path(__file__).resolve().parent.parent.parent
CONFIG = str(ROOT / "examples" / "nanogpt" / "train_fineweb.py")
OOM = (
    "    buf1 = empty_strided_cuda((16, 1024, 50304), (51511296, 50304, 1), torch.bfloat16)\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.54 GiB. GPU 0 has a total capacity of "
    "11.69 GiB of which 1.12 GiB is free. Including non-PyTorch memory, this process has 8.43 GiB memory in "
    "use. Of the allocated memory 8.02 GiB is allocated by PyTorch, and 180.12 MiB is reserved by PyTorch "
    "but unallocated.\n"
)


@pytest.fixture
def crash(tmp_path: Path) -> str:
    path = tmp_path / "crash.log"
    path.write_text(OOM)
    return str(path)


def test_a_crash_is_explained_with_its_config_and_the_fixes(
    crash: str, capsys: pytest.CaptureFixture[str]
) -> None:
    card = ["--gpu", "rtx-4070", "--other-mib", "2100"]
    assert main(["explain", crash, "--config", CONFIG, *card, "--json"]) == YES
    data = json.loads(capsys.readouterr().out)["data"]
    message, config = data["recognised"]

    assert message["facts"]["tried_bytes"] == round(1.54 * 2**30)
    (tensor,) = [said["text"] for said in message["says"] if said["code"] == "tensor"]
    assert tensor.startswith("16 x 1024 x 50304 x 2 bytes = 1.54 GiB: ")
    assert words("diagnose.tensor_logits") in tensor
    assert {"fragmentation", "no_fragmentation"} & {said["code"] for said in message["says"]} == {
        "no_fragmentation"
    }
    assert config["kind"] == "config"
    assert [said for said in config["says"] if said["code"] == "fix"]


@pytest.mark.parametrize(
    ("question", "code", "cause"),
    [
        ("90 % memory but 10 % MFU, is my GPU busy?", "en", "memory_is_not_compute"),
        ("Ma carte est à 15 % et le processeur à 100 %, pourquoi ?", "fr", "input_starved"),
        ("Pourquoi la mémoire bondit-elle après la première étape ?", "fr", "optimizer_state_second_step"),
        ("¿Por qué sube la memoria en cada época hasta que se corta?", "es", "memory_leak"),
        ("Reicht meine Karte für volles Training von 7B mit Adam?", "de", "states_exceed_card"),
    ],
)
def test_a_plain_question_is_answered_in_its_language_and_ten_lines(
    question: str, code: str, cause: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["explain", question, "--config", CONFIG, "--gpu", "rtx-4070"]
    assert main(asked) == YES
    shown = capsys.readouterr().out
    assert main([*asked, "--json"]) == YES
    data = json.loads(capsys.readouterr().out)["data"]

    assert len(shown.splitlines()) <= 10
    assert "RTX 4070" in shown  # the config on the card, as far as there is room
    assert (data["language"], data["answer"]["cause"]) == (code, cause)
    assert data["answer"]["fixes"]


def test_other_programs_are_those_of_the_message_unless_the_user_says(
    crash: str, capsys: pytest.CaptureFixture[str]
) -> None:
    held = {}
    for words_of_user in ((), ("--headless",)):
        assert (
            main(["explain", crash, "--config", CONFIG, "--gpu", "rtx-4070", "--json", *words_of_user]) == YES
        )
        config = json.loads(capsys.readouterr().out)["data"]["recognised"][1]
        held[words_of_user] = config["facts"]["other_programs"]["bytes"]

    assert held[()] == pytest.approx((11.69 - 1.12 - 8.43) * 2**30, rel=1e-6)
    assert held[("--headless",)] == 0


def test_a_plain_question_is_answered_in_its_own_language_with_its_card(
    capsys: pytest.CaptureFixture[str],
) -> None:
    question = "Speicher zu 90 % voll, aber nur 10 % MFU auf der RTX 4070: ist die GPU ausgelastet?"
    assert main(["explain", question]) == YES
    text = capsys.readouterr().out

    assert "58,3 TFLOPS" in text
    assert "Was zu ändern ist:" in text
    assert len(text.splitlines()) <= 12


def test_the_largest_batch_is_told_with_its_risk(crash: str, capsys: pytest.CaptureFixture[str]) -> None:
    card = ["--config", CONFIG, "--gpu", "rtx-4070", "--headless"]
    assert main(["explain", crash, *card, "--json"]) == YES
    config = json.loads(capsys.readouterr().out)["data"]["recognised"][1]
    (said,) = [said for said in config["says"] if said["code"].startswith("largest_batch")]
    assert said["text"] == words("diagnose.largest_batch.at_risk", sure=15, n=17)


@pytest.mark.parametrize("columns", ["80", "120"])
def test_no_line_is_wider_than_the_terminal(
    crash: str, columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    main(["explain", crash, "--config", CONFIG, "--gpu", "rtx-4070"])

    assert max(map(len, capsys.readouterr().out.splitlines())) <= int(columns)


def test_text_may_come_through_a_pipe() -> None:
    command = [sys.executable, "-m", "brimful.cli.main", "explain", "--gpu", "4070"]
    line = b"iter 4000: loss 3.1, time 245.1ms, mfu 10.00%\n\xff\xfe\n"
    done = subprocess.run(command, input=line, capture_output=True, cwd=ROOT, check=True)

    assert b"53.5 %" in done.stdout


def test_a_crash_at_the_end_of_a_long_log_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "long.log"
    path.write_text("loading the data, please wait\n" * 700_000 + OOM)

    assert path.stat().st_size > 20_000_000
    assert main(["explain", str(path)]) == YES
    assert "1.54 GiB" in capsys.readouterr().out


def test_what_is_no_message_is_a_clear_no_that_says_what_would_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "poem.txt"
    path.write_text("Of memory and its loss\n")

    assert main(["explain", str(path)]) == NO
    assert capsys.readouterr().out.startswith("Cannot tell")
    assert main(["explain", str(path), "--json"]) == NO
    data = json.loads(capsys.readouterr().out)["data"]
    assert data["cannot_tell"] is True
    assert data["missing"]


def test_a_file_that_is_not_there_and_options_that_do_not_go_together(crash: str) -> None:
    assert main(["explain", "no/such/file"]) == BAD_INPUT
    assert main(["claims", CONFIG, "--gpu", "rtx-4070", "--text", "no/such/file"]) == BAD_INPUT
    assert main(["explain", str(Path(crash).parent)]) == BAD_INPUT
    assert main(["explain", f"{crash}/below"]) == BAD_INPUT
    assert main(["explain", "/proc/self/mem"]) == WORLD_FAILED, "it is there and cannot be read"
    assert main(["explain", crash, "--set", "batch_size=8"]) == BAD_INPUT
    assert main(["explain", crash, "--gpu", "rtx 9999"]) == BAD_INPUT
