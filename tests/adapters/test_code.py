"""Packed code: what goes in, what is kept, and that nothing of an archive is believed."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.adapters import code as code_module
from brimful.adapters.code import CodeStore, leaves, unpack
from brimful.client import pack as pack_module
from brimful.client.pack import packed
from brimful.errors import BadInput, Refused
from tests.builders import refuses


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def names(folder: Path) -> list[str]:
    with packed(folder) as pack, tarfile.open(fileobj=pack.file) as tar:
        return tar.getnames()


def listed(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def code_of(folder: Path) -> str:
    with packed(folder) as pack:
        return pack.code


def test_a_folder_that_may_not_be_entered_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "theirs", a="1")
    folder.chmod(0)
    me = os.geteuid()
    try:
        if me == 0:
            tmp_path.chmod(0o755)
            os.seteuid(65534)
        with refuses(BadInput, "client.pack_unreadable", str(folder / ".brimfulignore")), packed(folder):
            pass
    finally:
        os.seteuid(me)
        folder.chmod(0o700)


def test_the_same_content_is_the_same_code_wherever_and_whenever_it_is_packed(tmp_path: Path) -> None:
    one = write(tmp_path / "one", a_dot_py="print()", sub__b="x")
    two = write(tmp_path / "two", sub__b="x", a_dot_py="print()")
    os.utime(two / "a.py", (1, 1))
    (two / "sub").chmod(0o750)
    assert code_of(one) == code_of(two)
    (two / "sub" / "b").chmod(0o755)
    assert code_of(one) != code_of(two)  # what can be run is part of it
    (two / "sub" / "b").write_text("y")
    (two / "sub" / "b").chmod(0o644)
    assert code_of(one) != code_of(two)


def test_the_size_told_is_that_of_the_files_not_of_an_archives_blocks(tmp_path: Path) -> None:
    with packed(write(tmp_path / "one", a="12345", b="6")) as pack:
        assert (pack.files, pack.files_bytes) == (2, 6)


def test_git_says_what_is_code_and_secrets_stay_here(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "repo", tracked="1", fresh="2", big="3", _dot_env="KEY=1", sub___dot_env="KEY=2"
    )
    (folder / ".gitignore").write_text("big\n")
    for words in (["init", "-q"], ["add", "tracked", ".gitignore", ".env"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    (folder / ".brimfulignore").write_text("# not needed\n/fresh\n")
    with packed(folder) as pack:
        assert pack.left_out == (".env", "fresh", "sub/.env")
    assert names(folder) == [".brimfulignore", ".gitignore", "tracked"]
    (folder / "tracked").unlink()
    assert names(folder) == [".brimfulignore", ".gitignore"]


def test_without_git_all_of_the_folder_is_code_but_what_is_left_out(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "x", a="", data__1="", data__2="", deep__data="", m_dot_bin="", __pycache____x=""
    )
    assert names(folder) == ["a", "data/1", "data/2", "deep/data", "m.bin"]
    for pattern, left in [
        ("data", ["a", "m.bin"]),
        ("data/", ["a", "deep/data", "m.bin"]),
        ("/data", ["a", "deep/data", "m.bin"]),
        ("*.bin", ["a", "data/1", "data/2", "deep/data"]),
        ("data/1", ["a", "data/2", "deep/data", "m.bin"]),
    ]:
        (folder / ".brimfulignore").write_text(pattern)
        assert names(folder)[1:] == left, pattern
    (folder / ".brimfulignore").write_text("!a")
    with refuses(BadInput, "client.pack_bad_pattern"):
        names(folder)


@pytest.mark.parametrize("target", ["/etc/passwd", "../out", "sub/../../out", "sub/../a", ".."])
def test_a_link_that_could_leave_the_folder_is_refused(tmp_path: Path, target: str) -> None:
    folder = write(tmp_path / "x", sub__a="")
    (folder / "link").symlink_to(target)
    with refuses(BadInput, "client.pack_link_leaves"):
        names(folder)


def test_a_link_inside_is_kept_and_pipes_are_no_code(tmp_path: Path) -> None:
    folder = write(tmp_path / "x", sub__a="text")
    (folder / "sub" / "up").symlink_to("../sub/a")
    os.mkfifo(folder / "pipe")
    store = CodeStore(tmp_path / "code")
    with packed(folder) as pack, store.receiving("t", pack.code) as upload:
        upload.write(pack.file.read())
    assert unpack(store.path("t", pack.code), tmp_path / "work", code=pack.code) == 2
    assert (tmp_path / "work" / "sub" / "up").read_text() == "text"
    assert listed(tmp_path / "work") == {"sub"}


def test_too_much_is_refused_with_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "x", small="1", large="1" * 2000)
    monkeypatch.setattr(pack_module, "MAX_BYTES", 1000)
    with refuses(BadInput, "client.pack_too_large") as caught:
        names(folder)
    assert "large" in caught.value.problem
    monkeypatch.setattr(pack_module, "MAX_FILES", 1)
    with refuses(BadInput, "client.pack_too_many"):
        names(folder)


def test_code_is_kept_whole_or_not_at_all_and_each_tenants_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, data = CodeStore(tmp_path), b"some archive"
    name = hashlib.sha256(data).hexdigest()
    with refuses(BadInput, "adapters.code_differs"), store.receiving("red", name) as upload:
        upload.write(data[:-1])
    assert store.size("red", name) is None
    with store.receiving("red", name) as upload:
        upload.write(data)
    assert (store.size("red", name), store.size("blue", name)) == (len(data), None)
    monkeypatch.setattr(code_module, "MAX_PACKED_BYTES", 5)
    with refuses(BadInput, "adapters.code_too_large"), store.receiving("red", "0" * 64) as upload:
        upload.write(data)
    monkeypatch.setattr(code_module, "MAX_TENANT_BYTES", 5)
    with refuses(Refused, "adapters.code_full"), store.receiving("red", "0" * 64):
        pass
    assert [path.name for path in (tmp_path / "red").iterdir()] == [f"{name}.tar"]


def archive(tmp_path: Path, *entries: tarfile.TarInfo, form: int = tarfile.GNU_FORMAT) -> tuple[Path, str]:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=form) as tar:
        for each in entries:
            tar.addfile(each, io.BytesIO(b"x" * each.size) if each.isreg() else None)
    path = tmp_path / "bad.tar"
    path.write_bytes(raw.getvalue())
    return path, hashlib.sha256(raw.getvalue()).hexdigest()


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size, made.mode = kind, link, size, 0o7777
    return made


@pytest.mark.parametrize(
    "bad",
    [
        entry("../out"),
        entry("/tmp/out"),
        entry("a/../../out"),
        entry("a//b"),
        entry("./a"),
        entry("dir", tarfile.DIRTYPE),
        entry("dev", tarfile.CHRTYPE),
        entry("block", tarfile.BLKTYPE),
        entry("pipe", tarfile.FIFOTYPE),
        entry("hard", tarfile.LNKTYPE, "a"),
        entry("link", tarfile.SYMTYPE, "../out"),
        entry("link", tarfile.SYMTYPE, "/etc"),
        entry("sub/link", tarfile.SYMTYPE, "x/../../../out"),
        entry("link", tarfile.SYMTYPE, ""),
        entry("a/" * 1900 + "deep"),
    ],
    ids=lambda each: f"{each.name[:20]} {each.linkname}",
)
def test_only_plain_files_and_links_that_stay_are_unpacked(tmp_path: Path, bad: tarfile.TarInfo) -> None:
    path, code = archive(tmp_path, entry("fine", size=3), bad)
    with pytest.raises(BadInput):
        unpack(path, tmp_path / "work", code=code)
    assert listed(tmp_path) == {"bad.tar", "work"}
    assert listed(tmp_path / "work") <= {"fine"}


def sparse(size: int) -> bytes:
    """An archive of one GNU sparse file, of which it holds a single block."""
    made = tarfile.TarInfo("holes")
    made.type, made.size = tarfile.GNUTYPE_SPARSE, 512
    head = bytearray(made.tobuf(tarfile.GNU_FORMAT))
    for at, number in ((386, 0), (398, 512), (483, size)):  # where the block is, how long, of how much
        head[at : at + 12] = b"%011o\0" % number
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + b"x" * 512 + b"\0" * 1024


def test_a_small_archive_does_not_unpack_to_more_than_may_be_packed(tmp_path: Path) -> None:
    path = tmp_path / "sparse.tar"
    for size in (1 << 20, 3 << 30):
        path.write_bytes(sparse(size))
        code = hashlib.sha256(path.read_bytes()).hexdigest()
        if size < code_module.MAX_BYTES:
            assert unpack(path, tmp_path / "work", code=code) == 1
            assert (tmp_path / "work" / "holes").stat().st_size == size, "it is the attack it is meant to be"
            continue
        with refuses(BadInput, "adapters.code_too_large_inside"):
            unpack(path, tmp_path / "work", code=code)
        assert listed(tmp_path / "work") == set()


def test_a_damaged_map_of_a_sparse_file_is_a_reason_and_no_crash(tmp_path: Path) -> None:
    sparse = entry("big")
    sparse.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"}
    path, code = archive(tmp_path, sparse, form=tarfile.PAX_FORMAT)
    with refuses(BadInput, "adapters.code_no_archive"):
        unpack(path, tmp_path / "work", code=code)


def test_many_tiny_archives_count_for_what_they_take_of_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_module, "MAX_TENANT_BYTES", 2 * code_module.LEAST_BYTES)
    store = CodeStore(tmp_path)
    for data in (b"1", b"2", b"3"):
        with store.receiving("red", hashlib.sha256(data).hexdigest()) as upload:
            upload.write(data)
    with refuses(Refused, "adapters.code_full"), store.receiving("red", "0" * 64):
        pass


def test_nothing_is_written_through_a_link_nor_over_a_file(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    through = [entry("dir", tarfile.SYMTYPE, "other"), entry("dir/file", size=1)]
    path, code = archive(tmp_path, *through)
    with pytest.raises(OSError, match="exists"):
        unpack(path, tmp_path / "work", code=code)
    path, code = archive(tmp_path, entry("a", size=1), entry("a", size=2))
    with pytest.raises(OSError, match="exists"):
        unpack(path, tmp_path / "work", code=code)


def test_no_link_is_made_below_another_link_where_it_would_lead_out(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    links = {"a/b/up": "../..", "a/b/up/leads": "../out", "a/b/up/leads/planted": "file"}
    path, code = archive(tmp_path, *(entry(name, tarfile.SYMTYPE, to) for name, to in links.items()))
    with refuses(BadInput, "adapters.code_bad_entry"):
        unpack(path, tmp_path / "work", code=code)
    assert listed(tmp_path / "out") == set()


def test_no_two_links_of_an_archive_lead_out_together(tmp_path: Path) -> None:
    names, targets = ["b", "a/b/a", "a/b/a/b"], ["..", "../..", "../a", "../../../b", "a/b"]
    for pair in itertools.permutations(names, 2):
        for first, second in itertools.product(targets, repeat=2):
            links = zip(pair, (first, second), strict=True)
            path, code = archive(tmp_path, *(entry(name, tarfile.SYMTYPE, to) for name, to in links))
            with contextlib.suppress(BadInput, OSError):
                unpack(path, tmp_path / "work", code=code)
            assert listed(tmp_path) == {"bad.tar", "work"}
            made = [each for each in (tmp_path / "work").rglob("*") if each.exists()]  # not a loop
            assert all(each.resolve().is_relative_to(tmp_path / "work") for each in made)


def test_no_mode_of_an_archive_makes_a_program_that_runs_as_somebody_else(tmp_path: Path) -> None:
    path, code = archive(tmp_path, entry("a", size=1))
    unpack(path, tmp_path / "work", code=code)
    assert (tmp_path / "work" / "a").stat().st_mode & 0o7777 == 0o700


def test_code_that_changed_on_disk_is_not_run(tmp_path: Path) -> None:
    path, code = archive(tmp_path, entry("a", size=1))
    path.write_bytes(path.read_bytes().replace(b"x", b"y"))
    with refuses(BadInput, "adapters.code_damaged"):
        unpack(path, tmp_path / "work", code=code)


@given(st.binary(max_size=3000))
def test_any_bytes_are_refused_or_unpacked_inside(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.tar"
        path.write_bytes(data)
        with contextlib.suppress(BadInput, OSError):
            unpack(path, Path(folder) / "work", code=hashlib.sha256(data).hexdigest())
        assert listed(Path(folder)) == {"x.tar", "work"}


def test_links_are_judged_by_their_worst() -> None:
    stays = [("a/b/l", "../x"), ("a/b/l", "../../x"), ("l", "x/y"), ("l", "./x"), ("a/l", "..")]
    goes = [("l", ".."), ("a/l", "../../x"), ("a/b/l", "x/../y"), ("l", "/x"), ("l", "")]
    assert not any(leaves(*each) for each in stays)
    assert all(leaves(*each) for each in goes)


@pytest.mark.parametrize("made", [("brimful.db",), ("token", "server.lock", "leases/job-1.1/log")])
@pytest.mark.parametrize("git", [False, True])
def test_a_servers_data_folder_goes_to_no_job(tmp_path: Path, made: tuple[str, ...], git: bool) -> None:
    """An operator who submits from the folder above it would hand the operator's token to the job."""
    folder = tmp_path / "srv"
    data = folder / "da*ta"
    for path in (folder / "train.py", folder / "data" / "token", *(data / name for name in made)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    if git:
        subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    assert names(folder) == ["data/token", "train.py"]  # a file called token is no secret by itself
    with refuses(BadInput, "client.pack_data_folder"):
        names(data)
