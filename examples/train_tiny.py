"""A training run small enough for any laptop: a character bigram model in plain Python.

It needs nothing but Python, takes a few seconds, and prints its loss as a real run would:

    brimful submit -- python examples/train_tiny.py
"""

from __future__ import annotations

import argparse
import math
import os
import random
from itertools import pairwise

TEXT = "a full glass holds no air, a full gpu no idle hour: fill what you have before you buy more. " * 4


def softmax(row: list[float]) -> list[float]:
    top = max(row)
    weights = [math.exp(x - top) for x in row]
    total = sum(weights)
    return [w / total for w in weights]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--learning-rate", type=float, default=8.0)
    args = parser.parse_args()

    rng = random.Random(0)
    letters = sorted(set(TEXT))
    index = {letter: i for i, letter in enumerate(letters)}
    pairs = [(index[a], index[b]) for a, b in pairwise(TEXT)]
    vocab = len(letters)
    # logits[a][b]: how likely letter b is to follow letter a
    logits = [[rng.gauss(0, 0.1) for _ in range(vocab)] for _ in range(vocab)]

    job = os.environ.get("BRIMFUL_JOB", "(not under brimful)")
    print(f"job {job}: {vocab}x{vocab} parameters", flush=True)
    for step in range(args.steps + 1):
        probs = [softmax(row) for row in logits]
        loss = -sum(math.log(probs[a][b]) for a, b in pairs) / len(pairs)
        if step % 200 == 0:
            print(f"step {step:4d}  loss {loss:.4f}", flush=True)
        gradient = [[0.0] * vocab for _ in range(vocab)]
        for a, b in pairs:  # d loss / d logits[a] = p - onehot(b), averaged over the pairs
            row = gradient[a]
            for j, p in enumerate(probs[a]):
                row[j] += p
            row[b] -= 1.0
        for row, slope in zip(logits, gradient, strict=True):
            for j, g in enumerate(slope):
                row[j] -= args.learning_rate * g / len(pairs)
    print("done", flush=True)


if __name__ == "__main__":
    main()
