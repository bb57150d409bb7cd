"""Charts in docs/images that `brimful sweep --plot` draws."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from brimful.cli.gpu.sweep_plot import picture
from brimful.configs.read import read
from brimful.fit.advice.sweep import sweep
from brimful.language import choose
from brimful.specs.gpu import find_gpu

ROOT = Path(__file__).resolve().parent.parent


def pictures() -> Iterator[tuple[Path, str]]:
    choose("en")
    reading = read(str(ROOT / "examples" / "nanogpt" / "train_gpt2.py"))
    gpu = find_gpu("rtx-4070")
    done = sweep(reading, gpu, "batch_size", range(1, 25), correction=None)
    drawn = picture(done, f"GPT-2 124M, {gpu.title}", "svg")
    yield ROOT / "docs" / "images" / "sweep-gpt2-4070.svg", drawn.decode("utf-8")
