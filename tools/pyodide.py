"""Python for browsers, from npm: fetched once into .venv, never committed.

python -m tools.pyodide    fetch it, unless it exists
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSION = "0.29.5"  # Python 3.13; the next one is Python 3.14 and a megabyte larger
INTEGRITY = "TkYrUv9m8QmfImADKRmpwZulL48E0uUaBSO+dvRQKyAJc0qh9gu7jn8btyHPh3NZm1r2IH2YrJhIr7Q2B9urAw=="
PACKED = Path(sys.prefix) / f"pyodide-{VERSION}.tgz"
NEEDED = ("pyodide.mjs", "pyodide.asm.js", "pyodide.asm.wasm", "python_stdlib.zip")


def fetch() -> Path:
    """The npm package, checked against the hash above, whichever server sent it."""
    if PACKED.exists():
        return PACKED
    npm = shutil.which("npm")
    if npm is None:
        raise SystemExit("the page that runs in the browser needs npm to fetch Pyodide")
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", f"pyodide@{VERSION}", "--silent", "--pack-destination", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"npm could not fetch pyodide@{VERSION}: {done.stderr.strip()[-500:]}")
        found = next(Path(folder).glob("*.tgz"))
        got = base64.b64encode(hashlib.sha512(found.read_bytes()).digest()).decode()
        if got != INTEGRITY:
            raise SystemExit(f"pyodide@{VERSION} has sha512 {got}, not {INTEGRITY}")
        shutil.move(found, PACKED)
    return PACKED


def unpack(folder: Path) -> None:
    """The files that a browser loads. Without the list of downloadable packages: none is downloaded."""
    with tarfile.open(fetch()) as archive:
        for name in NEEDED:
            file = archive.extractfile(f"package/{name}")
            assert file is not None
            (folder / name).write_bytes(file.read())
        file = archive.extractfile("package/pyodide-lock.json")
        assert file is not None
        lock = json.load(file)
    (folder / "pyodide-lock.json").write_text(json.dumps({**lock, "packages": {}}), encoding="utf-8")


if __name__ == "__main__":
    fetch()
