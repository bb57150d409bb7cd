"""What `why-slow` finds: a cause, its evidence, what to change, all as codes with numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from brimful.language import Number, Seconds, Sentence, Several, as_asked, say

HEALTHY, CANNOT_TELL = "healthy", "cannot tell"
# What a rule may name; `-heavy` follows the kind of a pause, which is the user's own word.
CAUSES = (
    *("wrong peak", "data-starved", "communication", "synchronisation", "launch-bound small kernels"),
    *("throttling", "memory nearly full", "small matmuls", "memory-bound ops", HEALTHY, CANNOT_TELL),
)


def cause_words(cause: str) -> Sentence:
    if cause not in CAUSES:
        return say("slow.cause_heavy", kind=cause.removesuffix("-heavy"))
    return say(f"slow.cause_{cause.replace(' ', '_').replace('-', '_')}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause: its cost, its evidence, what to change."""

    cause: str  # one of CAUSES, or the kind of a pause and `-heavy`
    says: Sentence
    evidence: tuple[Sentence, ...]
    change: Several  # in the order to try them
    lost_frac: float  # of the time, that the change could recover

    def as_dict(self) -> dict[str, Any]:
        return {
            "cause": self.cause,
            "says": as_asked(self.says),
            "evidence": [as_asked(each) for each in self.evidence],
            "change": as_asked(self.change),
            "lost_frac": round(self.lost_frac, 4),
            "codes": {
                "says": self.says.as_dict(),
                "evidence": [each.as_dict() for each in self.evidence],
                "change": self.change.plain(),
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The cause that costs most, then the others, and what was not available to look at."""

    findings: tuple[Finding, ...]
    missing: tuple[Sentence, ...]
    steps: int
    step_s: float | None
    mfu: float | None
    verdict: str = ""  # if nothing was found: healthy or cannot tell
    judged: Sentence | None = None  # why that verdict

    @property
    def cause(self) -> str:
        return self.findings[0].cause if self.findings else self.verdict

    @property
    def says(self) -> Sentence:
        said = self.findings[0].says if self.findings else self.judged
        assert said is not None, "a diagnosis finds something or says why not"
        return said

    def as_dict(self) -> dict[str, Any]:
        return {
            "cause": self.cause,
            "says": as_asked(self.says),
            "reason": self.says.as_dict(),
            "steps": self.steps,
            "step_s": self.step_s,
            "mfu": self.mfu,
            "findings": [each.as_dict() for each in self.findings],
            "missing": [as_asked(each) for each in self.missing],
            "missing_codes": [each.as_dict() for each in self.missing],
        }


def do(*ways: Sentence) -> Several:
    return Several(ways, "; ")


def brief(seconds: float) -> object:
    return Seconds(seconds) if seconds >= 0.001 else say("slow.microseconds", n=Number(1e6 * seconds))
