"""Checks every promise of the design on the data of a live brimful. Read-only: it repairs nothing.

The log is folded from its first event, independently of the running server, and compared with the tables made
from it and with the running processes.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from brimful.adapters.engines.local import LocalEngine
from brimful.adapters.engines.processes import runs_alive
from brimful.adapters.objects.shelf import damage_said
from brimful.adapters.stores import snapshot
from brimful.adapters.stores.engines_known import engines_known
from brimful.adapters.stores.past import PastJob
from brimful.adapters.stores.snapshot import Fold
from brimful.adapters.stores.sql import SqlStore
from brimful.errors import BrimfulError, Said
from brimful.fleet.events import MALFORMED, Event, LeaseEnded, LeaseGranted, PoolPriced
from brimful.fleet.job import WHOLE_GPU
from brimful.fleet.state import OVER, JobState, Lease
from brimful.job import whole_ones
from brimful.language import Percent, Plain, Seconds, Sentence, Size, Usd, count, say, verbatim

PATIENCE_S = 300.0
MOST_READ_BYTES = 50 << 30  # of checkpoints: a job may seal a file of any size


@dataclass(frozen=True, slots=True)
class Finding:
    """One promise: how much was checked, and what was found broken."""

    promise: Sentence
    looked_at: Sentence
    broken: Sequence[Said] = field(default_factory=list)

    @property
    def kept(self) -> bool:
        return not self.broken


def examine(
    store: SqlStore, engines: Sequence[LocalEngine] | None = None, *, patience_s: float = PATIENCE_S
) -> Iterator[Finding]:
    """Each promise in turn. `engines`: those of this data folder, if processes are to be checked too.

    Checks that depend on jobs and the disk have a time limit of `patience_s`.
    """
    log = _LogCheck()
    try:
        wrong = store.check_file()
        chained, broken = store.check_chain()
        failed = [each for each in (wrong, broken) if each is not None] or log.read(store)
    except (BrimfulError, *MALFORMED) as error:  # from their combination: each event alone was accepted
        chained, failed = 0, [_told(error)]
    looked = say("doctor.looked_log", events=count("event", log.fold.fleet.seq), chained=chained)
    yield Finding(say("doctor.log_whole"), looked, failed and [*failed, say("doctor.restore")])
    if failed:
        return  # conclusions from half a log are worthless
    jobs, leases = count("job", log.jobs), count("lease", log.leases)
    looked_at = {
        "doctor.none_lost": jobs,
        "doctor.none_twice": jobs,
        "doctor.one_tenant": leases,
        "doctor.progress_kept": leases,
        "doctor.accounts_even": count("account", len(log.fold.ledger.balances)),
        "doctor.billed_exactly": jobs,
        "doctor.budgets_kept": jobs,
        "doctor.limits_kept": jobs,
        "doctor.one_price": leases,
    }
    for promise, looked in looked_at.items():
        yield Finding(say(promise), looked, log.broken[promise])
    try:
        yield _tables(store, log)
    except (BrimfulError, *MALFORMED) as error:
        yield Finding(say("doctor.tables_agree"), count("event", log.fold.fleet.seq), [_told(error)])
    if engines is None:
        return
    with store.reading() as connection:
        elsewhere = engines_known(connection) - {engine.identity for engine in engines}
    if elsewhere:
        alive = sorted(runs_alive(elsewhere))
        told = [say("doctor.stray_elsewhere", lease=name) for name in alive]
        yield Finding(say("doctor.none_elsewhere"), count("stray", len(alive)), told)
    for engine in engines:
        for promise, look in (
            ("doctor.processes_agree", lambda engine=engine: _processes(engine, log)),
            ("doctor.checkpoints_whole", lambda engine=engine: _checkpoints(engine)),
        ):
            yield _with_time_limit(say(promise, site=engine.site), look, patience_s=patience_s)


def _with_time_limit(promise: Sentence, look: Callable[[], Finding], *, patience_s: float) -> Finding:
    """In a separate thread: a disk or a process that does not answer cannot be interrupted."""
    found: list[Finding] = []

    def ask() -> None:
        try:
            found.append(look())
        except (BrimfulError, OSError, *MALFORMED) as error:
            found.append(Finding(promise, say("doctor.looked_nothing"), [_told(error)]))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(patience_s)
    if found:
        return found[0]
    silent = say("doctor.no_answer", waited=Seconds(patience_s))
    return Finding(promise, say("doctor.looked_nothing"), [silent])


class _LogCheck:
    """The log folded from the start, with what is wrong in it."""

    def __init__(self) -> None:
        self.fold = Fold()
        self.jobs = self.leases = 0
        self.broken: defaultdict[str, list[Sentence]] = defaultdict(list)  # by promise
        self.past: dict[str, int] = {}  # jobs that have left memory, with a fingerprint of each
        self._priced: dict[tuple[object, ...], int] = {}
        self._priced_at = -1
        self._overrun: Counter[str] = Counter()  # by job: what the operator bears of its leases

    def read(self, store: SqlStore) -> list[Sentence]:
        fleet = self.fold.fleet
        while True:
            try:
                events = store.since(fleet.seq)
            except BrimfulError as error:
                return [_told(error)]
            for seq, event in enumerate(events, fleet.seq + 1):
                try:
                    self.fold.apply(event)
                    self._price(event)
                    self._note_overrun(event)
                except MALFORMED as error:
                    kind, why = type(event).__name__, repr(error)[:160]
                    return [say("doctor.event_strange", seq=seq, kind=kind, error=why)]
            for past in self.fold.let_go(by_seq=fleet.seq):
                self.past[past.state.job.job] = hash(repr(past))
                self._job(past.state, past.spent_microusd)
            if not events:
                break
        for state in fleet.jobs.values():
            self._job(state, self.fold.ledger.spent_microusd.get(state.job.job, 0))
        self._one_tenant()
        self.broken["doctor.budgets_kept"] += [
            say("doctor.overdrawn", account=account, balance=Usd(balance))
            for account, balance in self.fold.ledger.balances.items()
            if balance < 0 and account.startswith(("budget:", "hold:"))
        ]
        if total := sum(self.fold.ledger.balances.values()):
            self.broken["doctor.accounts_even"].append(say("doctor.accounts_sum_to", total=total))
        return []

    def _job(self, state: JobState, spent_microusd: int) -> None:
        self.jobs += 1
        self.leases += len(state.leases)
        name, fleet = state.job.job, self.fold.fleet
        placed = {
            "waiting": name in fleet.waiting,
            "held": name in fleet.on_hold,
            "pending": name in fleet.gates.pending,
            "over": state.phase in OVER,
            "running": state.open_lease is not None,
        }
        if sum(placed.values()) != 1:
            self.broken["doctor.none_lost"].append(
                say("doctor.misplaced", job=name, verb=say(f"fleet.verb_{state.phase}"), placed=placed)
            )
        self.broken["doctor.none_twice"] += _overlaps(state.leases)
        if state.lost_work_s > 0:
            lost = say("doctor.lost_work", job=name, lost=Seconds(state.lost_work_s))
            self.broken["doctor.progress_kept"].append(lost)
        self.broken["doctor.progress_kept"] += [
            say("doctor.keeps_work", lease=each.lease, kept=Seconds(each.kept_work_s))
            for each in state.leases
            if each.kept_work_s < 0
        ]
        due = sum(each.cost_microusd(each.ended_s) for each in state.leases if each.ended_s is not None)
        budget, limit = state.job.budget_microusd, state.job.limit_microusd_per_gpu_hour
        # Above a hard budget, the job's or its tenant's, the operator bears a lease's cost.
        if spent_microusd + self._overrun[name] != due:
            broken = say("doctor.billed", job=name, billed=Usd(spent_microusd), due=Usd(due))
            self.broken["doctor.billed_exactly"].append(broken)
        if budget is not None and spent_microusd > budget:
            broken = say("doctor.above_budget", job=name, billed=Usd(spent_microusd), budget=Usd(budget))
            self.broken["doctor.budgets_kept"].append(broken)
        self.broken["doctor.limits_kept"] += [
            _above_limit(each.lease, each.microusd_per_gpu_hour, limit)
            for each in state.leases
            if limit is not None and each.microusd_per_gpu_hour > limit
        ]

    def _note_overrun(self, event: Event) -> None:
        if isinstance(event, LeaseEnded):
            for transfer in reversed(self.fold.ledger.transfers):
                if transfer.lease == event.lease and transfer.kind == "overrun":
                    self._overrun[transfer.job] += transfer.microusd
                elif transfer.lease != event.lease and transfer.kind != "void":
                    break

    def _one_tenant(self) -> None:
        """By open leases, GPU by GPU; the fold has asserted the same at every event before."""
        held: dict[tuple[str, int], int] = {}
        for lease in self.fold.fleet.open_leases.values():
            share = lease.gpu_milli
            for node, gpus in lease.parts:
                for gpu in gpus:
                    held[node, gpu] = held.get((node, gpu), 0) + share
        self.broken["doctor.one_tenant"] += [
            say("doctor.gpu_crowded", gpu=Plain(gpu), node=node, share=Percent(share / WHOLE_GPU))
            for (node, gpu), share in held.items()
            if share > WHOLE_GPU
        ]

    def _price(self, event: Event) -> None:
        if isinstance(event, PoolPriced):
            self._market_price(event)
            self._priced.pop(event.pool, None)  # it may change twice in a second, and so may what grants pay
        if not isinstance(event, LeaseGranted):
            return
        if event.at_s != self._priced_at:
            self._priced, self._priced_at = {}, event.at_s
        lease = self.fold.fleet.leases.get(event.lease)
        if lease is None:
            return
        pool = (lease.site, lease.gpu, getattr(self.fold.fleet.nodes.get(lease.node), "tier", ""))
        first = self._priced.setdefault(pool, lease.microusd_per_gpu_hour)
        if first != lease.microusd_per_gpu_hour:
            pays = Usd(lease.microusd_per_gpu_hour)
            broken = say("doctor.other_price", lease=event.lease, pays=pays, others=Usd(first))
            self.broken["doctor.one_price"].append(broken)

    def _market_price(self, event: PoolPriced) -> None:
        """From here on every holder pays it: none may have a lower limit."""
        fleet = self.fold.fleet
        line = fleet.prices[event.pool]
        for lease in fleet.leases_at.get(event.site, {}).values():
            limit = fleet.jobs[lease.job].job.limit_microusd_per_gpu_hour
            if lease.line is line and limit is not None and event.microusd_per_gpu_hour > limit:
                broken = _above_limit(lease.lease, event.microusd_per_gpu_hour, limit)
                self.broken["doctor.limits_kept"].append(broken)


def _told(error: Exception) -> Sentence:
    said = getattr(error, "said", None)
    return said if isinstance(said, Sentence) else verbatim(repr(error)[:160])


def _above_limit(lease: str, pays: int, limit: int) -> Sentence:
    return say("doctor.above_limit", lease=lease, pays=Usd(pays), limit=Usd(limit))


def _overlaps(leases: Sequence[Lease]) -> Iterator[Sentence]:
    for before, after in pairwise(leases):
        if before.ended_s is None:
            yield say("doctor.granted_while_open", lease=after.lease, before=before.lease)
        elif before.started_s is not None and (after.started_s or before.ended_s) < before.ended_s:
            early = Seconds(before.ended_s - (after.started_s or 0))
            yield say("doctor.began_early", lease=after.lease, before=before.lease, early=early)


def _tables(store: SqlStore, log: _LogCheck) -> Finding:
    """Snapshots and past jobs are made from the log, so they must agree with it."""
    broken: list[Sentence] = []
    fold = snapshot.load(store)
    kept_seq = fold.fleet.seq
    kept = store.snapshot(snapshot.code_id())
    if kept is not None and kept[0] > kept_seq:
        broken.append(say("doctor.snapshot_damaged", seq=kept[0]))
    fleet = log.fold.fleet
    while fold.fleet.seq < fleet.seq:
        for event in store.since(fold.fleet.seq)[: fleet.seq - fold.fleet.seq]:
            fold.apply(event)
    if list(fold.fleet.jobs) != list(fleet.jobs) or fold.fleet.jobs != fleet.jobs:
        broken.append(say("doctor.jobs_differ"))
    if fold.ledger.balances != log.fold.ledger.balances:
        broken.append(say("doctor.balances_differ"))
    past = {each.state.job.job: hash(repr(each)) for each in _all_past(store)}
    for name, expected in log.past.items():
        if name not in past and name not in fold.fleet.leaving:
            broken.append(say("doctor.past_missing", job=name))
        elif name in past and past[name] != expected:
            broken.append(say("doctor.past_differs", job=name))
    looked = say("doctor.looked_tables", seq=kept_seq, past=count("past_job", len(past)))
    return Finding(say("doctor.tables_agree"), looked, broken)


def _all_past(store: SqlStore) -> Iterator[PastJob]:
    before: int | None = None
    while page := store.past_jobs(before=before, limit=1000):
        yield from page
        before = page[-1].state.serial


def _processes(engine: LocalEngine, log: _LogCheck) -> Finding:
    """What runs here, compared with what should."""
    fleet = log.fold.fleet
    here = fleet.leases_at.get(engine.site, {})
    strays = [name for name in engine.living() if name not in here]
    going = {each.lease: each for each in engine.observe(list(here))}
    broken: list[Said] = [say("doctor.stray", lease=name) for name in strays]
    for name, lease in here.items():
        seen = going.get(name)
        if lease.phase == "running" and (seen is None or seen.state == "absent"):
            broken.append(say("doctor.no_trace", lease=name))
    broken += engine.complaints().values()
    looked = say(
        "doctor.looked_processes", leases=count("lease", len(here)), strays=count("stray", len(strays))
    )
    return Finding(say("doctor.processes_agree", site=engine.site), looked, broken)


def _checkpoints(engine: LocalEngine) -> Finding:
    """Every byte of them, up to a limit: a sparse file of a terabyte costs a job nothing."""
    checked, skipped, left, broken = 0, 0, MOST_READ_BYTES, list[Sentence]()
    folders = engine.checkpoint_folder("x").parent.glob("*")
    for folder in sorted(path for path in folders if path.is_dir() and not path.is_symlink()):
        for each in whole_ones(folder):
            size = sum(size for size, _ in each.files.values())
            if size > left:
                skipped += 1
                continue
            left -= size
            checked += 1
            wrong = damage_said(each)
            if wrong:
                broken.append(say("doctor.checkpoint_damaged", folder=each.folder, wrong=wrong))
    looked: Sentence = count("checkpoint", checked)
    if skipped:
        most = Size(MOST_READ_BYTES)
        looked = say("doctor.looked_checkpoints", checked=checked, skipped=skipped, most=most)
    return Finding(say("doctor.checkpoints_whole", site=engine.site), looked, broken)
