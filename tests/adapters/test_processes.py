"""What a process says of itself is read with care: it can say anything there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from brimful.adapters.engines import processes
from brimful.adapters.engines.local import LocalEngine
from tests.builders import a_node

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")

# Shows a mapping that it never touched as its environment: prctl(PR_SET_MM, PR_SET_MM_MAP), for which nobody
# needs a right.
SHOWS_MORE = """
import ctypes, sys
size = int(sys.argv[1])
libc = ctypes.CDLL(None)
libc.mmap.restype = libc.sbrk.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
at = libc.mmap(None, size, 1, 0x4022, -1, 0)  # to read; private, anonymous, not reserved
facts = open("/proc/self/stat").read().rpartition(")")[2].split()
of = lambda *numbers: [int(facts[number - 3]) for number in numbers]
shown = [*of(26, 27, 45, 46, 47), libc.sbrk(0), *of(28, 48, 49), at, at + size, 0, 0xFFFFFFFF << 32]
print(libc.prctl(35, 14, (ctypes.c_uint64 * 13)(*shown), 104, 0), flush=True)
sys.stdin.read()
"""


@contextmanager
def running(command: Sequence[str], env: Mapping[bytes, bytes]) -> Iterator[tuple[int, str]]:
    """Its pid, and the first line that it prints."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=env, **pipes) as process:  # type: ignore[call-overload]
        yield process.pid, process.stdout.readline().decode().strip()
        process.stdin.close()


def test_no_more_is_read_of_an_environment_than_a_program_can_be_started_with() -> None:
    size = 4 * processes.MOST_BYTES
    with running([sys.executable, "-c", SHOWS_MORE, str(size)], {}) as (pid, said):
        if said != "0":
            pytest.skip("this kernel has no PR_SET_MM_MAP")
        assert (processes.PROC / str(pid) / "environ").read_bytes() == bytes(size)
        assert processes._carried(pid) == bytes(processes.MOST_BYTES + 2)
        assert not processes.carries(pid, {"BRIMFUL_LEASE": "a.1"})


@pytest.mark.parametrize("lease", [b"\xff", b"", b"..", b"x/a.1", b"\x1b[2Ja.1", b"a" * 101])
def test_a_lease_that_can_be_none_is_not_taken_for_one(tmp_path: Path, lease: bytes) -> None:
    engine = LocalEngine(tmp_path / "leases", [a_node()])
    (tmp_path / "leases" / "a.1").mkdir()
    mark = {b"BRIMFUL_ENGINE": engine.identity.encode(), b"BRIMFUL_LEASE": lease}
    waits = ["/bin/sh", "-c", "echo; read _"]
    with running(waits, mark), running(waits, {**mark, b"BRIMFUL_LEASE": b"a.1"}) as (pid, _):
        assert processes.carries(pid, {"BRIMFUL_LEASE": "a.1", "BRIMFUL_ENGINE": engine.identity})
        assert not processes.carries(pid, {"BRIMFUL_LEASE": "a."})
        assert engine.living() == ["a.1"]
    assert os.getpid() not in processes.marked({"BRIMFUL_LEASE": "a.1"})
