"""The simulated caching allocator: events per second, and a sweep of 1,000 settings over a GPT-2 step."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import product

from bench.document import markdown
from bench.measure import ROOT, Benchmark, Subject, body
from brimful.allocator import FREE, MALLOC, Request, Settings, run
from brimful.allocator.compare import compare
from brimful.allocator.snapshot import read_snapshot
from brimful.units import GIB, MIB

TITLE = "Caching allocator"
EVENTS_PER_S = 200_000  # promised, per CPU second of one core
SWEEP_S = 60.0  # promised for a thousand settings
CAPACITY = 80 * GIB
TABLES = ("allocator",)
SETTINGS = ("", "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:8")
RECORDING = ROOT.parent / "shared" / "data" / "snapshots" / "wedsonlin__medium_1024_training.json.gz"


def benchmarks() -> Iterator[Benchmark]:
    requests = random_mix(100_000)
    for conf in SETTINGS:
        yield Benchmark(
            name=f"{len(requests):,} events of a random mix, up to 2,000 live, {conf or 'default settings'}",
            subject=_run(requests, conf),
            peer_name=f"promise of {EVENTS_PER_S:,}/s",
            peer=lambda: len(requests) / EVENTS_PER_S,
            bar=1,
        )
    if RECORDING.exists():
        snapshot = read_snapshot(RECORDING)
        events = len(snapshot.traces[0])
        yield Benchmark(
            name=f"replay and compare a recording of {events:,} events",
            subject=body(lambda: compare(snapshot, 0)),
            peer_name="one million events a minute",
            peer=lambda: events * 60e-6,
        )
    step, tried = gpt2_step(), thousand_settings()
    yield Benchmark(
        name=f"{len(tried):,} settings over a GPT-2 step of {len(step):,} events",
        subject=body(lambda: sweep(step, tried)),
        peer_name="promise",
        peer=lambda: SWEEP_S,
        bar=1,
    )


def tables() -> dict[str, str]:
    """For docs/explanation/allocator.md."""
    requests = random_mix(100_000)
    rows = []
    for conf in SETTINGS:
        seconds = min(_run(requests, conf)() for _ in range(3))
        rows.append([f"`{conf}`" if conf else "default", f"{len(requests) / seconds:,.0f}"])
    return {"allocator": markdown(["Settings", "Events a second"], rows)}


def _run(requests: Sequence[Request], conf: str) -> Subject:
    settings = Settings.parse(conf)
    return body(lambda: run(requests, settings, CAPACITY))


def sweep(requests: Sequence[Request], tried: Sequence[Settings]) -> int:
    """The least that any setting reserves."""
    return min(run(requests, settings, CAPACITY).peak_reserved_bytes for settings in tried)


def random_mix(events: int) -> list[Request]:
    """Small, shared and large requests, up to 2,000 of them live."""
    choose = random.Random(1)
    requests: list[Request] = []
    live: list[int] = []
    for key in range(events):
        if live and (len(live) >= 2000 or choose.random() < 0.48):
            requests.append(Request(FREE, live.pop(choose.randrange(len(live)))))
        else:
            nbytes = choose.choice((choose.randrange(1, MIB), choose.randrange(1, 16 * MIB), 4096, 4 * MIB))
            requests.append(Request(MALLOC, key, nbytes))
            live.append(key)
    return requests


class _Tape:
    """Requests in program order."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def take(self, nbytes: int) -> int:
        self.requests.append(Request(MALLOC, len(self.requests), nbytes))
        return self.requests[-1].key

    def drop(self, *keys: int) -> None:
        self.requests += [Request(FREE, key) for key in keys]


def gpt2_step(*, batch: int = 12, length: int = 1024, width: int = 768, layers: int = 12) -> list[Request]:
    """A training step in the shape of GPT-2 124M, about 1,900 events: weights, forward, backward, update.

    The sizes are those of the tensors in bf16; which ones are kept for backward follows a plain block.
    """
    tape = _Tape()
    tokens, vocabulary = batch * length, 50_304
    shapes = (3 * width * width, width * width, 4 * width * width, 4 * width * width, width, width)
    weights = [n * 4 for _ in range(layers) for n in shapes] + [vocabulary * width * 4, length * width * 4]
    for _ in range(3):  # weights, two moments
        for nbytes in weights:
            tape.take(nbytes)
    saved: list[list[int]] = []
    act = tokens * width * 2
    for _ in range(layers):
        kept = []
        for cast, out in ((3, 3), (1, 1), (4, 4), (4, 1)):  # qkv, projection, up, down
            weight = tape.take(cast * width * width * 2)
            statistics = tape.take(tokens * 4)
            kept += [tape.take(act * out), tape.take(act)]
            tape.drop(tape.take(act))
            tape.drop(tape.take(act), tape.take(tokens * 4))  # temporary norm and residual
            tape.drop(statistics)
            kept.append(weight)
        saved.append(kept)
    logits = [tape.take(tokens * vocabulary * n) for n in (2, 2, 4)]
    gradient = tape.take(tokens * vocabulary * 4)
    tape.drop(*logits[1:])
    gradients = []
    for kept in reversed(saved):
        for i, key in enumerate(reversed(kept)):
            passing = tape.take(act * (4 if i in (1, 4) else 1))
            workspace = tape.take(8_519_680 if i % 3 == 0 else 32 * 1024)
            tape.drop(workspace, passing, key)
        gradients += [tape.take(n * 4) for n in shapes]
    tape.drop(gradient, logits[0])
    for key in gradients:
        tape.drop(tape.take(4))  # the step's own scalars
        tape.drop(tape.take(512), key)
    return tape.requests


def thousand_settings() -> list[Settings]:
    splits = ("", *(f"max_split_size_mb:{mib}" for mib in (64, 96, 128, 192, 256, 384, 512, 1024, 2048)))
    divisions = ("", *(f"roundup_power2_divisions:{n}" for n in (2, 4, 8, 16)))
    segments = ("", *(f"large_segment_size_mb:{mib}" for mib in range(22, 60, 4)))[:10]
    growing = ("", "expandable_segments:True")
    parts = product(growing, splits, divisions, segments)
    return [Settings.parse(",".join(part for part in four if part)) for four in parts]
