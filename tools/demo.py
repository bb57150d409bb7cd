"""A lab's fleet after three days of work: what console screenshots show and its browser tests run on.

The service and its log are real; only the clock and the GPUs are not. Jobs arrive, wait, run, fail and are
paid for as the production loop decides, tick by tick, so that no number is made up.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvicorn

from brimful.adapters.capabilities import LogPiece
from brimful.adapters.identity.store import AccessStore
from brimful.adapters.stores.sql import SqlStore
from brimful.fleet.job import Job
from brimful.fleet.node import Node
from brimful.language import say, verbatim
from brimful.market.pools import Market
from brimful.meter.samples import RunSample, StepSample
from brimful.scheduler.policies import POLICIES
from brimful.scheduler.ports import Failures, Observation, Start
from brimful.server.app import make_app
from brimful.server.auth import Access
from brimful.server.rehearsing.rehearser import RehearsalTerms
from brimful.server.service.budgets import BudgetAsked
from brimful.server.service.idle import read_idle
from brimful.server.service.reserving import Reserving
from brimful.server.service.service import Service
from brimful.units import GIB, HOUR_S

BEGAN_S = 1_772_409_600  # Monday 2 March 2026, 00:00 UTC
NOW_S = BEGAN_S + 3 * 24 * HOUR_S + 14 * HOUR_S + 5 * 60  # Thursday afternoon
STEP_S = 600
OOM = (
    "step 1180  loss 2.913  2.41 s/step\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.07 GiB. GPU 0 has a total capacity of "
    "79.11 GiB of which 1.94 GiB is free. Of the allocated memory 73.20 GiB is allocated by PyTorch, and "
    "2.61 GiB is reserved by PyTorch but unallocated.\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What happens to a job once it runs."""

    work_s: int
    fails: str = ""  # the end of its log, if it fails
    idle: bool = False  # holds its GPUs but does nothing


class Rehearsed:
    """An engine whose GPUs are a clock: it runs what it is told, and ends it when its work is done."""

    def __init__(self, site: str, nodes: Sequence[Node], fates: dict[str, Fate]) -> None:
        self.site, self._nodes, self._fates = site, list(nodes), fates
        self.now_s = BEGAN_S
        self._running: dict[str, tuple[str, str, int]] = {}  # lease -> job, its model, since when
        self._ended: dict[str, tuple[str, int, int]] = {}  # lease -> job, when, exit code
        self._news: dict[str, Observation] = {}

    def nodes(self) -> Sequence[Node]:
        return self._nodes

    def start(self, starts: Sequence[Start]) -> Failures:
        for each in starts:
            self._running[each.lease] = (each.job.job, each.job.name, self.now_s)
            self._news[each.lease] = Observation(lease=each.lease, state="running", started_s=self.now_s)
        return {}

    def stop(self, leases: Sequence[str], *, grace_s: int) -> Failures:  # noqa: ARG002
        for lease in leases:
            self._end(lease, 143)
        return {}

    def observe(self, leases: Collection[str]) -> Sequence[Observation]:
        for lease, (job, _, since_s) in [*self._running.items()]:
            fate = self._fates.get(job, Fate(work_s=2 * HOUR_S))
            if self.now_s - since_s >= fate.work_s:
                self._end(lease, 1 if fate.fails else 0)
        news, self._news = self._news, {}
        return [each for lease, each in news.items() if lease in leases]

    def _end(self, lease: str, code: int) -> None:
        job, _, since_s = self._running.pop(lease, ("", "", 0))
        if job:
            self._ended[lease] = (job, self.now_s, code)
            self._news[lease] = Observation(
                lease=lease,
                state="ended",
                started_s=since_s,
                ended_s=self.now_s,
                exit_code=code,
                problem=say("adapters.exit_code", exit_code=code) if code == 1 else None,
            )

    def log(self, lease: str, *, rank: int = 0, offset: int = 0, limit: int = 1 << 20) -> LogPiece:
        job = (self._running.get(lease) or self._ended.get(lease) or ("",))[0]
        text = f"rank {rank}: NCCL ready, compiled in 41 s\n"
        text += "".join(
            f"step {100 * i:>5}  loss {9.1 / (i + 2) ** 0.5:.3f}  2.41 s/step\n" for i in range(40)
        )
        if lease in self._ended and (fate := self._fates.get(job)) is not None:
            text += fate.fails
        data = text.encode()
        start = max(0, len(data) + offset) if offset < 0 else min(offset, len(data))
        return LogPiece(start=start, data=data[start : start + limit], size=len(data))

    def sample(self, lease: str) -> bytes | None:
        job, name, since_s = self._running.get(lease, ("", "", 0))
        if not name.startswith(("llama", "vit", "whisper", "notebook")) or self.now_s - since_s < STEP_S:
            return None
        at_s = float(self.now_s - (9000 if (fate := self._fates.get(job)) and fate.idle else 1))
        run = RunSample(at_s=float(since_s), pid=1, host="n1", job=job, model=name, device="cuda:0")
        run_facts = asdict(run) | {"gpu": "NVIDIA H100 80GB HBM3", "torch": "2.9.1", "kind": "run"}
        run_facts |= {
            "peak_flops_per_s": 989e12,
            "peak_format": "bf16",
            "peak_source": "catalog: h100-sxm-80gb",
        }
        share = 0.31 + len(name) % 7 / 50
        step = StepSample(at_s=at_s, step=(self.now_s - since_s) // 2, step_s=2.41)
        step_facts = asdict(step) | {"kind": "step", "mfu": share, "tokens_per_s": 41_200.0}
        step_facts |= {
            "peak_allocated_bytes": 61 * GIB,
            "peak_reserved_bytes": 66 * GIB,
            "reserved_bytes": 66 * GIB,
        }
        return json.dumps({"pid": 1, "began": None, "run": run_facts, "step": step_facts}).encode()


class Demo:
    """The fleet, its people and the server's application, at `NOW_S`."""

    policy, rules = "fair", POLICIES["fair"]

    def __init__(self, folder: Path) -> None:
        self.now_s, self._fates, self._dice = BEGAN_S, dict[str, Fate](), random.Random(7)
        self.halls = [Rehearsed(site, nodes, self._fates) for site, nodes in _nodes().items()]
        self.store = SqlStore(f"sqlite:///{folder / 'brimful.db'}")
        self.service = Service(
            self.store,
            self.halls,
            self.rules,
            policy=self.policy,
            market=Market(pools=("l40s",)),
            idle=read_idle("*=30m"),
            rehearsal=RehearsalTerms(database=f"sqlite:///{folder / 'brimful.db'}", cpu_percent=0),
            clock=lambda: self.now_s,
        )
        self.access = Access(AccessStore(self.store), clock=lambda: float(self.now_s))
        self.app = make_app(self.service, self.access, hosts=("127.0.0.1",))
        self._live_through()

    def tick(self, seconds: int = 0) -> None:
        self.now_s += seconds
        for hall in self.halls:
            hall.now_s = self.now_s
        self.service.driver.tick()
        self.service.driver.measure_all()

    def submit(self, *, fate: Fate, **given: Any) -> str:  # noqa: ANN401
        wanted: dict[str, Any] = {"folder": "/data/lab/runs", "checkpoint_interval_s": 900} | given
        name = self.service.submissions.submit(Job(job="", **wanted)).job.job
        self._fates[name] = fate
        return name

    def person(self, name: str, team: str, role: str) -> str:
        """Returns their token."""
        return self.access.issue(name=name, tenant=team, role=role)[0]

    def _live_through(self) -> None:
        submissions = self.service.submissions
        self.tick()
        for name, team, role in PEOPLE:
            self.person(name, team, role)
        for name, usd, asked in BUDGETS:
            submissions.set_budget(name, usd * 1_000_000, asked)
        while self.now_s < NOW_S - 6 * HOUR_S:
            for _ in range(self._dice.choice((0, 0, 1, 1, 2)) if 7 <= self.now_s // HOUR_S % 24 <= 19 else 0):
                self._somebodys()
            self.tick(STEP_S)
        reserving = Reserving(self.service.reader, submissions)
        pool = reserving.pool(gpu="l40s", site="", tier="")
        reserving.buy(pool, gpus=4, hours=72, start_s=None, tenant="speech", at_most=None, by="noor")
        for given, fate in THE_DAY:
            self.submit(fate=fate, **given)
            self.tick(STEP_S)
        submissions.drain("hall-3", reason=verbatim("fan 2 is loud, part ordered"))
        while self.now_s < NOW_S:
            self.tick(STEP_S)
        for given, fate in THE_HOUR:
            self.submit(fate=fate, **given)
        self.tick(240)
        self.service.idle.look()
        self.tick(30)

    def _somebodys(self) -> None:
        user, team, name, command, gpus = self._dice.choice(HABITS)
        work_s = self._dice.choice((1, 2, 3, 5)) * HOUR_S
        fails = self._dice.random() < 0.12
        fate = Fate(work_s=work_s // 4 if fails else work_s, fails=OOM if fails else "")
        priority = self._dice.choice(("normal", "normal", "background"))
        self.submit(
            fate=fate, user=user, tenant=team, name=name, command=command, gpus=gpus, priority=priority
        )


def _nodes() -> dict[str, list[Node]]:
    kinds = (
        ("hall", "hall", 3, "h100-sxm-80gb", 8, 2_490_000),
        ("hall", "old", 2, "a100-sxm-80gb", 8, 1_290_000),
        ("campus", "desk", 4, "l40s", 4, 790_000),
    )
    found: dict[str, list[Node]] = {}
    for site, stem, count, gpu, gpus, price in kinds:
        found.setdefault(site, []).extend(
            Node(
                site=site,
                node=f"{stem}-{i + 1}",
                gpu=gpu,
                gpus=gpus,
                microusd_per_gpu_hour=price,
                declared=False,
                rack=f"{stem} row",
            )
            for i in range(count)
        )
    return found


PEOPLE = (
    ("mara", "*", "operator"),
    ("ann", "vision", "admin"),
    ("tomas", "vision", "submitter"),
    ("noor", "speech", "admin"),
    ("jules", "speech", "submitter"),
    ("kim", "robotics", "submitter"),
)
MONTHLY = BudgetAsked(period="monthly", zone="Europe/Paris")
BUDGETS = (
    ("lab", 20_000, BudgetAsked(period="quarterly", zone="Europe/Paris")),
    ("vision", 3_000, BudgetAsked(period="monthly", zone="Europe/Paris", within="lab")),
    ("speech", 1_500, BudgetAsked(period="monthly", zone="Europe/Paris", within="lab")),
    ("speech/whisper", 400, MONTHLY),
    ("robotics", 250, BudgetAsked(hard=False)),
)
Habit = tuple[str, str, str, tuple[str, ...], int]
HABITS: tuple[Habit, ...] = (
    ("ann", "vision", "vit-l pretraining", ("torchrun", "train.py", "configs/vit_l.yaml"), 8),
    ("tomas", "vision", "segment ablation", ("python", "ablate.py", "--seed", "3"), 2),
    ("noor", "speech", "whisper fine-tune", ("torchrun", "finetune.py", "configs/whisper.yaml"), 4),
    ("jules", "speech", "llama adapters", ("python", "lora.py", "--rank", "16"), 2),
    ("kim", "robotics", "policy rollouts", ("python", "rollout.py", "--envs", "4096"), 1),
)
RATES = (("h100-sxm-80gb", 1.0), ("a100-sxm-80gb", 0.46), ("l40s", 0.21))
ESTIMATE: dict[str, Any] = {
    "rates": RATES,
    "peak_bytes": (("h100-sxm-80gb", 68 * GIB), ("a100-sxm-80gb", 67 * GIB)),
    "step_s": (("h100-sxm-80gb", 2.3), ("a100-sxm-80gb", 5.0)),
}
LONG = 40 * HOUR_S
Given = tuple[dict[str, Any], Fate]
THE_DAY: tuple[Given, ...] = (
    (
        {"user": "ann", "tenant": "vision", "name": "vit-h pretraining", "gpus": 8, **ESTIMATE}
        | {"command": ("torchrun", "--nproc-per-node", "8", "train.py", "configs/vit_h.yaml")},
        Fate(work_s=LONG),
    ),
    (
        {
            "user": "noor",
            "tenant": "speech",
            "name": "whisper-large",
            "project": "whisper",
            "gpus": 4,
            **ESTIMATE,
        }
        | {"command": ("torchrun", "finetune.py", "configs/whisper_large.yaml")},
        Fate(work_s=LONG),
    ),
    (
        {"user": "jules", "tenant": "speech", "name": "notebook", "gpus": 2}
        | {"command": ("jupyter", "lab"), "gpu_types": ("a100-sxm-80gb",)},
        Fate(work_s=LONG, idle=True),
    ),
    (
        {"user": "kim", "tenant": "robotics", "name": "policy rollouts", "gpus": 2, "gpu_types": ("l40s",)}
        | {"command": ("python", "rollout.py", "--envs", "8192"), "limit_microusd_per_gpu_hour": 1_900_000},
        Fate(work_s=LONG),
    ),
    (
        {"user": "tomas", "tenant": "vision", "name": "llama-8b longer context", "gpus": 8, **ESTIMATE}
        | {"command": ("torchrun", "train.py", "configs/llama_8b_32k.yaml"), "gpu_types": ("h100-sxm-80gb",)},
        Fate(work_s=2 * HOUR_S, fails=OOM),
    ),
    (
        {"user": "kim", "tenant": "robotics", "name": "sim2real sweep", "gpus": 8, "gpu_types": ("l40s",)}
        | {"command": ("python", "sweep.py"), "limit_microusd_per_gpu_hour": 1_100_000, "within": "site"},
        Fate(work_s=LONG),
    ),
)
THE_HOUR: tuple[Given, ...] = (
    (
        {"user": "ann", "tenant": "vision", "name": "vit-h larger batch", "gpus": 16, **ESTIMATE}
        | {"command": ("torchrun", "train.py", "configs/vit_h_b4096.yaml"), "within": "site"},
        Fate(work_s=LONG),
    ),
    (
        {"user": "jules", "tenant": "speech", "name": "evaluate checkpoints", "gpus": 1, "priority": "urgent"}
        | {"command": ("python", "evaluate.py", "runs/whisper"), "deadline_s": NOW_S + 3 * HOUR_S},
        Fate(work_s=HOUR_S),
    ),
    (
        {
            "user": "tomas",
            "tenant": "vision",
            "name": "augmentation study",
            "gpus": 8,
            "priority": "background",
        }
        | {"command": ("python", "augment.py"), "budget_microusd": 90_000_000},
        Fate(work_s=LONG),
    ),
    (
        {
            "user": "kim",
            "tenant": "robotics",
            "name": "world model",
            "gpus": 16,
            "command": ("python", "world.py"),
        },
        Fate(work_s=LONG),
    ),
)


@contextmanager
def served(demo: Demo) -> Iterator[str]:
    """Its address, served by a separate web server."""
    with listening(demo.app) as url:
        yield url
    demo.access.close()
    demo.store.close()


@contextmanager
def listening(app: Any) -> Iterator[str]:  # noqa: ANN401 - what make_app makes
    """The address of a real web server for this application."""
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_config=None, server_header=False, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        thread.join(0.05)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
