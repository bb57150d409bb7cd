import json
import subprocess
import sys
from pathlib import Path

import pytest

from brimful.cli.main import main

EXAMPLE = str(Path(__file__).resolve().parents[2] / "examples" / "nanogpt" / "train_fineweb.py")
HEAVY = ("torch", "numpy", "fastapi", "sqlalchemy", "asyncio")


def test_out_of_memory_is_a_clear_no_with_numbers_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", EXAMPLE, "--gpu", "rtx-4070", "--other-mib", "2100"]) == 1

    first, needs, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("DOES NOT FIT")
    assert "GiB of 11.69 GiB usable, short by" in needs
    assert any("batch_size 16 -> 8, gradient_accumulation_steps 32 -> 64" in line for line in rest)


def test_a_run_that_fits_is_a_yes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", EXAMPLE, "--gpu", "4070", "--other-mib", "2100", "--set", "batch_size=8"]) == 0

    assert capsys.readouterr().out.startswith("FITS")


def test_the_text_names_counters_peak_and_assumptions(capsys: pytest.CaptureFixture[str]) -> None:
    main(["fit", EXAMPLE, "--gpu", "rtx-4070"])

    text = capsys.readouterr().out
    for word in (
        "allocated",
        "reserved",
        "device",
        "first step",
        "58.3 TFLOPS dense bf16",
        "vocab_size=50304",
    ):
        assert word in text
    assert "--other-mib" in text  # a desktop card probably drives a screen


def test_every_line_can_be_read_on_a_narrow_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    main(["fit", EXAMPLE, "--gpu", "rtx-4070", "--other-mib", "2100"])

    assert max(map(len, capsys.readouterr().out.splitlines())) <= 105


def test_json_says_does_not_fit_with_ok_true(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", EXAMPLE, "--gpu", "rtx-4070", "--other-mib", "2100", "--json"]) == 1

    envelope = json.loads(capsys.readouterr().out)
    assert envelope["ok"] is True
    assert envelope["data"]["fits"] is False
    items = envelope["data"]["memory"]["items"]
    assert sum(item["bytes"] for item in items) == envelope["data"]["memory"]["device_bytes"]["likely"]


@pytest.mark.parametrize(
    "words",
    [
        ["absent.py", "--gpu", "rtx-4070"],
        [".", "--gpu", "rtx-4070"],
        [sys.executable, "--gpu", "rtx-4070"],
        [EXAMPLE, "--gpu", "rtx-9999"],
        [EXAMPLE, "--gpu", "a100"],
        [EXAMPLE],
        [EXAMPLE, "--gpu", "rtx-4070", "--other-mib", "-1"],
        [EXAMPLE, "--gpu", "rtx-4070", "--other-mib", "nan"],
        [EXAMPLE, "--gpu", "rtx-4070", "--other-mib", "1" + "0" * 30],
        [EXAMPLE, "--gpu", "rtx-4070", "--set", "n_layer=10**30"],
        ["bad\x00name.py", "--gpu", "rtx-4070"],
    ],
)
def test_bad_input_is_one_error_with_a_hint(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main(["fit", *words]) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert "hint: " in captured.err
    assert "Traceback" not in captured.err


def test_the_largest_numbers_a_config_may_hold_still_give_an_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    absurd = [
        "n_layer=10000",
        "n_embd=1000000",
        "n_head=100000",
        "block_size=10**8",
        "vocab_size=10**8",
        "batch_size=10**7",
    ]
    sets = [word for value in absurd for word in ("--set", value)]

    assert main(["fit", EXAMPLE, "--gpu", "b200", "--json", *sets]) == 1

    assert json.loads(capsys.readouterr().out)["data"]["largest_batch"] is None


def test_fit_starts_light() -> None:
    check = (
        "import sys; from brimful.cli.main import main; "
        f"main(['fit', {EXAMPLE!r}, '--gpu', 'rtx-4070']); "
        f"sys.stderr.write(','.join(m for m in {HEAVY!r} if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)

    assert "TIGHT" in done.stdout
    assert done.stderr == ""


def test_import_brimful_is_standard_library_only() -> None:
    check = (
        "import sys; before = set(sys.modules); import brimful; "
        "new = {m.partition('.')[0] for m in set(sys.modules) - before} - {'brimful'}; "
        "print(sorted(new - sys.stdlib_module_names), 'brimful.predict' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[] False"
