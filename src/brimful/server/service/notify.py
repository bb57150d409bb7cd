"""Notifications: read from the log off the loop, queued in the database, sent by a separate worker.

At least once: a note and the position in the log are written together, a note leaves the queue only once it
was accepted, and its id stays the same. Only the leading server reads and sends.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, get_args

from brimful.adapters.notify import Mail, check_host, mail, post
from brimful.adapters.stores.notices import NotifyRule, NotifyStore, Queued
from brimful.errors import BrimfulError, Refused, Said
from brimful.fleet.events import (
    NOT_ITS_FAULT,
    BudgetWarned,
    Event,
    JobSkipped,
    LeaseEnded,
    LeaseEnding,
    LeaseIdle,
)
from brimful.fleet.state import JobState
from brimful.language import Seconds, Usd, count, say
from brimful.server.service.hindsight import KIND, month_said
from brimful.server.service.reader import Reader
from brimful.units import show_usd

log = logging.getLogger("brimful")

Kind = Literal["finished", "failed", "preempted", "over_budget", "idle", "budget", "audit"]
KINDS: tuple[Kind, ...] = get_args(Kind)
OVER_BUDGET = {"scheduler.budget_used_up", "scheduler.tenant_spent"}
ASKED_FOR = {"scheduler.moves_to"}  # by a person, who knows
LOOK_S = 1.0
AT_ONCE = 64  # notes sent per round
OF_TENANT = 16  # per tenant: a round waits for slow receivers, and everyone else waits for the round
SENDERS = 8  # a receiver that does not answer blocks few others
FIRST_RETRY_S, RETRY_FACTOR, TRIES = 10, 4, 7  # the last try is about four hours after the first


NO_MAIL = Mail()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbound:
    """How notes leave this server."""

    mail: Mail = NO_MAIL
    hosts: frozenset[str] = frozenset()  # non-public hosts that webhooks may reach


def kind_of(event: Event, reader: Reader) -> tuple[Kind, JobState] | None:
    """What this event has to tell."""
    kind: Kind | None = None
    match event:
        case LeaseEnding(requeue=True, reason=reason):
            code = _code(reason)
            if code.startswith("scheduler.") and code not in ASKED_FOR:
                kind = "over_budget" if code in OVER_BUDGET else "preempted"
        case LeaseEnded(requeue=True, cause=cause):
            kind = "preempted" if cause in NOT_ITS_FAULT else None
        case LeaseEnded():
            kind = _end_of(reader.job(_job_of(event)), event.lease)
        case LeaseIdle():
            kind = "idle"
        case JobSkipped():
            kind = "failed"
        case _:
            pass
    return None if kind is None else (kind, reader.job(_job_of(event)))


def _end_of(state: JobState, lease: str) -> Kind | None:
    """For a job whose lease has ended; None if it continues, or if a person asked for it."""
    if state.leases[-1].lease != lease:
        return None
    if state.phase == "stopped" and _code(state.reason) in OVER_BUDGET:
        return "over_budget"
    ends: dict[str, Kind] = {"finished": "finished", "failed": "failed", "stopped": "failed"}
    return ends.get(state.phase)


def _job_of(event: Event) -> str:
    return event.job if isinstance(event, JobSkipped) else str(getattr(event, "lease", "")).rpartition(".")[0]


def _code(reason: Said | None) -> str:
    return "" if reason is None else str(reason.as_dict().get("code", ""))


class Notifier:
    """Reads the log and sends what is due."""

    def __init__(self, reader: Reader, store: NotifyStore, outbound: Outbound) -> None:
        self.store, self._reader, self._outbound = store, reader, outbound
        self._looking = threading.Lock()
        self._place: int | None = None  # position in the log
        self.dead = 0  # undeliverable notes, as of the last round

    def now_s(self) -> int:
        return self._reader.now_s()

    def check(self, target: str) -> None:
        """Whether it may be sent there at all."""
        if not target.startswith("mailto:"):
            check_host(target, self._outbound.hosts)
        elif not self._outbound.mail.host:
            raise Refused(say("server.sends_no_mail"), code="sends_nothing")

    def round(self) -> None:
        self.look()
        self.send()

    def look(self) -> None:
        """Queue what has happened since, for each subscriber; writes nothing while there is none."""
        with self._looking:
            self._look()

    def add(self, rule: NotifyRule) -> None:
        """From here on: earlier events are not news for it, even after a restart."""
        with self._looking:
            self._look()
            assert self._place is not None
            self.store.take_in([], seq=self._place)
            self.store.add(rule)

    def _look(self) -> None:
        end, rules = self._reader.fleet.seq, self.store.rules()
        if self._place is None:
            self._place = self.store.place(first=end)
        while self._place < end:
            # No further than readers are: they cannot say how later jobs ended.
            events = self._reader.store.since(self._place)[: end - self._place] if rules else ()
            numbered = enumerate(events, start=self._place + 1)
            notes = [note for seq, event in numbered for note in self._notes(event, seq, rules)]
            place = self._place + len(events) if events else end
            if notes:
                self.store.take_in(notes, seq=place)
            self._place = place

    def _notes(self, event: Event, seq: int, rules: Sequence[NotifyRule]) -> list[Queued]:
        if isinstance(event, BudgetWarned):  # not one user's: goes to those who follow the whole team
            tenant, user = event.budget.partition("/")[0], ""
            facts = _warning(event)
        else:
            found = kind_of(event, self._reader)
            if found is None:
                return []
            tenant, user = found[1].job.tenant, found[1].job.user
            facts = _body(*found, at_s=event.at_s)
        wanting = [r for r in rules if r.wants(kind=facts["kind"], tenant=tenant, user=user)]
        body = json.dumps(facts) if wanting else ""
        return [
            Queued(note=f"{seq}-{each.rule}", rule=each.rule, body=body, tries=0, next_s=event.at_s)
            for each in wanting
        ]

    def send(self) -> None:
        """What is due, several at once."""
        now_s = self._reader.now_s()
        rules = {each.rule: each for each in self.store.rules()}
        found = self.store.due(now_s, limit=AT_ONCE, each=OF_TENANT)
        due = [note for note in found if note.rule in rules]
        if due:
            with ThreadPoolExecutor(SENDERS, thread_name_prefix="notify") as pool:
                list(pool.map(lambda note: self._try(note, rules[note.rule], now_s=now_s), due))
        self.dead = sum(each["dead"] for each in self.store.counts().values())

    def _try(self, note: Queued, rule: NotifyRule, *, now_s: int) -> None:
        try:
            self._deliver(note, rule, now_s=now_s)
        except BrimfulError as error:
            tries = note.tries + 1
            is_dead = tries >= TRIES
            wait_s = FIRST_RETRY_S * RETRY_FACTOR ** (tries - 1)
            self.store.not_taken(note.note, tries=tries, next_s=now_s + wait_s, is_dead=is_dead)
            log.warning("notification %s, try %d of %d: %s", note.note, tries, TRIES, error.problem)
            return
        self.store.taken(note.note)

    def _deliver(self, note: Queued, rule: NotifyRule, *, now_s: int) -> None:
        facts: dict[str, Any] = json.loads(note.body)
        if rule.target.startswith("mailto:"):
            to = rule.target.removeprefix("mailto:")
            subject, text = month_said(facts) if facts["kind"] == KIND else (_subject(facts), _text(facts))
            mail(self._outbound.mail, to, subject=subject, text=text, note=note.note)
            return
        body = json.dumps({"id": note.note, **facts}).encode()
        hosts = self._outbound.hosts
        post(rule.target, body, note=note.note, secret=rule.secret, at_s=now_s, hosts=hosts)


def _body(kind: Kind, state: JobState, *, at_s: int) -> dict[str, Any]:
    job, lease = state.job, state.leases[-1] if state.leases else None
    reason = state.reason or (lease.reason if lease else None)
    if kind == "idle" and lease is not None and lease.idle_since_s is not None:
        reason = say(
            "server.is_idle", gpus=count("gpu", lease.size), quiet=Seconds(at_s - lease.idle_since_s)
        )
    return {
        "kind": kind,
        "at_s": at_s,
        "job": job.job,
        "name": job.name,
        "tenant": job.tenant,
        "phase": state.phase,
        "reason": str(reason) if reason else "",
        "reason_code": reason.as_dict() if reason else None,
        "cost_microusd": state.billed_microusd(at_s),
    }


def _warning(event: BudgetWarned) -> dict[str, Any]:
    used, allowed = Usd(event.used_microusd), Usd(event.allowed_microusd)
    reason = say("server.budget_warned", budget=event.budget, used=used, allowed=allowed)
    return {
        "kind": "budget",
        "at_s": event.at_s,
        "budget": event.budget,
        "tenant": event.budget.partition("/")[0],
        "percent": event.percent,
        "used_microusd": event.used_microusd,
        "allowed_microusd": event.allowed_microusd,
        "reason": str(reason),
        "reason_code": reason.as_dict(),
    }


def _subject(facts: dict[str, Any]) -> str:
    if facts["kind"] == "budget":
        return f"brimful: {facts['reason']}"[:200]
    name = f" ({facts['name']})" if facts["name"] else ""
    kind = say(f"server.notify_{facts['kind']}")
    return " ".join(f"brimful: {facts['job']}{name} {kind}".split())[:200]


def _text(facts: dict[str, Any]) -> str:
    if facts["kind"] == "budget":
        return f"{facts['reason']}\n\n  brimful budget {facts['budget']}\n"
    cost = show_usd(facts["cost_microusd"])
    about = f"{facts['tenant']}, {cost}\n\n  brimful job show {facts['job']}"
    return f"{_subject(facts)}\n{facts['reason']}\n\n{about}\n"


def new_rule(*, owner: str, tenant: str, target: str, kinds: Sequence[str], now_s: int) -> NotifyRule:
    return NotifyRule(
        rule=secrets.token_hex(8),
        owner=owner,
        tenant=tenant,
        target=target,
        kinds=",".join(kinds),
        secret=secrets.token_hex(32),
        created_s=now_s,
    )
