"""One estimate in a running process: what a scheduler or a search pays for each GPU type it asks about."""

from __future__ import annotations

from collections.abc import Iterator

from bench.measure import CALIBRATION, ROOT, Benchmark, body, calibration
from brimful.predict.fit import estimate, fit
from brimful.predict.readers.nanogpt import read_nanogpt
from brimful.specs.gpu import find_gpu

TITLE = "Fit, in one process"
CONFIG = ROOT / "examples" / "nanogpt" / "train_fineweb.py"


def benchmarks() -> Iterator[Benchmark]:
    reading, gpu = read_nanogpt(CONFIG), find_gpu("rtx-4070")
    bodies = {
        "read the config": lambda: read_nanogpt(CONFIG),
        "estimate": lambda: estimate(reading.model, reading.training, gpu),
        "fit, with advice": lambda: fit(reading.model, reading.training, gpu),
    }
    for name, function in bodies.items():
        yield Benchmark(name=name, subject=body(function), peer_name=CALIBRATION, peer=calibration)
