"""The same cards for NVML, `watch`, `exporter` and gpustat: equal values, changed while they run."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from brimful.cli.main import main
from brimful.cli.operate.watch import History, remember, screen
from brimful.language import Quoted, choose, words
from brimful.meter.exporter import COUNTERS, GAUGES, as_text
from brimful.meter.machine import Looker, Machine
from brimful.meter.runtime import Place
from brimful.meter.samples import GpuSample, RunSample, StepSample, read_samples
from brimful.units import GIB
from tests.fake_nvml import ERRORS, LOST, FakeNvml, a_card
from tests.patience import PATIENCE_S

ME = os.getpid()


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def running() -> Any:
    """This process trains on the first card: its Meter has left a sample."""
    now = time.time() + 3600  # so that it does not grow old on a busy machine
    place = Place()
    run = RunSample(
        at_s=now, pid=ME, host="here", job="j-12", model="GPT", peak_flops_per_s=117e12, peak_format="bf16",
        gpu_uuid="GPU-0",
    )  # fmt: skip
    place.leave(run, StepSample(at_s=now, step=1204, step_s=0.4, tokens_per_s=39800.0, mfu=0.412, data_s=0.1))
    yield place
    place.close()


def cards(count: int = 1, **fields: Any) -> list[Any]:
    each = [(ME, 8 * GIB, "compute")]
    return [a_card(uuid=f"GPU-{i}", processes=each, **fields) for i in range(count)]


def look() -> Machine:
    looker = Looker()
    try:
        return looker.look(time.time())
    finally:
        looker.close()


def scraped(text: str) -> dict[tuple[str, str], float]:
    """(name, card) -> number, of metrics about a card."""
    return {
        (sample.name, sample.labels["gpu"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "gpu" in sample.labels
    }


def by_gpustat(fake: FakeNvml) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "gpustat", "--json", "--no-processes"]
    done = subprocess.run(command, env=fake.env, capture_output=True, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)["gpus"]
    return found


@pytest.mark.parametrize("busy", [97, 12])
def test_nvml_watch_exporter_and_gpustat_agree(
    fake_nvml: FakeNvml, capsys: pytest.CaptureFixture[str], busy: int
) -> None:
    fake_nvml.show(
        *cards(2, busy=busy, memory_used=(busy + 9) * GIB // 10, power_mw=1000 * busy, temperature=busy)
    )

    assert main(["watch", "--json"]) == 0
    seen = json.loads(capsys.readouterr().out)["data"]["gpus"]
    exported = scraped(as_text(Looker()))
    others = by_gpustat(fake_nvml)

    assert len(seen) == len(others) == 2
    for mine, other in zip(seen, others, strict=True):
        label = str(mine["index"])
        assert mine["index"] == other["index"]
        assert (mine["uuid"], mine["name"]) == (other["uuid"], other["name"])
        assert mine["memory_used_bytes"] // 1024**2 == other["memory.used"]
        assert mine["memory_total_bytes"] // 1024**2 == other["memory.total"]
        assert mine["busy_frac"] * 100 == other["utilization.gpu"] == busy
        assert mine["power_w"] == other["power.draw"] == busy
        assert mine["power_limit_w"] == other["enforced.power.limit"]
        assert mine["temperature_c"] == other["temperature.gpu"] == busy
        assert round(mine["fan_frac"] * 100) == other["fan.speed"]
        assert exported["brimful_gpu_memory_used_bytes", label] == mine["memory_used_bytes"]
        assert exported["brimful_gpu_busy_ratio", label] == mine["busy_frac"]
        assert exported["brimful_gpu_power_watts", label] == mine["power_w"]
        assert exported["brimful_gpu_temperature_celsius", label] == mine["temperature_c"]
        assert exported["brimful_gpu_sm_clock_hertz", label] == mine["sm_clock_hz"]


def test_the_exporter_serves_what_changes(fake_nvml: FakeNvml) -> None:
    fake_nvml.show(*cards(busy=40))
    port = _free_port()
    command = [sys.executable, "-m", "brimful.cli.main", "admin", "exporter", "--port", str(port)]
    server = subprocess.Popen(command, env=fake_nvml.env, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        assert f"http://127.0.0.1:{port}/metrics" in server.stderr.readline()

        def read() -> float:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
                return scraped(answer.read().decode())["brimful_gpu_busy_ratio", "0"]

        assert read() == 0.4
        fake_nvml.show(*cards(busy=71))
        assert read() == 0.71
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=PATIENCE_S) == 0
    finally:
        server.kill()
        server.communicate()


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_terminal_shows_what_changes(fake_nvml: FakeNvml) -> None:
    fake_nvml.show(*cards(busy=40))
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "brimful.cli.main", "watch"]
    env = {**fake_nvml.env, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    watching = subprocess.Popen(command, env=env, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    try:
        assert "40% busy" in _until(controller, "40% busy")
        fake_nvml.show(*cards(busy=71, throttle=4))
        assert "71% busy" in _until(controller, "power cap")
        watching.send_signal(signal.SIGINT)
        assert "\x1b[?25h" in _until(controller, "\x1b[?25h"), "the cursor comes back"
        assert watching.wait(timeout=PATIENCE_S) == 0
    finally:
        watching.kill()
        watching.wait()
        os.close(controller)


def _until(controller: int, shown: str) -> str:
    text, end = "", time.monotonic() + PATIENCE_S
    while shown not in text and time.monotonic() < end:
        if select.select([controller], [], [], 0.2)[0]:
            try:
                text += os.read(controller, 65536).decode(errors="replace")
            except OSError:  # the other end is closed
                break
    while select.select([controller], [], [], 0.3)[0]:
        try:
            text += os.read(controller, 65536).decode(errors="replace")
        except OSError:
            break
    return re.sub(r"\x1b\[[0-9]*m", "", text)


def test_useful_work_stands_where_a_process_reports_it(fake_nvml: FakeNvml, running: Place) -> None:
    fake_nvml.show(*cards(2))
    machine = look()
    first, second = machine.cards
    assert first.compute == (0.412, "mfu")
    assert second.compute == (0.97, "busy"), "it touches this card and works on the other"
    text = screen(machine, History(), 100, 60)
    assert "41.2% MFU of 117 TFLOPS bf16" in text
    assert words("operate.watch_busy", share="97%") in text
    assert "job j-12" in text
    waits = words("operate.watch_waits", share="25%")
    assert f"step 1,204  400 ms  39,800 tokens/s  {waits}" in text
    exported = as_text(Looker())
    assert 'brimful_run_mfu_ratio{job="j-12",model="GPT",pid="' in exported
    assert scraped(exported)["brimful_gpu_mfu_ratio", "0"] == 0.412
    assert ("brimful_gpu_mfu_ratio", "1") not in scraped(exported)


def test_an_old_sample_is_no_news(fake_nvml: FakeNvml) -> None:
    fake_nvml.show(*cards())
    old = time.time() - 100
    place = Place()
    place.leave(RunSample(at_s=old, pid=ME, host="here"), StepSample(at_s=old, step=3, step_s=0.4, mfu=0.4))
    assert look().cards[0].compute == (0.97, "busy")
    place.close()


def test_a_card_that_says_nothing_about_its_work_is_unknown(fake_nvml: FakeNvml) -> None:
    fake_nvml.show(a_card(without=["busy"]))
    machine = look()
    assert machine.cards[0].compute == (None, "unknown")
    assert "unknown" in screen(machine, History(), 80, 60)
    assert ("brimful_gpu_busy_ratio", "0") not in scraped(as_text(Looker()))


def test_a_run_without_a_gpu_is_shown_beside_the_reason(running: Place) -> None:
    program = "import sys; from brimful.cli.main import main; sys.exit(main(['watch', '--once']))"
    env = {**os.environ, "LD_LIBRARY_PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert words("operate.watch_no_gpu") in done.stdout
    assert "41.2% MFU" in done.stdout


def test_neither_gpu_nor_run_is_an_error_with_a_way_out() -> None:
    program = "import sys; from brimful.cli.main import main; sys.exit(main(['watch', '--once', '--json']))"
    env = {**os.environ, "LD_LIBRARY_PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert json.loads(done.stdout)["error"]["code"] == "no_driver"


@pytest.mark.parametrize("code", ERRORS.values(), ids=ERRORS)
def test_every_error_code_reaches_watch_and_exporter_in_words(fake_nvml: FakeNvml, code: int) -> None:
    fake_nvml.show(a_card(uuid="GPU-0", fails={"*": code}), *cards(1))
    machine = look()
    text = screen(machine, History(), 80, 60)
    assert "NVIDIA GeForce RTX 4070" in text, "the other card answers"
    assert scraped(as_text(Looker()))["brimful_gpu_busy_ratio", "1"] == 0.97
    fake_nvml.show(a_card(), fails={"nvmlInitWithFlags": code})
    assert as_text(Looker()).count("brimful_nvml_up 0.0") == 1


def test_a_lost_card_is_told_and_counted_as_down(fake_nvml: FakeNvml) -> None:
    fake_nvml.show(*cards(), a_card(uuid="GPU-1", fails=LOST))
    assert words("meter.nvml_gpu_is_lost") in screen(look(), History(), 80, 60)
    exported = scraped(as_text(Looker()))
    assert (exported["brimful_gpu_up", "0"], exported["brimful_gpu_up", "1"]) == (1, 0)


@pytest.mark.parametrize(
    ("code", "busy"), [("fr", "97% occupé"), ("es", "97% ocupada"), ("de", "97% belegt")]
)
def test_the_screen_is_in_the_language_asked_for(fake_nvml: FakeNvml, code: str, busy: str) -> None:
    choose(code)
    fake_nvml.show(*cards(throttle=4), a_card(uuid="GPU-1", fails=LOST))
    text = screen(look(), History(), 80, 60)
    assert busy in text
    assert "\ufffd" not in text, "French sets spaces that are no control characters"
    # A process is shown by its command, and so by the folder these tests are run from.
    ours = "\n".join(line for line in text.splitlines() if str(ME) not in line)
    assert not re.search(r"\b(memory|compute|busy|driver|useful|held|answer)\b", ours)


@pytest.mark.parametrize("columns", [40, 80, 120, 160])
@pytest.mark.parametrize("count", [1, 16])
def test_every_screen_fits_its_window(
    fake_nvml: FakeNvml, running: Place, monkeypatch: pytest.MonkeyPatch, columns: int, count: int
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    fake_nvml.show(*cards(count, throttle=4), a_card(uuid="lost", fails=LOST))
    machine, history = look(), History()
    for _ in range(700):
        remember(history, machine)
    lines = screen(machine, history, columns, 24).splitlines()
    if columns >= 80:
        assert max(map(len, lines)) <= columns
        assert len(lines) <= 24
    assert all(line == line.rstrip() for line in lines)


def test_a_process_name_cannot_move_the_cursor(fake_nvml: FakeNvml) -> None:
    command = [sys.executable, "-c", "print(flush=True); input()", "\x1b[2Jgotcha\n\x07"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()  # it runs: until the kernel has put its arguments in place, they look empty
        fake_nvml.show(a_card(processes=[(child.pid, GIB, "compute")]))
        text = screen(look(), History(), 160, 60)
    finally:
        child.communicate(b"\n")
    assert "gotcha" in text
    assert "\x1b[2J" not in text
    assert "\x07" not in text


def test_the_exporter_stays_on_loopback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["admin", "exporter", "--host", "0.0.0.0"]) == 2
    assert words("gpu.not_loopback", host=Quoted("0.0.0.0")) in " ".join(capsys.readouterr().err.split())
    assert main(["admin", "exporter", "--host", "0.0.0.0", "--json"]) == 2


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    path = Path(__file__).parents[2] / "src" / "brimful" / "meter" / "grafana.json"
    board = json.loads(path.read_text(encoding="utf-8"))
    asked = {
        name
        for panel in board["panels"]
        for target in panel.get("targets", [])
        for name in re.findall(r"\bbrimful_\w+", target["expr"])
    }
    known = GAUGES.keys() | {f"{name}_total" for name in COUNTERS}
    assert len(asked) > 10
    assert asked <= known
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            for name, labels in re.findall(r"(brimful_\w+)\{([^}]*)\}", target["expr"]):
                allowed = (GAUGES | COUNTERS)[name.removesuffix("_total")][0]
                assert set(re.findall(r"(\w+)\s*=", labels)) <= set(allowed), (name, labels)


def test_a_file_of_looks_is_for_why_slow(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    fake_nvml.show(*cards(2, throttle=4))
    for _ in range(2):
        assert main(["watch", "--once", "--json", "--jsonl", str(tmp_path / "cards.jsonl")]) == 0
    found = list(read_samples(tmp_path / "cards.jsonl"))
    assert [each.index for each in found if isinstance(each, GpuSample)] == [0, 1, 0, 1]
    assert all(isinstance(each, GpuSample) and each.throttle == ("power_cap",) for each in found)


def test_after_some_steps_it_says_why_a_run_is_slow(fake_nvml: FakeNvml) -> None:
    fake_nvml.show(*cards())
    place, history = Place(), History()
    now = time.time()
    run = RunSample(at_s=now, pid=ME, host="here", peak_flops_per_s=58.3e12, peak_format="bf16")
    for step in range(1, 12):
        sample = StepSample(
            at_s=now, step=step, step_s=1.0, data_s=0.8, forward_s=0.1, backward_s=0.1, mfu=0.05, tokens=100
        )
        place.leave(run, sample)
        machine = look()
        remember(history, machine)
    place.close()
    said = machine.cards[0].holders[0].live
    assert said is not None
    assert "data" in (history.why(said, machine.cards[0].sample) or "")
    assert "data" in screen(machine, history, 100, 60)


def test_a_run_that_holds_memory_and_makes_no_step_is_called_idle(fake_nvml: FakeNvml) -> None:
    fake_nvml.show(*cards())
    old = time.time() - 1200
    place = Place()
    place.leave(RunSample(at_s=old, pid=ME, host="here"), StepSample(at_s=old, step=3, step_s=0.4))
    machine = look()
    place.close()
    reason = machine.as_dict()["gpus"][0]["processes"][0]["idle_reason"]
    assert 1200 <= reason["age"] < 1260
    assert "20 min" in screen(machine, History(), 100, 60)
    assert reason["since"] == {"code": "meter.last_step", "n": 3}
