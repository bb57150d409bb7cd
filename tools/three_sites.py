"""Draw the chart of docs/tutorial/three-sites.md: `python -m tools.three_sites FOLDER/journey.json`.

`python -m tests.engines.journey FOLDER` writes the file.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "tutorial" / "three-sites.svg"
COLOURS = {"hpc": "#1b6ca8", "ray": "#c2571a", "desk": "#2e7d32"}
NAMES = {"hpc": "hpc (Slurm)", "ray": "ray (Ray)", "desk": "desk (local)"}
LEFT, RIGHT, TOP, BOTTOM = 50.0, 700.0, 20.0, 250.0
GRID = "#ddd"
INK = "#444"

Curve = list[tuple[int, float]]


def curve_of(log: str) -> Curve:
    found = re.findall(r"^step (\d+) loss (\S+)$", log, re.MULTILINE)
    return [(int(step), float(loss)) for step, loss in found]


def draw(sites: list[str], parts: list[Curve], alone: Curve) -> str:
    steps, top = len(alone), max(loss for _, loss in alone) * 1.05

    def x(step: float) -> float:
        return LEFT + (RIGHT - LEFT) * step / (steps - 1)

    def y(loss: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * loss / top

    head = 'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 300" font-family="sans-serif" font-size="12"'
    out = [
        f'<svg {head} role="img" aria-label="Loss of one run over three sites">',
        '<rect width="720" height="300" fill="#fff"/>',
    ]
    for site, part in zip(sites, parts, strict=True):
        first, last, colour = part[0][0], part[-1][0], COLOURS[site]
        width = x(min(last + 1, steps - 1)) - x(first)
        out.append(
            f'<rect x="{x(first):.1f}" y="{TOP:.0f}" width="{width:.1f}" height="{BOTTOM - TOP:.0f}"'
            f' fill="{colour}" opacity="0.08"/>'
            f'<text x="{x(first) + width / 2:.0f}" y="34" text-anchor="middle" fill="{colour}">'
            f"{NAMES[site]}: steps {first}–{last}</text>"
        )
    out += [
        f'<line x1="{LEFT:.0f}" x2="{RIGHT:.0f}" y1="{y(loss):.1f}" y2="{y(loss):.1f}" stroke="{GRID}"/>'
        f'<text x="42" y="{y(loss) + 4:.1f}" text-anchor="end" fill="{INK}">{loss}</text>'
        for loss in range(int(top) + 1)
    ]
    for step in range(0, steps + 1, steps // 4):
        at = x(min(step, steps - 1))
        out.append(f'<text x="{at:.0f}" y="268" text-anchor="middle" fill="{INK}">{step}</text>')
    points = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in alone)
    out.append(f'<polyline points="{points}" fill="none" stroke="#999" stroke-width="1.5"/>')
    for site, part in zip(sites, parts, strict=True):
        out += [
            f'<circle cx="{x(step):.1f}" cy="{y(loss):.1f}" r="2.2" fill="{COLOURS[site]}"/>'
            for step, loss in part
            if step % 3 == 0
        ]
    out.append(f'<text x="375" y="288" text-anchor="middle" fill="{INK}">step; loss upwards</text></svg>')
    return "\n".join(out) + "\n"


def main(path: Path) -> None:
    found = json.loads(path.read_text())
    sites = [lease["site"] for lease in found["job"]["leases"]]
    PICTURE.write_text(draw(sites, [curve_of(log) for log in found["logs"]], curve_of(found["alone"])))
    print(f"wrote {PICTURE}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
