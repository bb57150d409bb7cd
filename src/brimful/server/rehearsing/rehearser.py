"""When the server rehearses its past, what it does with the result, and rehearsals on request.

None of this is on the loop's path: a thread waits for a process (`worker.py`), and the result is an event
like any other. Only the log says when to run next and what was found, so that a restart changes nothing.
"""

from __future__ import annotations

import json
import logging
import pickle
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from brimful.errors import BrimfulError, Refused, Said, WorldFailed
from brimful.fleet.events import Event, PolicyAdopted, PolicyRehearsed, from_record
from brimful.language import Percent, Seconds, count, say
from brimful.scheduler.choosing import WINDOW_S, Evidence, choose, evidence
from brimful.scheduler.policies import CANDIDATES, read_policy
from brimful.server.rehearsing.worker import Question
from brimful.server.service.reader import Reader
from brimful.server.service.submissions import Submissions
from brimful.units import HOUR_S

log = logging.getLogger("brimful")

LOOK_S = 3 * HOUR_S  # between two rehearsals, or longer if they exceed their CPU share
TIMEOUT_S = 6 * HOUR_S  # wall-clock limit of one
USUAL_PERCENT = 5
BESIDE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalTerms:
    database: str
    policies: tuple[str, ...] = CANDIDATES
    cpu_percent: int = USUAL_PERCENT  # of one core, on average; 0: only on request
    adopts: bool = False  # by itself; otherwise it only proposes


@dataclass(frozen=True, slots=True)
class Asked:
    """A rehearsal that somebody asked for."""

    days: int
    sizes: tuple[int, ...] = (0,)  # nodes added or removed
    found: tuple[PolicyRehearsed, ...] = ()  # one per size
    problem: Said | None = None

    @property
    def is_running(self) -> bool:
        return not self.found and self.problem is None

    def by_size(self) -> dict[int, PolicyRehearsed]:
        return dict(zip(self.sizes, self.found, strict=True)) if self.found else {}


class Rehearser:
    def __init__(self, reader: Reader, submissions: Submissions, terms: RehearsalTerms) -> None:
        self._reader, self._submissions, self.terms = reader, submissions, terms
        self._process: subprocess.Popen[bytes] | None = None
        self._one_at_a_time = threading.Lock()
        self._rest_until_s = 0
        self.asked: Asked | None = None

    # -- by itself -------------------------------------------------------------------------------------

    def look(self) -> None:
        """Rehearse the last day if it is due; adopt a better policy if the operator allows that."""
        now_s = self._reader.now_s()
        if not self.is_due(now_s):
            return
        self._rest_until_s = now_s + LOOK_S  # whatever the outcome
        (found,) = self._rehearse(now_s - WINDOW_S, now_s, self.candidates())
        if not found.jobs:
            return
        found = replace(found, at_s=self._reader.now_s())
        self._submissions.note(lambda: [found])
        better = choose(found, self._reader.policy)
        if better is None:
            return
        gain = f"{100 * better.gain:.0f} % less than {self._reader.policy}"
        log.info("policy %s would have cost %s in the last day", better.policy, gain)
        if self.terms.adopts:
            self._submissions.note(lambda: self._if_better(found))

    def is_due(self, now_s: int) -> bool:
        """Once the log has a day of work; rarely enough to stay within the share of a core."""
        fleet, percent = self._reader.fleet, self.terms.cpu_percent
        first_s, last = fleet.first_submit_s, fleet.adoption.rehearsed
        if not percent or first_s is None or now_s < max(first_s + WINDOW_S, self._rest_until_s):
            return False
        if last is None:
            return True
        return now_s >= last.at_s + max(LOOK_S, last.cpu_ms / 10 / percent)  # ms / 1000 x 100 / percent

    def candidates(self) -> tuple[str, ...]:
        """The active policy first, then the configured one and those that may replace it."""
        return tuple(dict.fromkeys((self._reader.policy, self._reader.configured, *self.terms.policies)))

    def _if_better(self, found: PolicyRehearsed) -> Sequence[Event]:
        """Checked again when it is written: somebody may have adopted another policy meanwhile."""
        better = choose(found, self._reader.policy)
        return [] if better is None else [self._adoption(better.policy, by="", found=found)]

    # -- when somebody asks ----------------------------------------------------------------------------

    def ask(self, *, days: int, policies: Sequence[str], sizes: Sequence[int] = (0,)) -> None:
        """Start to rehearse the last days; `asked` has the result when it is done."""
        texts = tuple(read_policy(text).text for text in policies)
        wanted = tuple(dict.fromkeys((self._reader.policy, *texts))) if texts else self.candidates()
        if self.asked is not None and self.asked.is_running:
            raise Refused(say("server.rehearsal_busy"), code="rehearsal_busy")
        now_s, nodes = self._reader.now_s(), tuple(dict.fromkeys(sizes))
        self.asked = Asked(days, nodes)

        def go() -> None:
            try:
                found = self._rehearse(now_s - days * WINDOW_S, now_s, wanted, sizes=nodes)
                self.asked = Asked(days, nodes, found=found)
            except BrimfulError as error:
                self.asked = Asked(days, nodes, problem=error.said)
            except Exception:
                log.exception("internal error in a rehearsal")
                self.asked = Asked(days, nodes, problem=say("server.rehearsal_failed"))

        threading.Thread(target=go, name="rehearsal", daemon=True).start()

    def adopt(self, policy: str, *, by: str) -> None:
        """Make this policy the active one; the configured policy ends an adoption."""
        text = read_policy(policy).text
        found = self.shown()
        self._submissions.note(
            lambda: [] if self._reader.policy == text else [self._adoption(text, by=by, found=found)]
        )

    def shown(self) -> PolicyRehearsed | None:
        """The newest rehearsal of the fleet as it was, whoever asked for it."""
        # A rehearsal with other nodes says nothing about which policy to choose.
        asked = None if self.asked is None else self.asked.by_size().get(0)
        last = self._reader.fleet.adoption.rehearsed
        return last if asked is None or (last is not None and last.until_s > asked.until_s) else asked

    def _adoption(self, policy: str, *, by: str, found: PolicyRehearsed | None) -> PolicyAdopted:
        ours = self._reader.policy
        known = [] if found is None else [each for each in evidence(found, ours) if each.policy == policy]
        reason: Said = say("server.adopted_unrehearsed")
        if found is not None and known:
            reason = evidence_said(known[0], ours, found)
        now_s, configured = self._reader.now_s(), self._reader.configured
        return PolicyAdopted(at_s=now_s, policy=policy, instead_of=configured, by=by, reason=reason)

    # -- the process -----------------------------------------------------------------------------------

    def _rehearse(
        self, start_s: int, end_s: int, policies: tuple[str, ...], *, sizes: tuple[int, ...] = (0,)
    ) -> tuple[PolicyRehearsed, ...]:
        # One run may use a whole day's allowance.
        cpu_s = max(1, (self.terms.cpu_percent or USUAL_PERCENT) * WINDOW_S // 100)
        asked = Question(
            database=self.terms.database,
            start_s=start_s,
            end_s=end_s,
            policies=policies,
            market=self._reader.market,
            cpu_s=cpu_s,
            sizes=sizes,
        )
        with self._one_at_a_time:
            text = self._answer(pickle.dumps(asked))
        try:
            found = [from_record(*each) for each in json.loads(text)]
        except ValueError as error:
            raise WorldFailed(say("server.rehearsal_failed"), code="rehearsal_failed") from error
        return tuple(each for each in found if isinstance(each, PolicyRehearsed))

    def _answer(self, question: bytes) -> bytes:
        command = [sys.executable, "-I", "-m", "brimful.server.rehearsing.worker"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            return self._process.communicate(question, timeout=TIMEOUT_S)[0]
        except subprocess.TimeoutExpired:
            return b""
        finally:
            self.close()

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()


def evidence_said(found: Evidence, policy: str, rehearsed: PolicyRehearsed) -> Said:
    """Why one policy is better than another, with numbers."""
    code = "server.evidence" if found.gain >= 0 else "server.evidence_against"
    return say(
        code,
        jobs=count("job", rehearsed.jobs),
        past=Seconds(rehearsed.until_s - rehearsed.since_s),
        gain=Percent(abs(found.gain)),
        least=Percent(max(0.0, found.least_gain)),
        policy=policy,
    )
