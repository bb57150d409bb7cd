"""Which policy is active, since when and why; what the others would have done."""

from __future__ import annotations

from brimful.client.policy_answers import CandidateAnswer, PolicyAnswer, RehearsalAnswer
from brimful.fleet.events import PolicyRehearsed, Rehearsed
from brimful.language import Seconds, Sentence, say, told
from brimful.scheduler.choosing import Evidence, choose, evidence
from brimful.server.rehearsing.rehearser import Rehearser
from brimful.server.service.reader import Reader


def policy_view(reader: Reader, rehearser: Rehearser) -> PolicyAnswer:
    with reader.locked():
        adopted, found, asked = reader.adopted, rehearser.shown(), rehearser.asked
        sizes = {} if asked is None else asked.by_size()
        better = None if found is None else choose(found, reader.policy)
        return {
            "policy": reader.policy,
            "configured": reader.configured,
            "since_s": None if adopted is None else adopted.at_s,
            "by": "" if adopted is None else adopted.by,
            "reason": told(adopted.reason) if adopted is not None and adopted.reason else "",
            "adopts": rehearser.terms.adopts,
            "cpu_percent": rehearser.terms.cpu_percent,
            "proposal": None if better is None else better.policy,
            "rehearsed": None if found is None else _rehearsal(found, reader.policy),
            "what_if": [
                {"nodes": nodes, **_rehearsal(each, reader.policy)} for nodes, each in sizes.items() if nodes
            ],
            "running": asked is not None and asked.is_running,
            "problem": told(asked.problem) if asked is not None and asked.problem else None,
        }


def _rehearsal(found: PolicyRehearsed, policy: str) -> RehearsalAnswer:
    compared = {each.policy: each for each in evidence(found, policy)}
    rows = sorted(found.results, key=lambda each: each.policy != policy)
    return {
        "since_s": found.since_s,
        "until_s": found.until_s,
        "jobs": found.jobs,
        "deadlines": found.deadlines,
        "cpu_s": found.cpu_ms / 1000,
        "candidates": [_candidate(each, compared.get(each.policy)) for each in rows],
    }


def _candidate(row: Rehearsed, found: Evidence | None) -> CandidateAnswer:
    return {
        "policy": row.policy,
        "mean_jct_s": _known(row.mean_jct_s),
        "p99_jct_s": _known(row.p99_jct_s),
        "mean_delay_s": _known(row.mean_delay_s),
        "deadlines_kept": row.deadlines_kept,
        "fill": None if row.fill_permille < 0 else row.fill_permille / 1000,
        "gain": None if found is None else found.gain,
        "least_gain": None if found is None else max(-1e9, found.least_gain),
        "is_better": found is not None and found.is_enough,
    }


def _known(seconds: int) -> int | None:
    return None if seconds < 0 else seconds


def policy_said(reader: Reader) -> Sentence:
    """Explains why a job waits: by which policy, since when, on what evidence."""
    adopted = reader.adopted
    if adopted is None:
        return say("server.policy_configured", policy=reader.policy)
    return say(
        "server.policy_adopted" if adopted.by else "server.policy_adopted_itself",
        policy=adopted.policy,
        ago=Seconds(max(0, reader.now_s() - adopted.at_s)),
        who=adopted.by,
        configured=reader.configured,
        reason=adopted.reason or "",
    )
