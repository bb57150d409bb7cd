"""The tables of docs/explanation/accuracy.md, computed from the published runs in the shared data folder.

`make generate` rewrites every block `<!-- accuracy: NAME -->` … `<!-- end -->` of the page if that folder
exists, and leaves it unchanged otherwise. Cross-validation takes minutes: `python -m tools.fit_rates --cross
--write` writes its table, which says so if the formulas have changed since.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from statistics import median

from brimful.accuracy.runs import read_rows
from brimful.accuracy.score import COUNTERS, Errors, Report, Scored, report, score, summed
from brimful.fit import cache, roofline
from brimful.fit.roofline import NODE_GPUS, RATES, Rates
from brimful.specs.estimate import Interval
from brimful.units import GIB
from tools.markdown import row
from tools.refit import LIMITS, Timed, ratio, timed_runs

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "explanation" / "accuracy.md"
CROSS = "cross-validation"
OLD = "*Of an earlier version of the formulas; `python -m tools.fit_rates --cross --write` counts again.*"
WORST = 8
EDGE_FRAC = 0.05  # of the search width, on a log scale: closer to an end than this counts as at its edge

# Speed constants that nobody fitted, measured or published, and what they stand for.
JUDGED: dict[str, str] = {
    "FP8_FRAC": "share of the fp8 rate that fp8 linear layers reach",
    "BANDWIDTH_FRAC": "share of the published bandwidth that kernels reach",
    "LOGIT_BYTES": "bytes moved for each logit, compiled (True) and not",
    "GELU_BYTES": "bytes moved for each number of the MLP's width",
    "GATED_BYTES": "the same, gated and compiled",
    "GATED_EAGER_BYTES": "the same, gated and not compiled",
    "COPY_BYTES": "bytes moved for each number of a token's copy for an expert, compiled (True) and not",
    "SCORE_BYTES": "bytes moved for each attention score that is written, compiled or by number format",
    "SLOWER_EXPERTS": "how much further the slow end lies with a mixture of experts",
    "OPTIMIZER_BYTES": "bytes moved for each trained parameter and step, by kind of kernel",
    "MICRO_BYTES": "bytes moved for each parameter and micro-step under autocast",
    "HOST_BYTES_PER_S": "between host and card, by PCIe generation",
    "CPU_BYTES_PER_S": "what an update in host memory moves",
}

# Why a run is far off, if known: (id, words of the row) -> reason. The first match counts.
WHY: tuple[tuple[str, str, str], ...] = (
    ("litgpt", "thunder", "compiled by Thunder, which we take for eager"),
    ("litgpt", "nf4", "what the step before left is counted at half its length"),
    ("litgpt", "", "the length is a limit; real batches are shorter"),
    ("fsdpq", "offload", "weights rest in host memory; buffers on their way are not modelled"),
    ("fsdpq", "", "two cards over PCIe; LoRA targets and buffers are not in the row"),
    ("titan", "tp x", "a newer or older torchtitan than the one its facts were read in"),
    ("hfbert", "", "PyTorch 1 on a V100 in 2022; the row does not say the release"),
    ("peft", "", "an unusual adapter: the row has its name, not what it keeps or launches"),
    ("qwen", "", "the step takes as long at 256 tokens as at 1024: something other than the GPU binds"),
    ("karp", "", "a nightly build of early 2023"),
    ("user", "mi300x", "far faster than other published AMD runs"),
    ("user", "nanochat", "bf16 tables beside fp32 weights, and sliding windows: formulas know neither"),
    ("misc", "unsloth", "hand-written kernels, which skip most of what we count"),
    ("modn", "", "records whose architecture changes from run to run; the row has one shape for all"),
    ("xmem", "", "five short sequences: padding and rounding weigh as much as the model"),
)  # fmt: skip


def shared_runs() -> Path | None:
    """Where the published runs are, if this machine has them."""
    data = Path(os.environ.get("BRIMFUL_SHARED_DATA", ROOT.parent / "shared" / "data"))
    return data / "runs" if (data / "runs" / "training_runs.csv").is_file() else None


def accuracy_page(text: str, folder: Path) -> str:
    """The page with its tables as today's code makes them."""
    quality = {line["id"]: line for line in read_rows(folder / "quality.csv", needed=("id",))}
    rows = list(read_rows(folder / "training_runs.csv"))
    scored = score(rows, quality)
    found = report(scored)
    tables = {
        "promises": promises(found, scored),
        "memory": memory_table(found, scored),
        "speed": speed_table(scored),
        "intervals": interval_table(scored),
        "degrees": degrees_table(score(rows)),
        "one-number": one_number_table(scored),
        "constants": constants_table(),
        "judged": judged_table(),
        "edges": edges_table(),
        "worst memory": worst_table(scored, lambda each: each.memory_error),
        "worst speed": worst_table(scored, lambda each: each.rate_error),
    }
    for name, table in tables.items():
        text = put(text, name, table)
    return put(text, CROSS, dated(block(text, CROSS), timed_runs(rows, quality)))


# -- blocks ------------------------------------------------------------------------------------------------


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- accuracy: {re.escape(name)} -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def put(text: str, name: str, content: str) -> str:
    page, places = _pattern(name).subn(lambda m: f"{m[1]}{content.rstrip()}\n{m[3]}", text)
    assert places == 1, f"the page has {places} places for {name!r}"
    return page


def block(text: str, name: str) -> str:
    found = _pattern(name).search(text)
    assert found, f"the page has no place for {name!r}"
    return found[2]


def digest(runs: Iterable[Timed]) -> str:
    """Changes when any prediction changes by 0.1 %."""
    lines = "\n".join(f"{each.id} {ratio(each, RATES):.3g}" for each in runs)
    return hashlib.sha256(lines.encode()).hexdigest()[:12]


def stamped(table: str, runs: Iterable[Timed]) -> str:
    return f"<!-- of predictions {digest(runs)} -->\n{table}"


def dated(content: str, runs: Iterable[Timed]) -> str:
    """The table as it is, below a note if it is older than the formulas."""
    plain = content.replace(f"{OLD}\n\n", "")
    fresh = f"<!-- of predictions {digest(runs)} -->" in plain
    return plain if fresh else f"{OLD}\n\n{plain}"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rule = "|---|" + "---:|" * (len(header) - 1)
    return "\n".join([row(*header), rule, *[row(*cells) for cells in rows]])


def percent(errors: Errors | None) -> list[str]:
    if errors is None:
        return ["0", "", "", ""]
    p90 = f"{errors.p90:.1%}" if errors.n >= 5 else ""  # too few for a 90th percentile
    return [str(errors.n), f"{errors.median:.1%}", p90, f"{errors.bias:+.1%}"]


# -- tables ------------------------------------------------------------------------------------------------


def promises(found: Report, scored: Sequence[Scored]) -> str:
    assert found.memory
    assert found.textbook
    assert found.rate_node
    assert found.rate_multi
    sources = [errors.median for errors in found.by_source.values() if errors.n >= 4]
    tried = sum(each.memory_error is not None for each in scored)
    return markdown(
        ["", "promised", "shown"],
        [
            ["memory, median error", "≤ 5 %", f"{found.memory.median:.1%} of {tried} runs"],
            ["memory, 90 % of runs below", "≤ 12 %", f"{found.memory.p90:.1%}"],
            ["memory, worst source of 4 or more runs", "≤ 10 %", f"{max(sources):.1%}"],
            ["a ten-line textbook formula, median", "", f"{found.textbook.median:.1%}"],
            ["fits or not, right", "≥ 97 %", f"{found.fits_right} of {found.fits_tried}"],
            ["said “fits”, ran out of memory", "≤ 1", str(found.false_fits)],
            ["tokens per second in a node, median error", "≤ 12 %", f"{found.rate_node.median:.1%}"],
            ["tokens per second across nodes", "≤ 20 %", f"{found.rate_multi.median:.1%}"],
            ["MFU within 4 points", "≥ 80 %", f"{found.mfu_within} of {found.mfu_tried}"],
        ],
    )


def memory_table(found: Report, scored: Sequence[Scored]) -> str:
    header = ["", "runs", "median error", "90 % below", "bias", "textbook median"]

    def textbook(chosen: Callable[[Scored], bool]) -> str:
        errors = summed(each.textbook_error for each in scored if chosen(each))
        return f"{errors.median:.0%}" if errors else ""

    rows = [["all", *percent(found.memory), textbook(lambda _: True)]]
    for name, errors in found.by_counter.items():
        kind = next(kind for kind, counter in COUNTERS.items() if counter == name)
        rows.append([f"counter {name}", *percent(errors), textbook(_kind_is(kind))])
    for name, errors in found.by_source.items():
        rows.append([f"source {name}", *percent(errors), textbook(_source_is(name))])
    return markdown(header, rows)


def _kind_is(kind: str) -> Callable[[Scored], bool]:
    return lambda each: each.row.get("mem_kind") == kind


def _source_is(name: str) -> Callable[[Scored], bool]:
    return lambda each: each.source == name


def degrees_table(scored: Sequence[Scored]) -> str:
    """Every run that splits layers, sequences or stages, marked as a test or not, by how it splits them."""
    groups: dict[tuple[int, int, int], list[Scored]] = {}
    for each in scored:
        if each.run is not None:
            training = each.run.training
            degrees = (training.tensor, training.pipeline, training.context)
            if max(degrees) > 1:
                groups.setdefault(degrees, []).append(each)
    rows = []
    for degrees, runs in sorted(groups.items()):
        memory = [f"{each.memory_error:+.0%}" for each in runs if each.memory_error is not None]
        speed = summed(each.rate_error for each in runs)
        rates = [f"{speed.median:.0%}", f"{speed.bias:+.0%}"] if speed else ["", ""]
        counted = sum(each.rate_error is not None for each in runs)
        sources = ", ".join(sorted({each.source for each in runs}))
        rows.append([*map(str, degrees), sources, ", ".join(memory), str(counted), *rates])
    header = ["tensor", "pipeline", "context", "sources", "memory errors", "timed", "speed, median", "bias"]
    return markdown(header, rows)


def speed_table(scored: Sequence[Scored]) -> str:
    timed = [each for each in scored if each.rate_error is not None]
    groups: dict[str, list[float | None]] = {
        "within a node": [each.rate_error for each in timed if not each.multi_node],
        "across nodes": [each.rate_error for each in timed if each.multi_node],
    }
    for name in sorted({each.source for each in timed}):
        groups[f"source {name}"] = [each.rate_error for each in timed if each.source == name]
    rows = [[name, *percent(summed(errors))] for name, errors in groups.items()]
    return markdown(["", "runs", "median error", "90 % below", "bias"], rows)


def interval_table(scored: Sequence[Scored]) -> str:
    """How often the measured value was between low and high."""
    inside: dict[str, list[bool]] = {name: [] for name in (*COUNTERS.values(), "tokens per second")}
    for each in scored:
        if each.estimate is None or each.run is None:
            continue
        if each.memory_error is not None:
            counter = COUNTERS[each.row["mem_kind"]]
            interval: Interval = getattr(each.estimate.memory, f"{counter}_bytes")
            inside[counter].append(_within(interval, float(each.row["peak_mem_gib"]) * GIB))
        if each.rate_error is not None:
            measured = float(each.row["tokens_per_s_per_gpu"]) * each.run.training.gpus
            inside["tokens per second"].append(_within(each.estimate.speed.tokens_per_s, measured))
    rows = [[name, str(len(found)), f"{sum(found) / len(found):.0%}"] for name, found in inside.items()]
    return markdown(["", "runs", "between low and high"], rows)


def _within(interval: Interval, value: float) -> bool:
    return interval.low <= value <= interval.high


def one_number_table(scored: Sequence[Scored]) -> str:
    """Would one correction factor per counter help on a source it has not seen?"""
    rows = []
    for kind, counter in COUNTERS.items():
        measured = [each for each in scored if each.memory_error is not None and each.row["mem_kind"] == kind]
        left_out = []
        for source in sorted({each.source for each in measured}):
            others = [1 / (1 + (each.memory_error or 0)) for each in measured if each.source != source]
            factor = median(others) if others else 1.0
            own = [each.memory_error or 0 for each in measured if each.source == source]
            left_out += [factor * (1 + error) - 1 for error in own]
        before, after = summed(each.memory_error for each in measured), summed(left_out)
        rows.append([counter, *percent(before)[:3], *percent(after)[1:3]])
    header = ["counter", "runs", "median error", "90 % below", "corrected by other sources", "90 % below"]
    return markdown(header, rows)


def constants_table() -> str:
    untraced = ", ".join(
        f"{value[1]:.0%}"
        for value in (cache.GATHERED_CACHE_FRAC, cache.COMPILED_CACHE_FRAC, cache.CHECKPOINTED_CACHE_FRAC)
    )
    rows = [
        ["speed: all of `Rates`", str(len(fields(Rates))), "tokens per second of the runs scored here"],
        [
            f"memory: allocator cache ({cache.RECOMPUTED_FRAC:.0%}, {cache.GRADIENT_FRAC:.0%})",
            "2",
            "traces alone: the open half of the oracle table",
        ],
        [
            f"memory: allocator cache, compiled or sharded by ZeRO-3 ({untraced})",
            "3",
            "reserved memory of runs scored here (titan, fsdpq, user)",
        ],
        [
            f"memory: cache of varying lengths ({cache.VARYING_CACHE_FRAC[1]:.0%})",
            "1",
            "traces alone: replays of drawn lengths",
        ],
        ["memory: CUDA context", "3", "measurements of the context alone, three cards"],
    ]
    return "\n".join(
        [row("constants", "how many", "fitted to"), "|---|---:|---|", *[row(*cells) for cells in rows]]
    )


def judged_table() -> str:
    """What was set by judgement, as in today's code."""
    lines = [row("constant of `roofline.py`", "value", "what it stands for"), "|---|---|---|"]
    for name, what in JUDGED.items():
        value = getattr(roofline, name)
        shown = (
            ", ".join(f"{k}: {v:g}" for k, v in value.items()) if isinstance(value, dict) else f"{value:g}"
        )
        lines.append(row(f"`{name}`", shown, what))
    return "\n".join(lines)


def edges_table(rates: Rates = RATES) -> str:
    """The fitted constants that ended at the edge of their search range."""
    rows = []
    for name, (low, high) in LIMITS.items():
        value, near = getattr(rates, name), EDGE_FRAC * math.log(high / low)
        for end, at in (("lowest", low), ("highest", high)):
            if abs(math.log(value / at)) <= near:
                rows.append([f"`{name}`", f"{value:g}", f"{end} allowed is {at:g}"])
    return markdown(["constant of `Rates`", "value", "edge"], rows)


def worst_table(scored: Sequence[Scored], error: Callable[[Scored], float | None]) -> str:
    """The runs with the largest errors, by name, with the reason if known."""
    off = [(found, each) for each in scored if (found := error(each)) is not None]
    off.sort(key=lambda pair: -abs(pair[0]))
    rows = [[each.row["id"], each.row["model"], f"{found:+.0%}", why(each)] for found, each in off[:WORST]]
    return "\n".join(
        [row("run", "model", "error", "why"), "|---|---|---:|---|", *[row(*cells) for cells in rows]]
    )


def why(each: Scored) -> str:
    words = " ".join(
        each.row.get(column) or "" for column in ("model", "gpu", "parallelism", "attention", "compile")
    ).lower()
    known = (reason for source, word, reason in WHY if each.source == source and word in words)
    return next(known, "not explained")


def cross_table(runs: Sequence[Timed], kinds: Mapping[str, Mapping[str, float]]) -> str:
    """Errors of the fitted constants, and of constants that have not seen the runs they predict."""
    rows = []
    for name, ratios in kinds.items():
        cells = [name]
        for multi in (False, True):
            chosen = [each.id for each in runs if (each.run.training.gpus > NODE_GPUS) == multi]
            cells += percent(summed(ratios[id] - 1 for id in chosen if id in ratios))[1:3]
        rows.append(cells)
    header = ["", "in a node, median", "90 % below", "across nodes, median", "90 % below"]
    return markdown(header, rows)
