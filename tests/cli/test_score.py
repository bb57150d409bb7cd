"""`brimful runs score` on files that could be lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from brimful.cli.main import main


def test_predictions_never_replace_what_was_read_or_what_is_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "runs.csv"
    table.write_text("id,model,gpu,seq_len,micro_batch_per_gpu\nx-1,GPT-2,4070,1024,4\n")
    link = tmp_path / "link.csv"
    link.symlink_to(table)
    before = table.read_text()
    for target in (table, link, tmp_path):
        assert main(["runs", "score", str(table), "--rows", str(target)]) == 2
        assert "--rows" in capsys.readouterr().err
    assert table.read_text() == before
