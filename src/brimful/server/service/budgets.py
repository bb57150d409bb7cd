"""Computes a budget that somebody wants to set, and refuses it if the sums do not add up."""

from __future__ import annotations

from dataclasses import dataclass

from brimful.errors import NotFound, Refused
from brimful.fleet.events import BudgetSet, Period
from brimful.fleet.money.purse import Budget, Purses
from brimful.language import Quoted, Usd, say
from brimful.market.periods import period_at
from brimful.scheduler.budgets import Money
from brimful.server.service.reader import Reader


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetAsked:
    """The new values; None: unchanged, or the default for a new budget."""

    within: str | None = None
    period: Period | None = None
    zone: str | None = None
    hard: bool | None = None


AS_IT_IS = BudgetAsked()


def checked_budget(reader: Reader, name: str, microusd: int | None, asked: BudgetAsked) -> BudgetSet:
    purses, now_s = reader.fleet.purses, reader.now_s()
    before, below = purses.budgets.get(name), purses.children(name)
    parent = _parent(purses, name, before, asked)
    if microusd is None:
        if below:
            names = ", ".join(sorted(each.name for each in below))
            raise Refused(say("server.budget_has_children", tenant=name, children=names), code="has_children")
        return BudgetSet(at_s=now_s, tenant=name, microusd=None, within=parent)
    period = asked.period or (before.period if before else "fixed")
    zone = asked.zone or (before.zone if before else "UTC")
    since_s, until_s = period_at(now_s, period, zone)
    event = BudgetSet(
        at_s=now_s,
        tenant=name,
        microusd=microusd,
        within=parent,
        period=period,
        zone=zone,
        hard=asked.hard if asked.hard is not None else before.hard if before else True,
        since_s=since_s,
        until_s=until_s,
    )
    children = sum(each.limit_microusd for each in below)
    if children > microusd:
        said = say("server.budget_below_children", tenant=name, sum=Usd(microusd), children=Usd(children))
        raise Refused(said, code="below_children")
    if parent:
        _check_parent(reader, event, microusd)
    accrued = reader.accrued_microusd().get(name, 0)
    if before is not None and until_s is not None:
        below_it = sum(purses.total(each.name) for each in below)
        accrued += purses.total(name) - before.left_microusd - below_it  # set aside for its jobs
        accrued += before.spent_microusd if before.until_s == until_s else 0
    if microusd < accrued:
        more = Usd(accrued - microusd)
        said = say("server.budget_below_accrued", tenant=name, accrued=Usd(accrued), more=more)
        raise Refused(said, code="below_accrued")
    return event


def _parent(purses: Purses, name: str, before: Budget | None, asked: BudgetAsked) -> str:
    """A project's parent is always its team."""
    team, _, project = name.partition("/")
    parent = team if project else before.within if before and asked.within is None else asked.within or ""
    if parent and parent not in purses.budgets:
        raise NotFound(say("server.no_parent_budget", parent=Quoted(parent[:60]), tenant=name))
    if before is not None and before.within != parent:
        said = say(
            "server.budget_is_within", tenant=name, parent=before.within or say("server.budget_nowhere")
        )
        raise Refused(said, code="budget_moves")
    return parent


def _check_parent(reader: Reader, event: BudgetSet, microusd: int) -> None:
    purses = reader.fleet.purses
    parent = purses.budgets[event.within]
    others = [each for each in purses.children(parent.name) if each.name != event.tenant]
    siblings = sum(each.limit_microusd for each in others)
    of_parent = {"tenant": event.tenant, "parent": parent.name}
    if siblings + microusd > parent.limit_microusd:
        has, rest = Usd(parent.limit_microusd), Usd(max(0, parent.limit_microusd - siblings))
        said = say("server.budget_above_parent", **of_parent, has=has, others=Usd(siblings), rest=rest)
        raise Refused(said, code="above_parent")
    left = Money(reader.fleet, now_s=reader.now_s()).left[parent.name]
    lacking = purses.lacking(event, left)
    if lacking:
        said = say("server.parent_lacks", **of_parent, left=Usd(max(0, left)), lacking=Usd(lacking))
        raise Refused(said, code="parent_lacks")
