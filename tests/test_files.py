"""Files that are either wholly there or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from brimful.files import replacing, write_whole


def test_a_file_is_replaced_whole_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_whole(path, "old")
    write_whole(path, b"new", mode=0o600)
    assert path.read_text(encoding="utf-8") == "new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_what_breaks_off_leaves_the_old_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_whole(path, "old")
    with pytest.raises(TypeError), replacing(path) as file:
        file.writelines([b"half of it", None])  # type: ignore[list-item]
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]
