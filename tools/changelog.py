"""Gather changelog.d into CHANGELOG.md for a release.

python -m tools.changelog 0.2.0 2027-01-31
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("added", "changed", "fixed", "removed")


def gather(root: Path, *, version: str, date: str) -> int:
    """Write the new section above the older ones, remove the fragments, and return how many there were."""
    fragments = sorted(
        path for path in (root / "changelog.d").glob("*.*.md") if path.stem.split(".")[-1] in KINDS
    )
    section = [f"## {version} ({date})"]
    for kind in KINDS:
        entries = [path for path in fragments if path.stem.endswith(f".{kind}")]
        if entries:
            section += ["", f"### {kind.capitalize()}", ""]
            section += ["- " + " ".join(path.read_text(encoding="utf-8").split()) for path in entries]
    changelog = root / "CHANGELOG.md"
    head, mark, older = changelog.read_text(encoding="utf-8").partition("\n## ")
    changelog.write_text(f"{head.rstrip()}\n\n" + "\n".join(section) + f"\n{mark}{older}", encoding="utf-8")
    for path in fragments:
        path.unlink()
    return len(fragments)


if __name__ == "__main__":
    print(f"{gather(ROOT, version=sys.argv[1], date=sys.argv[2])} entries gathered into CHANGELOG.md")
