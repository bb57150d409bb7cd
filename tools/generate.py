"""Write the parts of the documentation that are generated from the code.

    python -m tools.generate           write them
    python -m tools.generate --check   exit 1 and name the stale ones

- the pages of docs/reference that describe commands, errors, settings and the API;
- in README.md and docs/**/*.md, every block `<!-- run: COMMAND -->` … `<!-- end -->` becomes the transcript
  of that brimful command, so what a page shows is what the program prints;
- every block `<!-- watch: COLUMNS -->`: a picture of `brimful watch` (tools/watching.py);
- which scenarios run on which engine, in docs/contributing/adapters.md (tools/conformance.py);
- the table of docs/explanation/inference.md (tools/serving.py), and charts that `brimful sweep` draws;
- if the shared data folder exists, the tables of docs/explanation/accuracy.md (tools/accuracy.py).
"""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from brimful.cli.main import main as brimful
from tools.accuracy import PAGE as ACCURACY
from tools.accuracy import accuracy_page, shared_runs
from tools.conformance import PAGE as CONFORMANCE
from tools.conformance import conformance_page
from tools.reference_cli import cli_page
from tools.reference_errors import errors_page
from tools.reference_jobs import job_file_page, job_schema
from tools.reference_server import api_page, metrics_page, settings_page
from tools.serving import PAGE as SERVING
from tools.serving import serving_page
from tools.sweeps import pictures
from tools.watching import with_watch

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- run: (brimful .+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> int:
    # One width and no colour, so that every machine writes the same bytes.
    os.environ.update(COLUMNS="100", NO_COLOR="1", PYTHON_COLORS="0", LC_ALL="C.UTF-8")
    # No user's own calibration (brimful runs calibrate --write) belongs in a page.
    os.environ["XDG_CONFIG_HOME"] = str(ROOT / "build" / "no-config")
    os.chdir(ROOT)
    stale = {path: page for path, page in pages() if not path.exists() or page != path.read_text("utf-8")}
    check = "--check" in sys.argv[1:]
    for path, page in stale.items():
        if not check:
            path.write_text(page, encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {'stale, run `make generate`' if check else 'written'}")
    return 1 if check and stale else 0


def pages() -> Iterator[tuple[Path, str]]:
    """Every page with generated parts, as it should be."""
    reference = ROOT / "docs" / "reference"
    yield reference / "cli.md", cli_page()
    yield reference / "errors.md", errors_page()
    yield reference / "settings.md", settings_page()
    yield reference / "api.md", api_page()
    yield reference / "metrics.md", metrics_page()
    yield reference / "job-file.md", job_file_page()
    yield reference / "job.schema.json", job_schema()
    runs = shared_runs()
    if runs is not None:
        yield ACCURACY, accuracy_page(ACCURACY.read_text(encoding="utf-8"), runs)
    yield CONFORMANCE, conformance_page(CONFORMANCE.read_text(encoding="utf-8"))
    yield from pictures()
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        if path == SERVING:
            text = serving_page(text)
        text = with_watch(text)
        if BLOCK.search(text) or "<!-- watch: " in text:
            yield path, BLOCK.sub(lambda m: f"{m[1]}{transcript(m[2])}{m[3]}", text)


def transcript(command: str) -> str:
    """The command and its output, as a console block."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        brimful(shlex.split(command)[1:])
    return f"```console\n$ {command}\n{out.getvalue().rstrip()}\n```\n"


if __name__ == "__main__":
    sys.exit(main())
