import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from brimful.cli.main import main
from brimful.language import words
from brimful.units import MIB
from tests.builders import check_reason
from tests.fake_nvml import FakeNvml, a_card

EXAMPLE = str(Path(__file__).resolve().parents[2] / "examples" / "nanogpt" / "train_fineweb.py")
HEAVY = (
    *("torch", "numpy", "fastapi", "sqlalchemy", "asyncio", "yaml"),
    *("brimful.meter", "brimful.diagnose.explain"),  # patterns that take long to compile
)


def test_out_of_memory_is_a_clear_no_with_numbers_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", EXAMPLE, "--gpu", "rtx-4070", "--other-mib", "2100"]) == 1

    first, needs, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("DOES NOT FIT")
    likely, usable, short = map(float, re.findall(r"([\d.]+) GiB", needs)[:3])
    assert usable == 11.69
    assert short == pytest.approx(likely - usable, abs=0.011)
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
        ["--gpu", "rtx-4070"],
        ["--gpu", "rtx-4070", "--model", "gpt5"],
        ["--gpu", "rtx-4070", "--model", "llama"],
        [EXAMPLE, "--gpu", "rtx-4070", "--model", "gpt2"],
        [EXAMPLE, "--gpu", "rtx-4070", "--args", EXAMPLE],
        ["--gpu", "rtx-4070", "--model", "gpt2", "--batch-size", "-4"],
        ["--gpu", "rtx-4070", "--model", "gpt2", "--batch-size", "10**30"],
        ["--gpu", "rtx-4070", "--model", "gpt2", "--batch-size", "__import__('os')"],
        ["--gpu", "rtx-4070", "--model", "gpt2", "--patch"],
        [EXAMPLE, "--gpu", "rtx-4070", "--dry-run"],
        [EXAMPLE, "--gpu", "rtx-4070", "--measured-mfu", "nan"],
        [EXAMPLE, "--gpu", "rtx-4070", "--measured-mfu", "-1"],
        [EXAMPLE, "--gpu", "rtx-4070", "--measured-peak-gib", "inf"],
        [EXAMPLE, "--gpu", "rtx-4070", "--other-mib", "2100", "--patch", "--fix", "99"],
        [EXAMPLE, "--gpu", "rtx-4070", "--compare", "absent.py"],
        [EXAMPLE, "--gpu", "rtx-4070", "--compare", "sparkle=3"],
    ],
)
def test_bad_input_is_one_error_with_a_hint(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main(["fit", *words]) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert "hint: " in captured.err
    assert "Traceback" not in captured.err

    assert main(["fit", *words, "--json"]) == 2, "a number that is not one does not break the envelope"
    assert json.loads(capsys.readouterr().out)["error"]["code"]


def test_a_length_to_copy_has_no_separator(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--model", "gpt2", "--gpu", "rtx-4070", "--seq-len", "2048"]) == 2
    assert capsys.readouterr().err.rstrip().endswith("--seq-len 1024")


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


FORUM = [EXAMPLE, "--gpu", "rtx-4070", "--other-mib", "2100"]


def test_the_forums_changes_stand_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    changes = ["batch_size=12,gradient_accumulation_steps=40", "compile=False", "dtype=float16"]
    changes.append(",".join(changes))

    assert main(["fit", *FORUM, "--json", "--compare", *changes]) == 0

    as_is, smaller, eager, half, together, ours = json.loads(capsys.readouterr().out)["data"]["compared"]
    needs = {row["name"]: row["memory"]["device_bytes"]["likely"] for row in (as_is, smaller, eager, half)}
    assert not as_is["fits"]
    assert smaller["effective_batch"] == together["effective_batch"] == 480
    assert needs[half["name"]] == needs[as_is["name"]]
    assert needs[eager["name"]] > needs[as_is["name"]]
    assert eager["speed"]["tokens_per_s"]["likely"] < as_is["speed"]["tokens_per_s"]["likely"]
    assert not together["fits"]
    assert ours["name"] == "brimful's fix: batch_size=8, gradient_accumulation_steps=64"
    assert ours["fits"]
    assert ours["effective_batch"] == 512


def test_a_comparison_says_which_rows_are_other_runs(capsys: pytest.CaptureFixture[str]) -> None:
    main(["fit", *FORUM, "--compare", "batch_size=12,gradient_accumulation_steps=40", EXAMPLE])

    text = capsys.readouterr().out
    assert words("gpu.other_run", rows="B", n=512) in text
    assert "C  train_fineweb.py" in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_row_of_a_comparison_says_what_fit_says_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    main(["fit", *FORUM, "--json", "--compare", "batch_size=4,vocab_size=50257"])
    as_is, variant, ours = json.loads(capsys.readouterr().out)["data"]["compared"]
    main(["fit", *FORUM, "--json", "--set", "batch_size=4", "--set", "vocab_size=50257"])
    alone = json.loads(capsys.readouterr().out)["data"]

    assert {key: variant[key] for key in alone} == alone
    assert variant["fits"]
    assert variant["largest_batch"] >= 4
    assert {"code": "fit.vocabulary_not_multiple", "n": 50257, "padded": 50304} in variant["warning_codes"]
    assert as_is["assumed"]
    assert as_is["fixes"]
    assert ours["largest_batch"] >= 8


def test_two_files_are_compared_by_naming_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "smaller.py"
    other.write_text(Path(EXAMPLE).read_text() + "batch_size = 4\n")

    assert main(["fit", "--compare", EXAMPLE, str(other), "--gpu", "a100-80gb", "--json"]) == 0

    as_is, smaller = json.loads(capsys.readouterr().out)["data"]["compared"]
    assert (as_is["effective_batch"], smaller["effective_batch"]) == (512, 128)
    assert smaller["name"] == "smaller.py"


def test_flags_alone_are_enough(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--model",
        "llama-3.1-8b",
        "--batch-size",
        "4",
        "--seq-len",
        "4096",
        "--gpu",
        "b200",
        "--no-compile",
    ]
    flags = [
        "--checkpointing",
        "full",
        "--precision",
        "bf16",
        "--optimizer",
        "adam8bit",
        "--loss-chunks",
        "8",
    ]

    assert main(["fit", *words, *flags]) == 0

    text = capsys.readouterr().out
    title = next(line for line in text.splitlines() if "llama-3.1-8b" in line)
    assert "8.03 B" in title
    assert "NVIDIA B200" in title
    assert "nanoGPT" not in text


@pytest.mark.parametrize("flag", ["--lora", "--qlora"])
def test_an_adapter_needs_far_less(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    words = ["fit", "--model", "llama-3.1-8b", "--gpu", "h100", "--json"]
    main(words)
    full = json.loads(capsys.readouterr().out)["data"]["memory"]["device_bytes"]["likely"]
    main([*words, flag])

    assert json.loads(capsys.readouterr().out)["data"]["memory"]["device_bytes"]["likely"] < full / 2


def test_more_gpus_divide_nanogpts_accumulation(capsys: pytest.CaptureFixture[str]) -> None:
    main(["fit", EXAMPLE, "--gpu", "4090", "--gpus", "8"])

    assert "on 8 x NVIDIA GeForce RTX 4090" in (text := capsys.readouterr().out)
    assert "for 512 sequences" in text


def test_the_models_known_by_name_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--models"]) == 0

    assert "meta-llama/Llama-3.1-8B" in capsys.readouterr().out


def test_the_ladder_is_shown_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    main(["fit", *FORUM, "--ladder"])
    assert "  0. batch_size 1, gradient_accumulation_steps 512" in capsys.readouterr().out

    main(["fit", *FORUM, "--ladder", "--json"])
    assert json.loads(capsys.readouterr().out)["data"]["ladder"][0]["verdict"] == "fits"


def test_an_impossible_number_is_called_so_first(capsys: pytest.CaptureFixture[str]) -> None:
    main(["fit", *FORUM, "--measured-mfu", "1.2", "--measured-peak-gib", "0.5"])

    mfu, peak = [line for line in capsys.readouterr().out.splitlines() if line.startswith("IMPOSSIBLE")]
    assert "MFU" in mfu
    assert "peak_bytes" in peak


def test_a_number_that_is_rarely_seen_is_called_unusual(capsys: pytest.CaptureFixture[str]) -> None:
    main(["fit", *FORUM, "--measured-mfu", "0.8", "--measured-peak-gib", "11.8"])

    mfu, *rest = capsys.readouterr().out.splitlines()
    assert mfu.startswith("unusual  MFU: 80 %")
    assert any(line.startswith("possible  peak_bytes: 11.80 GiB") for line in rest)


def test_patch_prints_the_config_with_the_fix_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", *FORUM, "--patch"]) == 0

    printed, before = capsys.readouterr().out.splitlines(), Path(EXAMPLE).read_text().splitlines()
    assert [line for line in printed if line not in before] == [
        "batch_size = 8",
        "gradient_accumulation_steps = 64",
    ]


def test_write_makes_the_fix_and_the_file_then_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.py"
    file.write_text(Path(EXAMPLE).read_text())
    words = ["fit", str(file), "--gpu", "rtx-4070", "--other-mib", "2100"]

    assert main(words) == 1
    assert main([*words, "--write", "--dry-run"]) == 0
    assert file.read_text() == Path(EXAMPLE).read_text()
    assert main([*words, "--write"]) == 0
    assert (tmp_path / "config.py.bak").read_text() == Path(EXAMPLE).read_text()
    assert main(words) == 0
    assert "wrote" in capsys.readouterr().out


def test_write_edits_training_arguments_too(tmp_path: Path) -> None:
    arguments = tmp_path / "args.json"
    arguments.write_text(
        '{\n  "per_device_train_batch_size": 64,\n  "bf16": true,\n  "max_length": 1024\n}\n'
    )
    words = ["fit", "--model", "gpt2", "--args", str(arguments), "--gpu", "rtx-4090"]

    assert main(words) == 1
    assert main([*words, "--write"]) == 0
    assert main(words) == 0
    changed = json.loads(arguments.read_text())
    assert changed["per_device_train_batch_size"] * changed.get("gradient_accumulation_steps", 1) == 64


def test_a_file_that_says_a_setting_twice_is_not_half_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("base_model: gpt2\nmicro_batch_size: 64\nbatch_size: 64\nbf16: true\n")

    assert main(["fit", str(recipe), "--gpu", "rtx-4090", "--write", "--json"]) == 1

    check_reason(json.loads(capsys.readouterr().out)["error"]["reason"], "gpu.patch_unchangeable")
    assert "micro_batch_size: 64\nbatch_size: 64" in recipe.read_text()


@pytest.mark.parametrize("how", ["--write", "--patch"])
@pytest.mark.parametrize(
    ("said", "code", "value"),
    [
        (["--set", "checkpointing=full"], "gpu.patch_not_a_line", "checkpointing none -> full"),
        (["--attention", "math"], "gpu.patch_not_a_line", "attention flash -> math"),
        (["--batch-size", "4", "--set", "loss_chunks=8"], "gpu.patch_not_a_line", "loss_chunks 1 -> 8"),
        (["--set", "n_layer=10", "--batch-size", "4"], "gpu.patch_other_model", "layers"),
        (["--set", "dropout=0.1", "--batch-size", "4"], "gpu.patch_other_model", "dropout"),
    ],
)
def test_what_no_line_of_the_config_says_is_neither_invented_nor_dropped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str, said: list[str], code: str, value: str
) -> None:
    file = tmp_path / "config.py"
    file.write_text(Path(EXAMPLE).read_text())

    assert main(["fit", str(file), "--gpu", "rtx-4070", "--other-mib", "2100", *said, how, "--json"]) == 1

    error = json.loads(capsys.readouterr().out)["error"]
    check_reason(error["reason"], code, value)
    assert error["hint"]
    assert (
        code == "gpu.patch_other_model"
        or words("language.or", some="model.py", last="train.py") in error["hint"]
    )
    assert [each.name for each in tmp_path.iterdir()] == ["config.py"]
    assert file.read_text() == Path(EXAMPLE).read_text()


def test_selective_checkpointing_is_no_training_argument(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = tmp_path / "args.json"
    arguments.write_text('{"per_device_train_batch_size": 2, "bf16": true}')
    typed = ["--model", "gpt2", "--args", str(arguments), "--gpu", "b200", "--checkpointing", "selective"]

    assert main(["fit", *typed, "--write", "--json"]) == 1

    reason = json.loads(capsys.readouterr().out)["error"]["reason"]
    check_reason(reason, "gpu.patch_not_a_line", "checkpointing none -> selective")


def test_how_many_gpus_torchrun_starts_does_not_stand_in_the_way_of_a_patch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.py"
    file.write_text(Path(EXAMPLE).read_text())
    words = ["fit", str(file), "--gpu", "rtx-4070", "--other-mib", "2100", "--gpus", "8"]

    assert main(words) == 1
    assert main([*words, "--write"]) == 0
    assert main(words) == 0
    assert "gpus =" not in file.read_text()
    assert "for 512 sequences" in capsys.readouterr().out


def test_a_deepspeed_config_beside_the_arguments_is_read_with_the_patch_too(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}}')
    arguments = tmp_path / "args.json"
    arguments.write_text('{"per_device_train_batch_size": 64, "bf16": true, "deepspeed": "ds.json"}')
    words = ["fit", "--model", "gpt2", "--args", str(arguments), "--gpu", "rtx-4090", "--gpus", "2"]

    assert main(words) == 1
    assert main([*words, "--write"]) == 0
    assert main(words) == 0


def test_a_precision_is_written_whatever_the_file_says_of_tf32(tmp_path: Path) -> None:
    arguments = tmp_path / "args.json"
    arguments.write_text('{"per_device_train_batch_size": 4, "tf32": true}')
    words = ["fit", "--model", "gpt2", "--args", str(arguments), "--gpu", "4090", "--precision", "amp-bf16"]

    assert main([*words, "--write"]) == 0

    assert json.loads(arguments.read_text())["bf16"] is True


def test_a_fix_that_is_code_is_not_passed_off_as_a_patch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", *FORUM, "--patch", "--fix", "2", "--json"]) == 1

    check_reason(json.loads(capsys.readouterr().out)["error"]["reason"], "gpu.fix_not_a_line", 2)


def test_fit_starts_light() -> None:
    check = (
        "import sys; from brimful.cli.main import main; "
        f"main(['fit', {EXAMPLE!r}, '--gpu', 'rtx-4070']); "
        f"sys.stderr.write(','.join(m for m in {HEAVY!r} if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)

    assert "LIKELY DOES NOT FIT" in done.stdout
    assert done.stderr == ""


def test_import_brimful_is_standard_library_only() -> None:
    check = (
        "import sys; before = set(sys.modules); import brimful; "
        "new = set(sys.modules) - before; foreign = {m.partition('.')[0] for m in new} - {'brimful'}; "
        "print(sorted(foreign - sys.stdlib_module_names), sorted(m for m in new if m.startswith('brimful')))"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[] ['brimful']"  # and none of its rooms


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize(
    "words",
    [
        ["--model", "llama-3.1-70b", "--gpu", "h100", "--gpus", "8", "--sharding", "zero3"],
        ["--model", "gemma-2-9b", "--gpu", "a10g", "--framework", "litgpt", "--qlora", "--seq-len", "512"],
        ["--model", "gpt2-xl", "--gpu", "4070", "--batch-size", "16", "--accumulation", "4", "--ladder"],
    ],
)
def test_the_report_fits_the_terminal(
    words: list[str], columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))

    main(["fit", *words])

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 10
    assert [line for line in lines if len(line) > columns] == []


def test_a_framework_changes_what_is_counted_and_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fit", "--model", "llama-3.2-3b", "--gpu", "a10g", "--qlora", "--seq-len", "512", "--json"]
    needs = []
    for framework in ("pytorch", "litgpt"):
        main([*words, "--framework", framework])
        data = json.loads(capsys.readouterr().out)["data"]
        needs.append(data["memory"]["allocated_bytes"]["likely"])
        targets = next(each["value"] for each in data["assumed"] if each["name"] == "targets")
        assert targets == (7 if framework == "pytorch" else 2)

    assert needs[0] != needs[1]
    assert main([*words, "--framework", "nobody"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "unknown_framework"


# ---- the card of this machine


def test_without_a_named_card_the_driver_is_asked(
    fake_nvml: FakeNvml, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_nvml.show(a_card(name="NVIDIA GeForce RTX 4070", memory_used=700 * MIB))
    main(["fit", EXAMPLE, "--json"])
    data = json.loads(capsys.readouterr().out)["data"]

    assert data["gpu"] == "rtx-4070"
    assert data["other_programs"]["bytes"] == 700 * MIB
    main(["fit", EXAMPLE, "--json", "--other-mib", "2100"])
    assert json.loads(capsys.readouterr().out)["data"]["other_programs"]["bytes"] == 2100 * MIB


# ---- the framework's own model


@pytest.mark.torch
def test_exact_traces_the_frameworks_own_model_beside_the_formula(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "gpt2", "--batch-size", "1", "--seq-len", "64", "--no-compile", "--gpu", "rtx-4090"]
    assert main(["fit", *words, "--framework", "transformers", "--exact", "--json"]) == 0
    exact = json.loads(capsys.readouterr().out)["data"]["exact"]

    assert exact["code"] == "transformers"
    assert exact["fits"]
    # GPT-2's weights, gradients and both moments in fp32, and more.
    assert 16 * 124_439_808 < exact["allocated_bytes"] < exact["reserved_bytes"] < exact["device_bytes"]
    assert abs(exact["formula_off"]) < 0.03


@pytest.mark.torch
def test_exact_says_what_it_has_no_program_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--model", "gpt2", "--compile", "--gpu", "rtx-4090", "--exact", "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "no_exact"
    assert "--no-compile" in error["problem"]
