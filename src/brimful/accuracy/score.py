"""How accurate we are: predict every row of a table of measured runs, and count the errors.

The same arithmetic serves published tables, a user's own runs, and the accuracy page in the docs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from statistics import median

from brimful.accuracy.runs import Row, Run, Skipped, understand
from brimful.errors import BadInput, Said
from brimful.fit.count import parameters
from brimful.fit.fit import estimate
from brimful.fit.roofline import NODE_GPUS
from brimful.language import Quoted, say
from brimful.specs.estimate import Estimate, Interval
from brimful.units import GIB

# mem_kind of the table -> the counter it was read from
COUNTERS = {"allocated_peak": "allocated", "reserved_peak": "reserved", "nvidia-smi": "device"}
MFU_POINTS = 0.04


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One row: what was measured, what we predict, or why we do not."""

    row: Row
    source: str
    run: Run | None = None
    estimate: Estimate | None = None
    skipped_because: Said | None = None
    memory_error: float | None = None  # relative, of the row's own counter
    textbook_error: float | None = None
    fits_right: bool | None = None
    false_fit: bool = False
    rate_error: float | None = None  # relative, tokens per second and GPU
    mfu_error: float | None = None  # in points, 0-1
    set_aside: tuple[Said, ...] = ()  # measurements that cannot be, and are not scored

    @property
    def multi_node(self) -> bool:
        return self.run is not None and self.run.training.gpus > NODE_GPUS


Quality = Mapping[str, Mapping[str, str]]  # id -> its row in the quality table


def score(rows: Iterable[Row], quality: Quality | None = None) -> list[Scored]:
    """Predict every row. With a quality table only the tests it marks count; else all that a row supports."""
    found: list[Scored] = []
    seen: set[str] = set()
    for row in rows:
        name = row_id(row)
        if name and name in seen:
            again = say("accuracy.id_again", id=Quoted(name[:40]))
            found.append(Scored(row=row, source=name.split("-")[0], skipped_because=again))
            continue
        seen.add(name)
        found.append(_scored(row, None if quality is None else quality.get(name, {})))
    return found


def row_id(row: Row) -> str:
    """The name of a row; a row shorter than its header may have none."""
    return row.get("id") or ""


def _scored(row: Row, marks: Mapping[str, str] | None) -> Scored:
    source = row_id(row).split("-")[0]
    try:
        run = understand(row)
        # No desktop is assumed: device readings leave out what was there before the run ("used minus idle"),
        # and published runs reserved up to 97 % of a GeForce card.
        answer = estimate(run.model, run.training, run.gpu, 0, correction=None)
    except (Skipped, BadInput) as reason:  # for example fp8 on a card without it
        return Scored(row=row, source=source, skipped_because=reason.said)
    strict = "memory" if marks is None else marks.get("strict_test", "")
    measured_rate = _number(row.get("tokens_per_s_per_gpu"))
    counts = marks is None or marks.get("throughput_test") == "yes"
    timed = measured_rate is not None and counts
    rate = answer.speed.tokens_per_s.likely / run.training.gpus
    mfu = _number(row.get("mfu"), most=1)
    kind = row.get("mem_kind", "")
    peak_aside = _set_aside(row, "peak_mem_gib", 1e18) if kind in COUNTERS and strict else ()
    rate_aside = _set_aside(row, "tokens_per_s_per_gpu", 1e18) if counts else ()
    mfu_aside = _set_aside(row, "mfu", 1) if counts else ()
    judged = strict in ("memory", "boolean") and kind in (*COUNTERS, "fits", "oom") and not peak_aside
    fits = answer.fits == (kind != "oom") if judged else None
    return Scored(
        row=row,
        source=source,
        run=run,
        estimate=answer,
        memory_error=_memory_error(row, _counter(answer, row)) if strict == "memory" else None,
        textbook_error=_memory_error(row, textbook_bytes(run)) if strict == "memory" else None,
        fits_right=fits,
        false_fit=fits is False and answer.fits,
        rate_error=rate / measured_rate - 1 if timed and measured_rate else None,
        mfu_error=answer.speed.mfu.likely - mfu if timed and mfu is not None else None,
        set_aside=(*peak_aside, *rate_aside, *mfu_aside),
    )


def textbook_bytes(run: Run) -> float:
    """The ten-line formula people use: states and 34·s·b·h bytes per layer, no logits, no cache.

    Source: Korthikanti et al., arXiv:2205.05198, equation 2, without its attention term (flash attention).
    """
    training, model = run.training, run.model
    count = parameters(model)
    states = 16 * count if training.tuning == "full" else 2 * count
    layers = 1 if training.checkpointing == "full" else model.layers
    activations = 34 * training.micro_tokens * model.width * layers
    return states / max(1, training.shards) + activations / training.tensor


def _counter(answer: Estimate, row: Row) -> float | None:
    name = COUNTERS.get(row.get("mem_kind", ""))
    counter: Interval | None = getattr(answer.memory, f"{name}_bytes", None)
    return None if counter is None else counter.likely


def _memory_error(row: Row, predicted: float | None) -> float | None:
    measured = _number(row.get("peak_mem_gib"))
    if predicted is None or measured is None or row.get("mem_kind") not in COUNTERS:
        return None
    return predicted / (measured * GIB) - 1


def _set_aside(row: Row, column: str, most: float) -> tuple[Said, ...]:
    """Why a measurement that was given is not one; nothing for an empty cell."""
    text = (row.get(column) or "").strip()
    if not text or _number(text, most=most) is not None:
        return ()
    return (say("accuracy.column_is", column=column, value=Quoted(text[:30])),)


def _number(text: str | None, *, most: float = 1e18) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value <= most else None


# -- summing up --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """A set of relative errors: how many, how large in the middle and near the end, and which sign."""

    n: int
    median: float
    p90: float
    bias: float


def summed(values: Iterable[float | None]) -> Errors | None:
    """None if there is nothing to sum up."""
    errors = sorted(value for value in values if value is not None)
    if not errors:
        return None
    sizes = sorted(map(abs, errors))
    p90 = sizes[int(0.9 * (len(sizes) - 1))]
    return Errors(n=len(sizes), median=median(sizes), p90=p90, bias=median(errors))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The whole score."""

    rows: int
    memory: Errors | None
    textbook: Errors | None
    by_counter: dict[str, Errors]
    by_source: dict[str, Errors]
    fits_right: int
    fits_tried: int
    false_fits: int
    rate_node: Errors | None
    rate_multi: Errors | None
    mfu_within: int
    mfu_tried: int
    skipped: tuple[tuple[Said, int], ...] = ()  # why, and how many rows; most frequent first

    def as_dict(self) -> dict[str, object]:
        found = asdict(replace(self, skipped=()))
        return {
            **{name: found[name] for name in ("rows", "memory", "textbook", "by_counter", "by_source")},
            "fits": {"right": self.fits_right, "tried": self.fits_tried, "false_fits": self.false_fits},
            "tokens_per_s": {"node": found["rate_node"], "multi_node": found["rate_multi"]},
            "mfu": {"within_4_points": self.mfu_within, "tried": self.mfu_tried},
            "skipped": {str(reason): n for reason, n in self.skipped},
            "skipped_codes": [{"reason": reason.as_dict(), "runs": n} for reason, n in self.skipped],
        }


def report(scored: list[Scored]) -> Report:
    all_reasons = [reason for each in scored for reason in (each.skipped_because, *each.set_aside) if reason]
    reasons = {str(reason): reason for reason in all_reasons}
    skipped = [(reasons[text], n) for text, n in Counter(map(str, all_reasons)).most_common()]
    tried = [each for each in scored if each.fits_right is not None]
    points = [each.mfu_error for each in scored if each.mfu_error is not None]
    return Report(
        rows=len(scored),
        memory=summed(each.memory_error for each in scored),
        textbook=summed(each.textbook_error for each in scored),
        by_counter=_grouped(scored, lambda each: COUNTERS.get(each.row.get("mem_kind", ""), "")),
        by_source=_grouped(scored, lambda each: each.source),
        fits_right=sum(each.fits_right is True for each in tried),
        fits_tried=len(tried),
        false_fits=sum(each.false_fit for each in tried),
        rate_node=summed(each.rate_error for each in scored if not each.multi_node),
        rate_multi=summed(each.rate_error for each in scored if each.multi_node),
        mfu_within=sum(abs(point) <= MFU_POINTS for point in points),
        mfu_tried=len(points),
        skipped=tuple(skipped),
    )


def _grouped(scored: list[Scored], key: Callable[[Scored], str]) -> dict[str, Errors]:
    groups: dict[str, list[float | None]] = {}
    for each in scored:
        if each.memory_error is not None:
            groups.setdefault(key(each), []).append(each.memory_error)
    found = {name: summed(values) for name, values in sorted(groups.items())}
    return {name: errors for name, errors in found.items() if errors is not None}
