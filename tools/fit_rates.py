"""Refit the constants of `brimful.fit.roofline.Rates`, and report how they do on runs they have not seen.

    python -m tools.fit_rates                fit to all runs: prints the constants and the error (1 min)
    python -m tools.fit_rates --cross        cross-validate by family and by source (10 min)
    python -m tools.fit_rates --cross --write   also write the result to docs/explanation/accuracy.md

Reads both tables of published runs in the shared data folder. Nothing else is written: new constants are a
manual change of roofline.py, with the table before and after in the commit. Constants are fitted to both
tables; the errors written are those of the first, the second's are printed below them.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict

from brimful.accuracy.runs import read_rows
from brimful.fit.roofline import RATES, Rates
from tools.accuracy import CROSS, PAGE, cross_table, put, shared_runs, stamped
from tools.refit import (
    EVALUATIONS,
    SEED,
    Timed,
    at_limit,
    cross_validated,
    loss,
    ratio,
    search,
    timed_runs,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--evaluations", type=int, default=EVALUATIONS)
    parser.add_argument("--cross", action="store_true", help="cross-validate instead of fitting to all")
    parser.add_argument("--write", action="store_true", help="with --cross: put the result into the page")
    options = parser.parse_args()
    folder = shared_runs()
    if folder is None:
        print("the shared data folder is not here: name it in BRIMFUL_SHARED_DATA", file=sys.stderr)
        return 3
    first, second = (
        timed_runs(
            read_rows(folder / f"training_runs{table}.csv"),
            {row["id"]: row for row in read_rows(folder / f"quality{table}.csv", needed=("id",))},
        )
        for table in ("", "_2")
    )
    runs = first + second

    def fit(some: Sequence[Timed]) -> Rates:
        return search(some, random.Random(options.seed), evaluations=options.evaluations)

    if not options.cross:
        show("as they are", runs, RATES)
        show("fitted again", runs, fit(runs))
        return 0
    kinds = {
        "fitted to the same runs": {each.id: ratio(each, RATES) for each in runs},
        "left out by family": cross_validated(runs, lambda each: each.family, fit),
        "left out by source": cross_validated(runs, lambda each: each.source, fit),
    }
    table = cross_table(first, kinds)
    print(table, cross_table(second, kinds), sep="\n\n")
    if options.write:
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(put(text, CROSS, stamped(table, first)), encoding="utf-8")
        print(f"written: {PAGE.name}")
    return 0


def show(name: str, runs: Sequence[Timed], rates: Rates) -> None:
    print(f"{name}: mean |log ratio| {loss(runs, rates):.4f}")
    limits = at_limit(rates)
    for field, value in asdict(rates).items():
        print(f"    {field:20} {value:.4g}{'   at the limit of what is sensible' if field in limits else ''}")


if __name__ == "__main__":
    sys.exit(main())
