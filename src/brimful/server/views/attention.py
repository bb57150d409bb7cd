"""What needs attention: idle GPUs, failures, silent sites, empty budgets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from brimful.client.answers import AttentionAnswer, BudgetAnswer, Looks, SiteAnswer
from brimful.language import Seconds, Sentence, Usd, count, say, told
from brimful.server.auth import Principal
from brimful.server.service.reader import Reader

DAY_S = 86400
OF_ONE_KIND = 5  # at most; the rest is a count


def attention_view(
    reader: Reader, who: Principal, *, sites: Sequence[SiteAnswer], budgets: Sequence[BudgetAnswer]
) -> list[AttentionAnswer]:
    """Most urgent first. Each has its number of cases and a link."""
    with reader.locked():
        found = [*_sites(sites), *_budgets(budgets), *_idle(reader, who), *_failing(reader, who)]
        return [*found, *_nodes(reader, who)]


def _one(kind: Looks, said: Sentence, path: str) -> AttentionAnswer:
    return {"kind": kind, "said": told(said), "said_code": said.as_dict(), "path": path}


def _sites(sites: Sequence[SiteAnswer]) -> Iterator[AttentionAnswer]:
    for site in sites:
        if site["silent_s"] is not None:
            said = say("server.look_silent", site=site["site"], silent=Seconds(site["silent_s"]))
            yield _one("silent", said, "/fleet")
        elif site["problem"]:
            yield _one("trouble", say("server.look_trouble", site=site["site"]), "/fleet")


def _budgets(budgets: Sequence[BudgetAnswer]) -> Iterator[AttentionAnswer]:
    for budget in budgets:
        left, terms = budget["left_microusd"], budget["budget"]
        if left is None:
            continue
        # Of this period: what a team has spent in all its life says nothing about a monthly budget.
        whole = terms["allowed_microusd"] if terms else left + budget["spent_microusd"]
        if left <= whole // 10:
            said = say("server.look_budget", team=budget["tenant"], left=Usd(left))
            yield _one("budget", said, "/teams")


def _idle(reader: Reader, who: Principal) -> Iterator[AttentionAnswer]:
    fleet, now_s = reader.fleet, reader.now_s()
    idle = [
        lease
        for lease in fleet.open_leases.values()
        if lease.idle_since_s is not None and who.sees(fleet.jobs[lease.job].job.tenant)
    ]
    for lease in idle[:OF_ONE_KIND]:
        quiet = Seconds(max(0, now_s - (lease.idle_since_s or now_s)))
        said = say("server.look_idle", job=lease.job, gpus=count("gpu", lease.size), quiet=quiet)
        yield _one("idle", said, f"/jobs/{lease.job}")


def _failing(reader: Reader, who: Principal) -> Iterator[AttentionAnswer]:
    since_s = reader.now_s() - DAY_S
    failed = sum(
        (state.ended_s or 0) >= since_s and who.sees(state.job.tenant)
        for state in reader.fleet.failed.values()
    )
    if failed:
        yield _one("failed", say("server.look_failed", n=failed), "/jobs?view=failed")


def _nodes(reader: Reader, who: Principal) -> Iterator[AttentionAnswer]:
    drained = len(reader.fleet.drained)
    if drained and who.may("operator"):
        yield _one("drained", say("server.look_drained", n=drained), "/fleet")
    bad = sum(len(node.holes) for node in reader.fleet.nodes.values())
    if bad:
        yield _one("bad", say("server.look_bad", n=bad), "/fleet")
