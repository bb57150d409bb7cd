"""How far `claims` and `explain` agree with the expected answers: `python tests/diagnose/expected/score.py`.

`--list` names where they disagree. `--set 2` scores the second set, which nobody who mends the code reads:
counts only. `--set 3` scores messages alone, open after their first run.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import tempfile
import tomllib
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brimful.cli.main import main

HERE = Path(__file__).parent
LATER = ("2", "3")  # sets in files of their own, without halves
# Our codes for claims that are older than the expected answers; the others are the topic, with underscores.
TOPIC = {
    "adam8bit": "eight-bit-adam-saves",
    "checkpointing": "checkpointing-saves",
    "compile_off": "compile-needs-more-memory",
    "expandable_segments": "expandable-segments-fragmentation",
    "fp16": "fp16-saves-over-bf16",
    "memory_is_work": "memory-is-not-compute",
    "never_fails": "always-works",
    "pad_vocabulary": "vocab-padding",
    "same_batch": "effective-batch-kept",
    "smaller_batch": "smaller-batch-saves-a-share",
}
# Our codes for causes and fixes that the labels name otherwise, or have no code for ("other": none of these).
LABEL = {
    "save-sharded": "sharded-checkpoint",
    "one-gpu-per-rank": "set-device",
    "hardware-fault": "other",
    "check-card": "other",
    "disk-full": "other",
    "free-disk": "other",
}
# Topics that are one question asked from two sides: the quote says which claim it is.
FAMILIES = (
    {"compile-needs-more-memory", "compile-saves-memory"},
    {"fits-card", "does-not-fit-card", "peak-below-limit"},
    {"effective-batch-kept", "effective-batch-restored"},
    {"steps-until-compile", "waiting-lowers-memory"},
    {"states-fill-memory", "small-batch-memory-is-states"},
    {"states-bytes", "weights-bytes", "logits-bytes", "kv-cache-bytes"},
    {"workers-gpu-memory", "pinned-host-memory"},
    {"not-fragmentation", "expandable-segments-fragmentation"},
    {"mfu-peak-is-a100", "peak-tflops", "mfu-above-peak"},
)


@dataclass
class Score:
    """Claims or messages of one kind and half."""

    expected: int = 0
    agreed: int = 0
    missed: int = 0
    invented: int = 0
    wrong_and_certain: int = 0
    lines: list[int] = field(default_factory=list)  # of each answer
    apart: list[str] = field(default_factory=list)  # disagreements, in words

    @property
    def frac(self) -> float:
        return self.agreed / self.expected if self.expected else 1.0

    def __str__(self) -> str:
        shown = f"{self.agreed} of {self.expected} ({self.frac:.1%}), {self.missed} missed"
        shown += f", {self.invented} invented"
        return f"{shown}, {self.wrong_and_certain} wrong and certain, longest answer {max(self.lines)} lines"


def _held(name: str, part: str) -> dict[str, Any]:
    file = f"{name}_{part}.toml" if part in LATER else f"{name}.toml"
    return tomllib.loads((HERE / file).read_text(encoding="utf-8"))


def rows(name: str, part: str) -> list[dict[str, Any]]:
    """Of `texts` or `messages`: one half of the first set ('work', 'report'), or a later set ('2', '3')."""
    return [row for row in _held(name, part)[name.removesuffix("s")] if part in LATER or part == row["half"]]


def asked(*args: str) -> tuple[dict[str, Any], int]:
    """What a command answers a program, and the number of lines it shows to a person."""
    outs = []
    for more in ((), ("--json",)):
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
            main([*args, *more])
        outs.append(out.getvalue())
    data: dict[str, Any] = json.loads(outs[1])
    return data.get("data", {}), len(outs[0].splitlines())


def _words(text: str) -> set[str]:
    plain = unicodedata.normalize("NFKC", text.casefold()).replace("’", "'")
    return set(re.findall(r"\w+", re.sub(r"\*\*|`", "", plain)))


def judged(text: str, context: dict[str, Any], lang: str) -> tuple[list[dict[str, Any]], int]:
    """Claims found, each with `claim`, `verdict` and `quotes`."""
    settings = {name: value for name, value in context.items() if name not in ("says", "gpu")}
    with tempfile.TemporaryDirectory() as folder:
        paste, config = Path(folder) / "paste.txt", Path(folder) / "train_config.py"
        paste.write_text(text, encoding="utf-8")
        config.write_text("".join(f"{name} = {value!r}\n" for name, value in settings.items()))
        known = [str(config), "--gpu", context["gpu"]] if settings else []
        data, lines = asked("claims", *known, "--text", str(paste), "--lang", lang)
    return data.get("claims", []), lines


def _is(found: dict[str, Any], expected: dict[str, Any], *, exactly: bool) -> bool:
    topic = TOPIC.get(found["claim"], found["claim"].replace("_", "-"))
    same = topic == expected["topic"]
    near = any({topic, expected["topic"]} <= family for family in FAMILIES)
    quote = _words(expected["quote"])
    held = any(len(quote & _words(each)) >= 0.6 * len(quote) for each in found["quotes"])
    return held and (same or (near and not exactly))


def score_claims(items: Iterator[tuple[str, str, dict[str, Any], str, list[dict[str, Any]]]]) -> Score:
    score = Score()
    for name, text, context, lang, claims in items:
        found, lines = judged(text, context, lang)
        score.lines.append(lines)
        left, unmet = list(found), list(claims)
        for exactly in (True, False):
            for claim in list(unmet):
                hit = next((one for one in left if _is(one, claim, exactly=exactly)), None)
                if hit is None:
                    continue
                left.remove(hit)
                unmet.remove(claim)
                score.expected += 1
                if hit["verdict"].replace(" ", "_") == claim["verdict"]:
                    score.agreed += 1
                else:
                    score.apart.append(f"{name}: {claim['topic']} {claim['verdict']}, told {hit['verdict']}")
        score.invented += len(left)
        score.apart += [f"{name}: invented {one['claim']} {one['quotes']}" for one in left]
        missed = [claim for claim in unmet if not claim.get("optional")]
        score.expected += len(missed)
        score.missed += len(missed)
        score.apart += [f"{name}: missed {claim['topic']}: {claim['quote']}" for claim in missed]
    return score


def score_texts(part: str) -> Score:
    contexts = _held("texts", part)["context"]
    return score_claims(
        (row["id"], row["text"], contexts[row["context"]], row["lang"], row.get("claim", []))
        for row in rows("texts", part)
    )


def score_seeds(folder: Path) -> Score:
    held = tomllib.loads((HERE / "seeds.toml").read_text(encoding="utf-8"))
    return score_claims(
        (
            note["file"],
            (folder / note["file"]).read_text(encoding="utf-8"),
            held["context"][note["context"]],
            note["lang"],
            note.get("claim", []),
        )
        for note in held["note"]
    )


_SCALE = {"k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = re.compile(r"(\d+(?:[.,]\d+)?)\s?([kmgt])(i?)[bo]\b", re.IGNORECASE)


def _sizes(text: str) -> list[float]:
    """Every size of a text in bytes, read both ways where it says GB."""
    found = []
    for number, unit, binary in _SIZE.findall(text):
        value = float(number.replace(",", "."))
        found += [value * base ** _SCALE[unit.lower()] for base in ((1024,) if binary else (1000, 1024))]
    return found


def mentions(answer: str, wanted: str) -> bool:
    """A size in any unit, to what two decimals show; any other word as it is written."""
    plain = re.sub(r"(?<=\d)[.,\u202f\u00a0](?=\d{3}\b)", "", answer)
    if sizes := _sizes(wanted):
        found = _sizes(answer) + _sizes(plain)
        return any(abs(one - each) <= 0.006 * each for one in found for each in sizes)
    return wanted in plain or wanted in answer or wanted.replace(".", ",") in answer


def rounds() -> dict[str, list[dict[str, Any]]]:
    """Sets that were labelled before their first run and are open since: name -> messages."""
    files = sorted((HERE / "rounds").glob("round_*.toml"))
    return {file.stem: tomllib.loads(file.read_text(encoding="utf-8"))["message"] for file in files}


def score_messages(messages: list[dict[str, Any]]) -> Score:
    score = Score()
    for row in messages:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "message.txt"
            file.write_text(row["text"], encoding="utf-8")
            data, lines = asked("explain", str(file), "--lang", row["lang"])
        score.lines.append(lines)
        score.expected += 1
        answer = data.get("answer") or {"cause": None, "certain": False, "fixes": []}
        right = {row["cause"], *row.get("also", [])}
        cause = (answer["cause"] or "").replace("_", "-")
        fixes = {fix.replace("_", "-") for fix in answer["fixes"]}
        is_right = not right.isdisjoint({cause, LABEL.get(cause, cause)})
        helps = not fixes.union(LABEL.get(fix, fix) for fix in fixes).isdisjoint(row["fix"])
        text = json.dumps(data, ensure_ascii=False)
        unsaid = [wanted for wanted in row["must_mention"] if not mentions(text, wanted)]
        over_certain = answer["certain"] and (not is_right or row.get("uncertain", False))
        score.wrong_and_certain += over_certain
        if is_right and helps and not unsaid and not over_certain:
            score.agreed += 1
        else:
            score.apart.append(f"{row['id']}: {row['cause']}, told {cause} {sorted(fixes)}; unsaid {unsaid}")
    return score


def seeds_folder() -> Path:
    return Path(os.environ.get("BRIMFUL_SEEDS", HERE.parents[3] / "shared" / "seeds"))


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", choices=("1", *LATER), default="1")
    parser.add_argument("--round", help="only the messages of one round, such as round_1")
    parser.add_argument("--list", action="store_true", help="name the disagreements (not of set 2)")
    args = parser.parse_args()
    if args.round:
        score = score_messages(rounds()[args.round])
        print(f"{args.round}: {score}", *(f"  {each}" for each in score.apart if args.list), sep="\n")
        return
    parts = ("work", "report") if args.set == "1" else (args.set,)
    shown = {f"texts, {part}": score_texts(part) for part in parts if part != "3"}
    shown |= {f"messages, {part}": score_messages(rows("messages", part)) for part in parts}
    if args.set == "1" and seeds_folder().is_dir():
        shown["seeds"] = score_seeds(seeds_folder())
    for name, score in shown.items():
        print(f"{name}: {score}")
        if args.list and args.set != "2":
            print(*(f"  {each}" for each in score.apart), sep="\n")


if __name__ == "__main__":
    _main()
