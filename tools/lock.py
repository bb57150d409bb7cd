"""Write constraints.txt: the exact versions in .venv, which the tests ran with."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = """\
# The exact versions brimful was tested with; make installs under these constraints.
# To refresh, with the oldest Python we support (Debian 12 has 3.11.2, and some packages ask for more):
#   make distclean && : >constraints.txt && make test PYTHON=/usr/bin/python3.11 && make lock
# torch: the release that tests trace with. The index chooses its build, for CPUs alone or for CUDA.
"""
# The accelerator packages that torch depends on differ between machines, and so does torch's own build.
LEFT_OUT = re.compile(r"(brimful|triton|nvidia-(?!ml-py).*|cuda-.*)==", re.IGNORECASE)


def main() -> int:
    command = [sys.executable, "-m", "pip", "freeze", "--exclude-editable", "--disable-pip-version-check"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    pins = [
        line.partition("+")[0] if line.startswith("torch==") else line
        for line in lines
        if re.fullmatch(r"[A-Za-z0-9._-]+==\S+", line) and not LEFT_OUT.match(line)
    ]
    (ROOT / "constraints.txt").write_text(HEADER + "\n".join(pins) + "\n", encoding="utf-8")
    print(f"constraints.txt: {len(pins)} versions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
