"""`tick`: one pass of the control loop, live and simulated alike.

    load ─▶ observe ─▶ fold ─▶ clear ─▶ decide ─▶ record the intent ─▶ act

An intent is in the log before anything is done, and every act is idempotent by lease: after a crash at any
line, the next tick does again what the log says should have been done.

A decision stands until something happens that it did not order, or until the moment its plan names. So a
server that looks every second decides at the same moments as a rehearsal, which looks only then, and decides
the same.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from brimful.errors import BrimfulError, Said, WorldFailed
from brimful.fleet.cloud import trouble_with
from brimful.fleet.events import (
    NOT_ITS_FAULT,
    Cause,
    Event,
    JobSkipped,
    LeaseEnded,
    LeaseStarted,
    NodeJoined,
    NodeLeft,
    Parts,
    SiteFound,
    SiteLost,
)
from brimful.fleet.node import bare_name, node_key
from brimful.fleet.state import Fleet, JobState, Lease, Node
from brimful.language import say
from brimful.scheduler.budgets import WARN_EVERY_S, renewals, warnings
from brimful.scheduler.cloud.trading import carry_out_orders, observe_providers
from brimful.scheduler.decide import decide
from brimful.scheduler.load import load_seen, prices_now, tariffs
from brimful.scheduler.plan import Plan
from brimful.scheduler.policies import in_force
from brimful.scheduler.ports import (
    CannotStart,
    Carries,
    Decided,
    Engine,
    Failures,
    Observation,
    Ports,
    Start,
    Warns,
)
from brimful.scheduler.rules import Rules
from brimful.units import DAY_S

# How often another writer may get in between reading and writing before something is badly wrong.
MAX_CONFLICTS = 100
SET_BACK_S = 5  # less is an engine's imprecision
IDLE_LOOK_S = 61  # longer than any review period of a policy


@dataclass(slots=True)
class Tick:
    """What one pass decided, and which sites were unreachable or did not obey."""

    plan: Plan
    problems: dict[str, Said] = field(default_factory=dict)


def tick(fleet: Fleet, ports: Ports, rules: Rules, *, now_s: int) -> Tick:
    problems: dict[str, Said] = {}
    given = rules
    for _ in range(MAX_CONFLICTS):
        catch_up(fleet, ports)
        rules = in_force(given, fleet.adoption.last)
        stood = fleet.seq == ports.decided.seq
        news = observe_providers(fleet, ports, problems, now_s=now_s)
        news += _observe(fleet, ports, problems, now_s=now_s)
        if news and not _record(fleet, ports, news):
            continue
        ports.unrecorded.clear()
        if fleet.gates.doomed and not _record(fleet, ports, _skips(fleet, now_s=now_s)):
            continue
        if stood and _was_ordered(fleet, ports, news):
            ports.decided.seq = fleet.seq
        if fleet.purses and not _renew(fleet, ports, now_s=now_s):
            continue
        # An unreachable provider changes nothing until it can be reached.
        without = frozenset(problems.keys() & map(trouble_with, ports.providers))
        if problems.keys() == without == ports.decided.without and _stands(fleet, ports.decided, now_s=now_s):
            plan = Plan(waits=ports.decided.plan.waits, look_again_s=ports.decided.plan.look_again_s)
            break
        prices = prices_now(fleet, now_s=now_s)
        plan = decide(
            fleet,
            rules,
            prices,
            now_s=now_s,
            unreachable=problems.keys(),
            market=ports.market,
            review=ports.decided.plan.review,
            buying=ports.buying,
        )
        decided = plan.intents
        if not decided or _record(fleet, ports, decided):
            ports.decided.seq, ports.decided.at_s, ports.decided.plan = fleet.seq, now_s, plan
            ports.decided.without = without
            break
    else:
        raise WorldFailed(say("scheduler.log_keeps_moving", times=MAX_CONFLICTS))
    if ports.sees_load or rules.tariff:
        _see_load(fleet, ports, rules, now_s=now_s)
    if fleet.unsettled or fleet.warned:
        _act(fleet, ports, rules, problems, now_s=now_s)
    refused = carry_out_orders(fleet, ports, problems, now_s=now_s)
    if refused:
        _record(fleet, ports, refused)
    return Tick(plan, problems)


def _renew(fleet: Fleet, ports: Ports, *, now_s: int) -> bool:
    """Renew budgets whose period is over, after recording what engines saw of the old period."""
    end_s = fleet.purses.next_end_s()
    if end_s is not None and now_s >= end_s:
        due = renewals(fleet, now_s=now_s)
        if due and not _record(fleet, ports, due):
            return False
    if abs(now_s - ports.decided.warned_s) >= WARN_EVERY_S:
        # It orders nothing, so a decision that stood still stands.
        stood, said = fleet.seq == ports.decided.seq, warnings(fleet, now_s=now_s)
        if said and not _record(fleet, ports, said):
            return False
        ports.decided.warned_s = now_s
        if stood:
            ports.decided.seq = fleet.seq
    return True


def _see_load(fleet: Fleet, ports: Ports, rules: Rules, *, now_s: int) -> None:
    """Once an hour. It orders nothing, so a decision that stood still stands, unless prices changed."""
    seen = load_seen(fleet, now_s=now_s)
    stood = fleet.seq == ports.decided.seq
    if not seen or not _record(fleet, ports, seen):
        return
    quotes = tariffs(fleet, ports.forecasts, ports.market, now_s=now_s) if rules.tariff else []
    if quotes:
        _record(fleet, ports, quotes)
    elif stood:
        ports.decided.seq = fleet.seq


def _skips(fleet: Fleet, *, now_s: int) -> list[Event]:
    """End every job that can never start: a job it depends on did not end as required."""
    doomed, skips = fleet.gates.all_doomed(), list[Event]()
    for name, ended in doomed.items():
        if ended in fleet.gates.arrays:
            reason = say("scheduler.never_starts_array", after=ended)
        else:
            phase = "skipped" if ended in doomed else fleet.jobs[ended].phase
            reason = say("scheduler.never_starts", after=ended, phase=say(f"fleet.verb_{phase}"))
        skips.append(JobSkipped(at_s=now_s, job=name, reason=reason))
    return skips


def _was_ordered(fleet: Fleet, ports: Ports, news: Sequence[Event]) -> bool:
    """Whether the news is only starts that we ordered, none of which starts a limit."""
    if ports.market is not None or fleet.purses or (fleet.due and fleet.spot):
        return not news
    return all(
        isinstance(event, LeaseStarted) and not event.runs_on and not fleet.limits.has(event.lease)
        for event in news
    )


def _stands(fleet: Fleet, decided: Decided, *, now_s: int) -> bool:
    """Whether deciding again would give the same plan."""
    if fleet.seq != decided.seq:
        return False
    if len(fleet.waiting) and not fleet.open_leases and now_s >= decided.at_s + IDLE_LOOK_S:
        return False  # nothing moves, and nothing will without a look outside a review
    again_s = decided.plan.look_again_s
    return again_s is None or now_s < again_s


def catch_up(fleet: Fleet, ports: Ports) -> None:
    while events := ports.store.since(fleet.seq):
        for event in events:
            fleet.apply(event)


def _record(fleet: Fleet, ports: Ports, events: list[Event]) -> bool:
    """Write and fold the events; False if the log has moved on."""
    if not ports.store.append(events, after=fleet.seq):
        return False
    apply = fleet.apply
    for event in events:
        apply(event)
    return True


def _observe(fleet: Fleet, ports: Ports, problems: dict[str, Said], *, now_s: int) -> list[Event]:
    """What the engines report, as events."""
    news: list[Event] = []
    joining: dict[str, Node] = {}
    for pool in fleet.capacity.pools:
        if pool.site not in ports.engines:
            gone = [name for name, node in fleet.nodes.items() if node.site not in ports.engines]
            news += [NodeLeft(at_s=now_s, node=name) for name in gone]
            break
    for site, engine in ports.engines.items():
        try:
            nodes, seen = engine.nodes(), engine.observe(fleet.leases_at.get(site, {}).keys())
        except BrimfulError as error:
            # Unreachable does not mean ended: its jobs are unknown, and none of them starts elsewhere.
            problems[site] = error.said
            if site not in fleet.silent:
                news.append(SiteLost(at_s=now_s, site=site, reason=error.said))
            continue
        if site in fleet.silent:
            news.append(SiteFound(at_s=now_s, site=site))
        agreed = ports.agreed.get(site)
        if agreed is None or agreed[0] is not nodes or agreed[1] != fleet.nodes_changed:
            here = _named(ChainMap(joining, fleet.nodes), site, nodes)
            joining |= here
            changes = list(_node_changes(fleet, site, here, now_s=now_s))
            if not changes:
                ports.agreed[site] = (nodes, fleet.nodes_changed)
            news += changes
        if seen:
            ports.unrecorded.setdefault(site, []).extend(seen)
        heard = ports.unrecorded.get(site)
        if heard:
            news += _lease_news(fleet, ports, heard, problems, now_s=now_s)
    return news


def _named(known: Mapping[str, Node], site: str, nodes: Sequence[Node]) -> dict[str, Node]:
    """By the fleet's names: two sites may have nodes of the same name."""
    here = {}
    for node in nodes:
        key = node_key(site, node.node, known)
        here[key] = node if node.site == site and key == node.node else replace(node, site=site, node=key)
    return here


def _lease_news(
    fleet: Fleet, ports: Ports, heard: Sequence[Observation], problems: dict[str, Said], *, now_s: int
) -> list[Event]:
    news: list[Event] = []
    for seen in {each.lease: each for each in heard}.values():  # the last report on each
        lease = fleet.open_leases.get(seen.lease)
        if lease is None:
            continue
        if seen.state == "waiting":
            ports.waiting[seen.lease] = seen.problem or say("scheduler.engine_waits", site=lease.site)
            continue
        state = fleet.jobs[lease.job]
        was_known = lease.started_s is not None or lease.lease in ports.stopped
        if seen.runs_on and lease.started_s is None and _runs_on(fleet, lease, seen) is None:
            runs_on = ", ".join(f"{name} {list(gpus)}" for name, gpus in seen.runs_on)
            problems[lease.site] = say("scheduler.runs_elsewhere", lease=lease.lease, where=runs_on)
        news += _lease_changes(fleet, lease, state, seen, was_known=was_known, now_s=now_s)
    return news


def _runs_on(fleet: Fleet, lease: Lease, seen: Observation) -> Parts | None:
    """Where it runs, if not where it was ordered to; None if the fleet cannot account for that."""
    keyed = tuple((node_key(lease.site, name, fleet.nodes), gpus) for name, gpus in seen.runs_on)
    if keyed == lease.parts:
        return ()
    return None if fleet.allotted(lease, keyed) is None else keyed


def _node_changes(fleet: Fleet, site: str, nodes: dict[str, Node], *, now_s: int) -> Iterator[Event]:
    for name, node in nodes.items():
        if fleet.nodes.get(name) != node:
            yield NodeJoined.of(node, at_s=now_s)
    for name, known in fleet.nodes.items():
        if known.site == site and name not in nodes:
            yield NodeLeft(at_s=now_s, node=name)


def _lease_changes(
    fleet: Fleet, lease: Lease, state: JobState, seen: Observation, *, was_known: bool, now_s: int
) -> list[Event]:
    if seen.state == "absent":
        if lease.phase == "granted" or not was_known:
            # `_act` will start or stop it: a server that died or hung may have ordered a start that has yet
            # to begin, and finds out only then that it is too late.
            return []
        # It ran, or was told to stop before it ran, and the engine has no trace of it: it holds nothing.
        reason = lease.reason or say("scheduler.lost_by_engine", site=lease.site)
        again = lease.phase != "ending" and _tries_left(state)
        return [LeaseEnded(at_s=now_s, lease=lease.lease, exit_code=None, reason=reason, requeue=again)]
    changes: list[Event] = []
    if lease.started_s is None and seen.started_s is not None:
        runs_on = (_runs_on(fleet, lease, seen) or ()) if seen.runs_on else ()
        at_s = int(seen.started_s - seen.skew_s)
        changes.append(LeaseStarted(at_s, lease.lease, runs_on, seen.resumes_s))
    if seen.state == "ended":
        goes_on = seen.exit_code != 0 and lease.phase != "ending" and _is_requeued(lease, state, seen.cause)
        changes.append(
            LeaseEnded(
                at_s=_ended_s(lease, seen, now_s=now_s),
                lease=lease.lease,
                exit_code=seen.exit_code,
                reason=seen.problem,
                kept_work_s=seen.kept_work_s,
                requeue=goes_on,
                cause=seen.cause,
                exit_codes=seen.exit_codes,
                moved_bytes=seen.moved_bytes,
            )
        )
    return changes


def _ended_s(lease: Lease, seen: Observation, *, now_s: int) -> int:
    """When it ended, by the clock it began with: if the engine's was set back since, its length stays.

    No later than now; if the server's clock was set back too, within a day: an engine may be wrong.
    """
    if seen.ended_s is None:
        return now_s
    ended_s = int(seen.ended_s - seen.skew_s)
    if lease.started_s is None or seen.started_s is None:
        return ended_s
    set_back_s = lease.started_s - int(seen.started_s - seen.skew_s)
    if set_back_s < SET_BACK_S:
        return ended_s
    return min(ended_s + set_back_s, now_s if now_s >= lease.granted_s else lease.started_s + DAY_S)


def _tries_left(state: JobState) -> bool:
    return state.failures < state.job.retries and not state.cancel_requested


def _is_requeued(lease: Lease, state: JobState, cause: Cause | None) -> bool:
    """Whether the job waits for other GPUs: one that leaves while on notice did as it was told.

    So does a job whose node was lost or whose engine evicted it: only a failed job uses up a try.
    """
    not_its_fault = lease.notice_s is not None or cause in NOT_ITS_FAULT
    return (not_its_fault and not state.cancel_requested) or _tries_left(state)


def _act(fleet: Fleet, ports: Ports, rules: Rules, problems: dict[str, Said], *, now_s: int) -> None:
    """Carry out every intent in the log, not only this tick's: an earlier one may have been cut short."""
    failed: list[Event] = []
    if ports.stopped:
        ports.stopped.intersection_update(fleet.unsettled)
    if ports.waiting:
        for name in [name for name in ports.waiting if name not in fleet.unsettled]:
            del ports.waiting[name]
    silent = frozenset(problems)  # taken now: one lease's trouble must not stop acts on others at its site
    due = [lease for lease in fleet.unsettled.values() if lease.site not in silent]
    for (site, phase), together in groupby(due, key=lambda lease: (lease.site, lease.phase)):
        batch = list(together)
        engine = ports.engines.get(site)
        if engine is None:
            problems[site] = say("scheduler.no_engine", site=site, job=batch[-1].job)
            continue
        ports.may_act()
        try:
            refused = (_start if phase == "granted" else _stop)(batch, fleet, ports, engine, rules)
        except BrimfulError as error:
            # They may run or not: the GPUs stay taken, and the next tick asks again.
            problems[site] = error.said
            continue
        if refused:
            failed += _cannot_start(batch, fleet, refused, problems, now_s=now_s)
    if fleet.warned:
        _warn(fleet, ports, silent, problems)
    if failed:
        # If another writer was first, the next tick finds the same failures and reports them again.
        _record(fleet, ports, failed)


def _cannot_start(
    batch: Sequence[Lease], fleet: Fleet, refused: Failures, problems: dict[str, Said], *, now_s: int
) -> Iterator[Event]:
    """The leases that certainly do not run; any other failure is the site's problem, and is retried."""
    for lease in batch:
        error = refused.get(lease.lease)
        if isinstance(error, CannotStart) and lease.phase == "granted":
            again = _is_requeued(lease, fleet.jobs[lease.job], error.cause)
            yield LeaseEnded(
                at_s=now_s,
                lease=lease.lease,
                exit_code=None,
                reason=error.said,
                requeue=again,
                cause=error.cause,
            )
        elif error is not None and not isinstance(error, CannotStart):
            problems[lease.site] = error.said


def _warn(fleet: Fleet, ports: Ports, silent: Collection[str], problems: dict[str, Said]) -> None:
    """Warn jobs that must leave, and tell those that may stay after all; engines remember warnings."""
    for lease in list(fleet.warned.values()):
        engine: object = ports.engines.get(lease.site)
        if lease.phase != "running" or lease.site in silent or not isinstance(engine, Warns):
            continue
        ports.may_act()
        try:
            engine.warn(lease.lease, until_s=lease.notice_s)
        except BrimfulError as error:
            problems[lease.site] = error.said


def _start(batch: Sequence[Lease], fleet: Fleet, ports: Ports, engine: Engine, _rules: Rules) -> Failures:
    starts: list[Start] = []
    refused: dict[str, BrimfulError] = {}
    for lease in batch:
        state, site = fleet.jobs[lease.job], lease.site
        before: object = ports.engines.get(_ran_last_at(state)) if len(state.leases) > 1 else None
        source = ""
        if before is not None and before is not engine and isinstance(before, Carries):
            if not isinstance(engine, Carries):
                origin = _ran_last_at(state)
                said = say("scheduler.cannot_fetch_checkpoint", site=site, job=lease.job, origin=origin)
                refused[lease.lease] = CannotStart(said)
                continue
            source = before.checkpoints(lease.job)
        parts = lease.parts
        if "@" in lease.node or lease.rest:
            parts = tuple((bare_name(site, name), gpus) for name, gpus in parts)
        starts.append(Start(lease.lease, state.job, parts, source, state.kept_until_s, lease.may_share))
    return {**engine.start(starts), **refused} if starts else refused


def _stop(batch: Sequence[Lease], _fleet: Fleet, ports: Ports, engine: Engine, rules: Rules) -> Failures:
    refused = engine.stop([lease.lease for lease in batch], grace_s=rules.grace_s)
    ports.stopped.update(lease.lease for lease in batch if lease.lease not in refused)
    return refused


def _ran_last_at(state: JobState) -> str:
    """The site where the job last ran; empty if it never ran."""
    return next((lease.site for lease in reversed(state.leases) if lease.started_s is not None), "")
