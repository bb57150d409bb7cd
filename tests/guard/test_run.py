"""`brimful run` around scripts that stand for training: what is started, how often, what is left behind."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from brimful.specs.gpu import find_gpu
from brimful.units import GIB
from tests.conftest import ROOT
from tests.fake_nvml import FakeNvml, a_card
from tests.patience import PATIENCE_S

MESSAGE = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 11.69 GiB of which 1.00 "
    "GiB is free. Including non-PyTorch memory, this process has 10.69 GiB memory in use. Of the allocated "
    "memory 10.00 GiB is allocated by PyTorch, and 300.00 MiB is reserved by PyTorch but unallocated."
)
# A script that takes its settings by argparse and has room for a micro-batch of LIMIT.
TRAIN = f"""
import argparse, json, os, pathlib, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=8)
parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
parser.add_argument("--limit", type=int, default=1)
parser.add_argument("--resume")
parser.add_argument("--steps", type=int, default=4)
options = parser.parse_args()
ckpt, third = pathlib.Path("ckpt.json"), pathlib.Path("brimful-runs/train-001/try-3.log")
first = json.loads(pathlib.Path(options.resume).read_text())["step"] if options.resume else 0
print(f"batch {{options.batch_size}} x {{options.gradient_accumulation_steps}} from {{first}}", flush=True)
for step in range(first, options.steps):
    if step >= 2 and options.batch_size > options.limit:
        raise RuntimeError({MESSAGE!r})
    ckpt.with_suffix(".new").write_text(json.dumps({{"step": step + 1}}))
    os.replace(ckpt.with_suffix(".new"), ckpt)
    # The second try must not be over before it is left for another rung, which is the third.
    while os.environ.get("CLIMBS") and step >= 2 and not third.exists():
        time.sleep(0.05)
print("done", flush=True)
"""


def start(folder: Path, *words: str, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "brimful.cli.main", "run", *words],
        cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more,
    )  # fmt: skip


def ran(folder: Path, *words: str, **more: Any) -> tuple[int, str, str]:
    process = start(folder, *words, **more)
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


def told(folder: Path, *words: str, **more: Any) -> dict[str, Any]:
    code, out, err = ran(folder, "--json", *words, **more)
    data: dict[str, Any] = json.loads(out)["data"]
    assert data["exit_code"] == code, err
    return data


@pytest.fixture
def train(tmp_path: Path) -> list[str]:
    (tmp_path / "train.py").write_text(TRAIN)
    return [sys.executable, "train.py"]


RESUME = ("--checkpoint", "ckpt.json", "--resume-with=--resume={checkpoint}")


def test_half_the_batch_twice_the_accumulation_until_it_holds(tmp_path: Path, train: list[str]) -> None:
    data = told(tmp_path, *RESUME, "--", *train, "--limit", "2")

    tries = [Path(tmp_path / each["log"]).read_text().splitlines()[0] for each in data["tries"]]
    assert tries == ["batch 8 x 2 from 0", "batch 4 x 4 from 2", "batch 2 x 8 from 2"]
    assert [each["ended"] for each in data["tries"]] == ["out_of_memory", "out_of_memory", "finished"]
    assert data["exit_code"] == 0
    assert data["changed"] == {
        "per_device_train_batch_size": [8, 2],
        "gradient_accumulation_steps": [2, 8],
    }
    journal = json.loads((tmp_path / data["logs"] / "run.json").read_text())
    assert [each["number"] for each in journal["tries"]] == [1, 2, 3]


def test_what_never_fits_is_tried_once_for_every_batch_and_no_more(tmp_path: Path, train: list[str]) -> None:
    data = told(tmp_path, *RESUME, "--", *train, "--limit", "0")

    assert len(data["tries"]) == 4  # 8, 4, 2, 1
    assert len({tuple(each["words"]) for each in data["tries"]}) == 4
    assert data["exit_code"] == 1
    assert data["reason"] == {
        "code": "guard.gave_up",
        "tries": {"code": "guard.tries", "n": 4},
        "why": {"code": "guard.smallest_batch", "key": "per_device_train_batch_size", "size": 1},
    }


def test_no_more_starts_than_asked_for(tmp_path: Path, train: list[str]) -> None:
    data = told(tmp_path, "--tries", "2", "--", *train, "--limit", "0")

    assert len(data["tries"]) == 2
    assert (data["reason"]["code"], data["reason"]["tries"]["n"]) == ("guard.no_try_left", 2)


# One that was caught and survived is not what ended it.
SURVIVED = f"""
try:
    raise RuntimeError({MESSAGE!r})
except RuntimeError as error:
    print("skipped:", error)
raise ValueError("later")
"""
CRASHES = {"error": "raise ValueError('no data')", "survived": SURVIVED, "abort": "import os; os.abort()"}


@pytest.mark.parametrize("what", CRASHES)
def test_a_crash_that_is_not_for_memory_is_not_tried_again(tmp_path: Path, what: str) -> None:
    (tmp_path / "train.py").write_text(CRASHES[what])

    data = told(tmp_path, "--", sys.executable, "train.py", "--batch_size=8")

    assert [each["ended"] for each in data["tries"]] == ["failed"]
    assert data["reason"]["code"] == "guard.not_memory"
    assert data["exit_code"] != 0


def test_an_error_raised_from_running_out_is_still_that(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        SURVIVED.replace('print("skipped:", error)', "raise ValueError from error")
    )

    data = told(tmp_path, "--", sys.executable, "train.py")

    assert data["tries"][0]["ended"] == "out_of_memory"
    # Nothing says what to turn down, and it says so.
    assert data["reason"]["why"]["code"] == "guard.batch_unknown"


def test_output_and_exit_code_pass_through_byte_by_byte(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(
        "import os, sys\nos.write(1, bytes(range(256)))\nos.write(2, b'err\\r\\n')\nsys.exit(7)"
    )
    process = subprocess.run(
        [sys.executable, "-m", "brimful.cli.main", "run", "--", sys.executable, "p.py"],
        cwd=tmp_path, capture_output=True, check=False,
    )  # fmt: skip

    assert process.returncode == 7
    assert process.stdout == bytes(range(256))
    assert b"err\r\n" in process.stderr
    log = (tmp_path / "brimful-runs" / "p-001" / "try-1.log").read_bytes()
    assert sorted(log) == sorted(bytes(range(256)) + b"err\r\n")


def test_in_a_terminal_the_script_sees_one(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(
        "import os, sys\nprint(sys.stdout.isatty(), os.get_terminal_size().columns)\nprint('bar\\rbar')"
    )
    master, slave = pty.openpty()
    os.environ.pop("COLUMNS", None)
    subprocess.run(["stty", "cols", "93", "rows", "30"], stdin=slave, check=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "brimful.cli.main", "run", "--", sys.executable, "p.py"],
        cwd=tmp_path, stdin=slave, stdout=slave, stderr=slave,
    )  # fmt: skip
    os.close(slave)
    seen = b""
    try:
        while data := os.read(master, 4096):
            seen += data
    except OSError:
        pass
    os.close(master)

    assert process.wait(PATIENCE_S) == 0
    assert b"True 93\r\nbar\rbar\r\n" in seen


# A script with a child in its group and one that left it, each saying its number.
FAMILY = """
import os, signal, subprocess, sys, time
nap = [sys.executable, "-c", "import time; time.sleep(6000)"]
pids = [os.getpid(), subprocess.Popen(nap).pid, subprocess.Popen(nap, start_new_session=True).pid]
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: open("heard", "w").close())
open("pids.new", "w").write(" ".join(map(str, pids)))
os.rename("pids.new", "pids")
while True:
    time.sleep(600)
"""


def family(folder: Path, process: subprocess.Popen[str]) -> list[int]:
    found: list[int] = until(lambda: [int(n) for n in (folder / "pids").read_text().split()], process)
    return found


def until(found: Callable[[], Any], process: subprocess.Popen[str] | None = None) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            if result := found():
                return result
        except OSError:
            assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.05)
    raise AssertionError("it never came")


def alive(pids: list[int]) -> list[int]:
    def state(pid: int) -> str:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return "X"

    return [pid for pid in pids if state(pid) not in "ZX"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_reaches_the_whole_family_and_nothing_stays(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "f.py").write_text(FAMILY)
    process = start(tmp_path, "--", sys.executable, "f.py")
    pids = family(tmp_path, process)

    process.send_signal(number)

    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + number
    until(lambda: not alive(pids))  # one that was killed ends when the machine gets to it


def test_a_script_deaf_to_the_first_signal_is_ended_by_the_second(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text(FAMILY)
    process = start(tmp_path, "--", sys.executable, "f.py", "deaf")
    pids = family(tmp_path, process)

    process.send_signal(signal.SIGTERM)
    until((tmp_path / "heard").exists, process)
    assert process.poll() is None
    # Again until it heard: two of a kind that come together are one to the kernel.
    for _ in range(20):
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(3)
            break

    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGKILL
    until(lambda: not alive(pids))  # one that was killed ends when the machine gets to it


def test_a_guard_that_is_killed_leaves_nothing_running(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text(FAMILY)
    process = start(tmp_path, "--", sys.executable, "f.py")
    pids = family(tmp_path, process)

    process.kill()
    process.communicate()

    until(lambda: not alive(pids))


@pytest.mark.parametrize(
    ("limit", "batches"),
    [(7, [8, 4, 6]), (5, [8, 4, 6, 4])],
    ids=["the rung holds", "the rung fails, and it comes back down for good"],
)
def test_climbing(tmp_path: Path, train: list[str], limit: int, batches: list[int]) -> None:
    """8 runs out and 4 holds; once that has left a checkpoint, 6 is tried. What failed is never repeated."""
    accumulation = "--gradient_accumulation_steps=3"
    data = told(
        tmp_path, *RESUME, "--climb", "--", *train, accumulation, f"--limit={limit}", "--steps=9",
        env={**os.environ, "CLIMBS": "1"},
    )  # fmt: skip

    first = [(tmp_path / each["log"]).read_text().split()[:4] for each in data["tries"]]
    assert [(int(words[1]), int(words[3])) for words in first] == [(n, 24 // n) for n in batches]
    assert [each["ended"] for each in data["tries"]][-1] == "finished"
    # A rung is only left for another at a checkpoint, and every try but the first goes on from one.
    assert all(each["resumed_from"] for each in data["tries"][1:])
    assert data["tries"][1]["ended"] == "climbs"


def test_a_key_of_the_scripts_own(tmp_path: Path) -> None:
    """Hydra's way: no dashes, dots in the key."""
    (tmp_path / "train.py").write_text(
        "import sys\nprint(sys.argv[1:], flush=True)\n"
        f"if 'train.bs=8' in sys.argv: raise RuntimeError({MESSAGE!r})\n"
    )
    keys = ("--set-key", "batch_size=train.bs", "--set-key", "accumulation=train.accum")

    data = told(tmp_path, *keys, "--", sys.executable, "train.py", "train.bs=8", "train.accum=3", "seed=1")

    assert data["exit_code"] == 0
    assert data["tries"][1]["words"][2:] == ["seed=1", "train.bs=4", "train.accum=6"]


def test_a_dry_run_starts_nothing(tmp_path: Path, train: list[str]) -> None:
    code, out, _ = ran(tmp_path, "--dry-run", "--", *train, "--limit", "3")

    assert code == 0
    assert "\nwould start: " in out
    assert not (tmp_path / "brimful-runs").exists()


@pytest.mark.parametrize("fix", [(), ("--fix",)])
def test_a_script_without_options_starts_as_it_is_and_no_empty_change_is_named(
    tmp_path: Path, fix: tuple[str, ...]
) -> None:
    (tmp_path / "bare.py").write_text("print(1)")
    what = ("--config", str(ROOT / "examples/nanogpt/train_gpt2.py"), "--gpu", "4070")

    code, out, err = ran(tmp_path, "--json", "--dry-run", *fix, *what, "--", "python", "bare.py")

    assert code == 0, err
    data = json.loads(out)["data"]
    assert data["words"] == ["python", "bare.py"]
    assert [each["code"] for each in data["said_codes"]] == ["guard.predicted"]


def test_a_command_that_cannot_be_started_is_told(tmp_path: Path) -> None:
    code, out, _ = ran(tmp_path, "--json", "--", "./nobody")

    assert code == 2
    assert json.loads(out)["error"]["reason"] == {
        "code": "guard.cannot_start",
        "program": "./nobody",
        "error": {"code": "language.os_enoent"},
    }


def test_free_memory_is_as_the_driver_says_with_other_programs_in_it(
    tmp_path: Path, fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    full = a_card(memory_used=3 * GIB, processes=[(1, 3 * GIB, "graphics")])
    fake_nvml.show(full, a_card("NVIDIA A100-SXM4-80GB", uuid="GPU-2", memory_used=0))
    words = [str(ROOT / "examples/nanogpt/train.py"), str(ROOT / "examples/nanogpt/train_fineweb.py")]

    def said(**more: str) -> tuple[dict[str, Any], list[str]]:
        options = ("--json", "--dry-run", "--fix", "--", "python")
        code, out, err = ran(tmp_path, *options, *words, env={**fake_nvml.env, **more})
        assert code == 0, err
        data = json.loads(out)["data"]
        return data["said_codes"][0], data["words"]

    first, started = said()
    assert first["usable"] == find_gpu("rtx-4070").memory_bytes - 3 * GIB
    held = {"code": "guard.others_held", "source": {"code": "guard.by_driver"}, "others": 3 * GIB}
    assert (first["code"], first["room"]) == ("guard.predicted", held)
    assert first["gpu"] == "NVIDIA GeForce RTX 4070"
    assert first["verdict"]["verdict"]["code"] == "guard.verdict_does_not_fit"
    assert started[-2:] == ["--batch_size=8", "--gradient_accumulation_steps=64"]
    other, _ = said(CUDA_VISIBLE_DEVICES="1")
    assert (other["gpu"], other["room"]) == ("NVIDIA A100-SXM4-80GB", {"code": "guard.by_driver"})
    assert other["verdict"] == {"code": "guard.verdict_fits"}
    none, _ = said(CUDA_VISIBLE_DEVICES="7")
    assert none["why"][0] == {"code": "guard.no_visible_card", "visible": "7"}


def test_told_to_stop_while_it_climbs_it_stops(tmp_path: Path) -> None:
    """The script takes its time to leave; a signal in that time is for the run, not for one try of it."""
    script = TRAIN.replace("import argparse", "import signal\nimport argparse").replace(
        "ckpt, third = pathlib",
        "def leave(*_): print('leaving', flush=True); time.sleep(600)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(130))\nckpt, third = pathlib",
    )
    (tmp_path / "train.py").write_text(script)
    process = start(
        tmp_path, *RESUME, "--climb", "--", sys.executable, "train.py", "--gradient_accumulation_steps=3",
        "--limit=5", "--steps=99",
        env={**os.environ, "CLIMBS": "1"},
    )  # fmt: skip
    log = tmp_path / "brimful-runs/train-001/try-2.log"
    until(lambda: log.exists() and "leaving" in log.read_text())

    process.send_signal(signal.SIGINT)

    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert not log.with_name("try-3.log").exists()
