"""`brimful fleet rehearse`: what other policies would have made of the server's past; adopt one."""

from __future__ import annotations

import argparse
import time

from brimful.cli.commands import Answer, integer
from brimful.cli.fleet.jobs import columns
from brimful.cli.options import agree
from brimful.cli.render import clock, table, wrapped
from brimful.client.client import Client
from brimful.client.policy_answers import CandidateAnswer, PolicyAnswer
from brimful.errors import WorldFailed
from brimful.language import Percent, Seconds, Sentence, count, say, told, verbatim, words
from brimful.language.printable import all_printable

EXAMPLE = """brimful fleet rehearse
brimful fleet rehearse --days 7 --policy srpt --policy 'brim?known=0'
brimful fleet rehearse --adopt srpt"""
POLL_S = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--days", type=integer, metavar="N")
    parser.add_argument("--policy", action="append", default=[], metavar="POLICY")
    parser.add_argument("--adopt", metavar="POLICY")
    parser.add_argument("--yes", action="store_true")
    parser.add_argument("--dry-run", action="store_true")


def run(args: argparse.Namespace) -> Answer:
    client = Client()
    if args.adopt:
        return _adopt(client, args.adopt, yes=args.yes, dry_run=args.dry_run)
    found = client.policy()
    if args.days or args.policy or found["rehearsed"] is None:
        found = _rehearsed(client, days=args.days or 1, policies=args.policy)
    return Answer(found, _text(all_printable(found)))


def _rehearsed(client: Client, *, days: int, policies: list[str]) -> PolicyAnswer:
    found = client.rehearse(days=days, policies=policies)
    while found["running"]:
        time.sleep(POLL_S)
        found = client.policy()
    if found["problem"]:
        raise WorldFailed(verbatim(found["problem"]), code="rehearsal_failed")
    return found


def _adopt(client: Client, policy: str, *, yes: bool, dry_run: bool) -> Answer:
    from brimful.scheduler.policies import read_policy

    read_policy(policy)  # a name that no policy has is not worth a question
    before = client.policy()
    rows = before["rehearsed"]["candidates"] if before["rehearsed"] else []
    row = next((each for each in rows if each["policy"] == policy), None)
    said = say("fleet.adopt_unrehearsed", policy=policy, before=before["policy"])
    if row is not None and row["gain"] is not None:
        code = "fleet.adopt_known" if row["gain"] >= 0 else "fleet.adopt_worse"
        said = say(code, policy=policy, before=before["policy"], gain=Percent(abs(row["gain"])))
    if dry_run:
        return Answer(before, told(say("fleet.would_adopt", said=said)))
    agree(said, yes=yes)
    found = client.adopt(policy)
    return Answer(found, words("fleet.adopted", policy=found["policy"]))


def _text(found: PolicyAnswer) -> str:
    lines = wrapped("", told(_in_force(found)))
    rehearsed = found["rehearsed"]
    if rehearsed is None:
        return "\n".join(lines)
    times = {"since": clock(rehearsed["since_s"]), "until": clock(rehearsed["until_s"])}
    cpu = Seconds(rehearsed["cpu_s"])
    lines += [
        "",
        *wrapped("", words("fleet.rehearsed", jobs=count("job", rehearsed["jobs"]), cpu=cpu, **times)),
        "",
    ]
    names = ("policy", "mean_jct", "p99_jct", "mean_delay", "in_time", "fill", "less", "at_least")
    rows = [_cells(each, rehearsed["deadlines"]) for each in rehearsed["candidates"]]
    lines += [table(columns(*names), rows, right=range(1, 8)), ""]
    lines += [*wrapped("", words("fleet.rehearsed_legend")), ""]
    if found["proposal"] is None:
        lines += wrapped("", words("fleet.rehearsed_stay", policy=found["policy"]))
    else:
        lines += wrapped("", words("fleet.rehearsed_change", policy=found["proposal"]))
    return "\n".join(lines)


def _in_force(found: PolicyAnswer) -> Sentence:
    if found["since_s"] is None:
        return say("server.policy_configured", policy=found["policy"])
    return say(
        "fleet.policy_since",
        policy=found["policy"],
        since=clock(found["since_s"]),
        who=found["by"] or say("fleet.server_itself"),
        configured=found["configured"],
        reason=found["reason"],
    )


def _cells(row: CandidateAnswer, deadlines: int) -> list[str]:
    times = (row["mean_jct_s"], row["p99_jct_s"], row["mean_delay_s"])
    gains = (row["gain"], row["least_gain"])
    return [
        row["policy"],
        *("" if each is None else told(Seconds(each)) for each in times),
        f"{row['deadlines_kept']}/{deadlines}" if deadlines else "",
        "" if row["fill"] is None else told(Percent(row["fill"])),
        *("" if each is None else "-" if each < -9 else told(Percent(each)) for each in gains),
    ]
