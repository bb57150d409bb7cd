"""Published serving measurements beside brimful's predictions: the table of docs/explanation/inference.md."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from brimful.fit.inference import Serving, decode_seconds, infer, prefill_seconds
from brimful.specs.gpu import find_gpu
from brimful.specs.presets import find_preset
from tools.markdown import row

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "tests" / "fit" / "serving_runs.toml"
PAGE = ROOT / "docs" / "explanation" / "inference.md"
UNITS = {
    "decode": "tokens/s",
    "throughput": "tokens/s",
    "prefill": "tokens/s read",
    "first_token": "ms",
    "peak": "GB",
}


@dataclass(frozen=True, slots=True)
class Compared:
    source: str
    gpu: str
    what: str
    kind: str
    measured: float
    predicted: float
    within: bool  # whether the measurement is in the predicted interval

    @property
    def error(self) -> float:
        """Positive: predicted too high."""
        return self.predicted / self.measured - 1

    @property
    def chosen_on(self) -> bool:
        """Whether the constants were chosen with this row in view."""
        return self.gpu == "a100-sxm-80gb"


def compared() -> Iterator[Compared]:
    for run in tomllib.loads(RUNS.read_text(encoding="utf-8"))["run"]:
        gpu, model = find_gpu(run["gpu"]), find_preset(run["model"]).model
        fp8 = run.get("fp8", False)
        for line in run["rows"]:
            serving = Serving(
                batch_size=line.get("batch", 1),
                prompt_tokens=line["prompt"],
                output_tokens=line.get("output", 1),
                weight_bits=line["bits"],
                cache_bits=8 if fp8 else 16,
                fp8=fp8,
            )
            answer = infer(model, serving, gpu)
            step, prefill = decode_seconds(model, serving, gpu), prefill_seconds(model, serving, gpu)
            held = sum(
                item.bytes for item in answer.items if item.code not in ("cuda_context", "other_programs")
            )
            predicted, span = {
                "decode": (1 / step, (1 / answer.decode_step_s.high, 1 / answer.decode_step_s.low)),
                "throughput": (
                    answer.tokens_per_s.likely,
                    (answer.tokens_per_s.low, answer.tokens_per_s.high),
                ),
                "prefill": (
                    serving.prompt_tokens / prefill,
                    (
                        serving.prompt_tokens / answer.prefill_s.high,
                        serving.prompt_tokens / answer.prefill_s.low,
                    ),
                ),
                "first_token": (1000 * prefill, (1000 * answer.prefill_s.low, 1000 * answer.prefill_s.high)),
                "peak": (held / 1e9, (0.85 * held / 1e9, 1.15 * held / 1e9)),
            }[line["kind"]]
            size = f"{serving.batch_size} x {serving.prompt_tokens}+{serving.output_tokens}"
            yield Compared(
                source=run["source"],
                gpu=gpu.name,
                what=f"{model.name}, {line['bits']} bits, {size}",
                kind=line["kind"],
                measured=line["measured"],
                predicted=predicted,
                within=span[0] <= line["measured"] <= span[1],
            )


def _figures(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def summary(rows: list[Compared]) -> str:
    from statistics import median

    errors = sorted(abs(one.error) for one in rows)
    inside = sum(one.within for one in rows)
    return f"median {median(errors):.0%}, worst {errors[-1]:.0%}, {inside} of {len(rows)} within the interval"


def table() -> str:
    rows = list(compared())
    lines = ["| GPU | what | measured | predicted | error | source |\n|---|---|---|---|---|---|"]
    for one in rows:
        unit = UNITS[one.kind]
        mark = "" if one.within else " (outside)"
        lines.append(
            row(
                one.gpu,
                one.what,
                f"{_figures(one.measured)} {unit}",
                _figures(one.predicted),
                f"{one.error:+.0%}{mark}",
                one.source,
            )
        )
    seen = [one for one in rows if one.chosen_on]
    unseen = [one for one in rows if not one.chosen_on]
    lines += [
        "",
        f"The constants were chosen on the A100 rows: {summary(seen)}.",
        f"Rows they were not chosen on: {summary(unseen)}.",
    ]
    return "\n".join(lines) + "\n"


def serving_page(text: str) -> str:
    """The page with its table as it should be."""
    begin, end = "<!-- serving -->\n", "<!-- end serving -->"
    head, _, rest = text.partition(begin)
    return f"{head}{begin}{table()}{end}{rest.partition(end)[2]}"


if __name__ == "__main__":
    print(table())
