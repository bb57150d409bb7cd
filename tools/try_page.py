"""Build the page that runs brimful in the reader's browser: static files, for any web server.

    python -m tools.try_page build/docs/try
    python -m http.server --bind 127.0.0.1 --directory build/docs

Python is Pyodide (tools/pyodide.py); Jinja2, MarkupSafe and PyYAML come from .venv, where their Python files
are enough; brimful is its wheel. The form and the answer are the console's templates.
"""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

from brimful import __version__
from brimful.language import LANGUAGES, Size, choose
from brimful.server.console.fit_form import as_given, form_values
from brimful.server.console.templating import LANGUAGE_NAMES, make_templates
from tools.pyodide import unpack

ROOT = Path(__file__).resolve().parent.parent
CONSOLE = ROOT / "src" / "brimful" / "server" / "console"
LIBRARIES = ("Jinja2", "MarkupSafe", "PyYAML")
# Allows compiling WebAssembly, and scripts, styles and Python from the page's origin; nothing else.
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'"
)
# Added by the page once Python is loaded: from then on it can make no request of any kind.
CLOSED = "default-src 'none'; script-src 'wasm-unsafe-eval'"


def main() -> int:
    build(Path(sys.argv[1]))
    return 0


def build(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    unpack(folder)
    wasm = folder / "pyodide.asm.wasm"
    (folder / f"{wasm.name}.gz").write_bytes(gzip.compress(wasm.read_bytes(), 9, mtime=0))
    wasm.unlink()
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _libraries(folder / "libraries.zip")
    for source in (CONSOLE / "console.css", CONSOLE / "icon.svg", ROOT / "tools" / "try" / "try.js"):
        shutil.copy(source, folder)
    _pages(folder)


def _libraries(archive: Path) -> None:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for name in LIBRARIES:
            for file in distribution(name).files or ():
                if file.suffix == ".py" or "licenses" in file.parts:
                    packed.write(file.locate(), str(file))


def _pages(folder: Path) -> None:
    wheel = next(folder.glob("*.whl")).name
    size = sum(each.stat().st_size for each in folder.iterdir())
    pages = [(code, f"{'index' if code == 'en' else code}.html", LANGUAGE_NAMES[code]) for code in LANGUAGES]
    for code, page, _ in pages:
        choose(code)
        values = {"policy": POLICY, "closed": CLOSED, "wheel": wheel, "version": __version__, "pages": pages}
        template = make_templates(code).get_template("try.html")
        html = template.render(**values, size=Size(size), **form_values(as_given(), page=""))
        (folder / page).write_text(html, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
