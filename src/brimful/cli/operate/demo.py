"""`brimful demo`: a private fleet for a few minutes, with real short jobs of three teams."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from brimful.cli.commands import Answer, called, integer
from brimful.cli.render import tell
from brimful.client.client import Client
from brimful.errors import BrimfulError, WorldFailed
from brimful.language import Usd, count, say, told, verbatim, words

EXAMPLE = """brimful demo
brimful demo --minutes 1 --here"""

# A job that prints like a training run and does some arithmetic, so that it needs only Python.
WORK = """
import math, os, sys, time
steps, pause = int(sys.argv[1]), float(sys.argv[2])
print("on", os.environ.get("BRIMFUL_NODE", "?"), "GPU", os.environ.get("CUDA_VISIBLE_DEVICES", "?"))
for step in range(1, steps + 1):
    loss = 2.3 * math.exp(-3 * step / steps) + 0.9
    print(f"step {step:4d}  loss {loss:.4f}", flush=True)
    time.sleep(pause)
if len(sys.argv) > 3:
    sys.exit("RuntimeError: this one fails on purpose")
"""
# A three-minute demo is too short for the five minutes that a job is usually left alone.
SETTINGS = {"usd_per_hour": "0.35", "grace_s": "2", "min_run_s": "5"}
# Seconds after the start, and what is submitted then: (tenant, name, GPUs, priority, seconds, budget, fails).
STORY: tuple[tuple[int, str, str, int, str, int, int | None, bool], ...] = (
    (0, "vision", "resnet-baseline", 2, "normal", 40, None, False),
    (0, "speech", "whisper-tune", 1, "background", 120, None, False),
    (1, "nlp", "gpt-small", 4, "normal", 45, None, False),
    (3, "speech", "vocoder-sweep-1", 1, "background", 60, None, False),
    (4, "vision", "typo-in-the-config", 1, "normal", 3, None, True),
    (8, "nlp", "gpt-medium", 8, "normal", 20, None, False),
    (12, "vision", "quick-look", 2, "urgent", 8, None, False),
    (15, "speech", "over-budget", 1, "normal", 90, 2_000, False),
    (20, "nlp", "too-wide", 16, "normal", 10, None, False),
    (25, "vision", "augment-1", 1, "background", 25, None, False),
    (30, "speech", "vocoder-sweep-2", 1, "background", 25, None, False),
    (40, "vision", "augment-2", 1, "normal", 20, None, False),
    (50, "nlp", "gpt-small-again", 4, "normal", 20, None, False),
    (60, "vision", "deadline-tomorrow", 2, "urgent", 10, None, False),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=integer, default=3, metavar="N")
    parser.add_argument("--here", action="store_true")


def run(args: argparse.Namespace) -> Answer:
    if args.here:
        return _play(Client(), args, top=f"{called()} top")
    with tempfile.TemporaryDirectory(prefix="brimful-demo-") as folder, _server(Path(folder)) as client:
        return _play(client, args, top=f"BRIMFUL_DATA={folder} {called()} top")


def _play(client: Client, args: argparse.Namespace, *, top: str) -> Answer:
    link = client.url + (client.ticket()["path"] if sys.stdout.isatty() else "")
    _tell(args, words("operate.demo_watch", link=link, top=top))
    jobs: list[str] = []
    began = time.monotonic()
    try:
        for at_s, tenant, name, gpus, priority, lasts_s, budget, fails in STORY:
            time.sleep(max(0.0, began + min(at_s, args.minutes * 60) - time.monotonic()))
            command = [sys.executable, "-c", WORK, str(lasts_s * 2), "0.5", *(["fail"] if fails else [])]
            job = client.submit(
                command,
                folder=str(Path.cwd()),
                tenant=tenant,
                name=name,
                gpus=gpus,
                priority=priority,
                budget_microusd=budget,
            )
            jobs.append(job["job"])
            _tell(args, f"  {job['job']:<7} {tenant:<7} {name:<20} {told(count('gpu', gpus))}, {priority}")
        _tell(args, f"\n  {words('operate.demo_submitted')}\n")
        while time.monotonic() < began + args.minutes * 60 and _going(client, jobs):
            time.sleep(1)
    except KeyboardInterrupt:
        _tell(args, "")
    finally:
        final = [client.job(job) for job in jobs]
        _stop(client, final)
    return Answer({"jobs": final}, _summary(final))


def _going(client: Client, jobs: list[str]) -> bool:
    phases = ["running", "starting", "stopping", "waiting"]
    going = {job["job"] for job in client.jobs(limit=200, phase=phases)}
    return len(going & {*jobs}) > 1  # one asks for more GPUs than any node has, to show how that looks


def _stop(client: Client, jobs: Sequence[Mapping[str, Any]]) -> None:
    for job in jobs:
        with contextlib.suppress(BrimfulError):
            if job["ended_s"] is None:
                client.cancel(job["job"])
    for _ in range(300):
        if not any(gpu["held"] for node in client.fleet()["nodes"] for gpu in node["gpus"]):
            return
        time.sleep(0.1)


def _summary(jobs: Sequence[Mapping[str, Any]]) -> str:
    phases: dict[str, int] = {}
    for job in jobs:
        phases[job["phase"]] = phases.get(job["phase"], 0) + 1
    preempted = sum(job["preemptions"] for job in jobs)
    cost = sum(job["cost_microusd"] for job in jobs)
    said = ", ".join(f"{n} {phase}" for phase, n in sorted(phases.items()))
    left = sum(job["ended_s"] is None for job in jobs)
    facts = {"jobs": count("job", len(jobs)), "phases": said, "cost": Usd(cost)}
    text = words("operate.demo_summary", **facts, preempted=count("preemption", preempted))
    return text + (f"\n{words('operate.demo_left', left=left)}" if left else "")


@contextlib.contextmanager
def _server(folder: Path) -> Iterator[Client]:
    """The demo's own server: eight declared GPUs, any free port, deleted at the end."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("BRIMFUL_")}
    given = {"data": folder, "port": 0, "slots": 8, "gpu": "rtx-4070", **SETTINGS}
    words = ["--jobs-share-my-user", *(f"--{name.replace('_', '-')}={given[name]}" for name in given)]
    process = subprocess.Popen(
        [sys.executable, "-m", "brimful.cli.main", "up", "--json", *words],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C is for us: we stop it after its jobs
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    try:
        try:
            # One line if it is up; an error takes several.
            answer = json.loads(line if line.startswith('{"') else line + process.stdout.read())
        except ValueError as error:
            raise WorldFailed(say("operate.demo_not_started")) from error
        if not answer["ok"]:
            raise WorldFailed(verbatim(answer["error"]["problem"]), hint=verbatim(answer["error"]["hint"]))
        from brimful.client.settings import read_settings

        yield Client(read_settings({"data": str(folder)}, env={}))
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def _tell(args: argparse.Namespace, text: str) -> None:
    if not args.json:
        tell(text)
