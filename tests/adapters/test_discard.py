"""Whatever a job has left is taken away, and nothing beside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from brimful.adapters.files import discard


@pytest.mark.parametrize("depth", [0, 1, 2, 2000])
def test_a_folder_of_any_depth_goes_with_few_open_files(tmp_path: Path, depth: int) -> None:
    top = tmp_path / "top"
    top.mkdir()
    at = os.open(top, os.O_RDONLY)
    for number in range(depth):
        os.close(os.open("file", os.O_CREAT, 0o600, dir_fd=at))
        os.mkdir("beside", dir_fd=at)
        os.mkdir("d", dir_fd=at)
        inner = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
        if number == 1:
            os.mkfifo(f"/proc/self/fd/{at}/pipe")
            os.symlink(tmp_path / "other", "link", dir_fd=at)
    os.close(at)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "kept").touch()
    discard(top)
    assert not os.path.lexists(top)
    assert (tmp_path / "other" / "kept").exists()


def test_a_link_to_a_folder_goes_and_the_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to("kept")
    discard(tmp_path / "link")
    assert [each.name for each in tmp_path.iterdir()] == ["kept"]
    discard(tmp_path / "nothing")
