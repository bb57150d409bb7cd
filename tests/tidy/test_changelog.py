"""Gathering the fragments at a release."""

from __future__ import annotations

from pathlib import Path

from tools.changelog import gather


def test_fragments_become_a_section_above_the_older_ones(tmp_path: Path) -> None:
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\nAbout.\n\n## 0.1.0 (2026-12-01)\n\n### Added\n\n- first\n"
    )
    fragments = tmp_path / "changelog.d"
    fragments.mkdir()
    (fragments / "README.md").write_text("how to")
    (fragments / "faster-fit.changed.md").write_text("`fit` is\nfaster.\n")
    (fragments / "crash.fixed.md").write_text("No crash.\n")

    assert gather(tmp_path, version="0.2.0", date="2027-01-31") == 2

    assert (tmp_path / "CHANGELOG.md").read_text() == (
        "# Changelog\n\nAbout.\n\n"
        "## 0.2.0 (2027-01-31)\n\n### Changed\n\n- `fit` is faster.\n\n### Fixed\n\n- No crash.\n\n"
        "## 0.1.0 (2026-12-01)\n\n### Added\n\n- first\n"
    )
    assert [path.name for path in fragments.iterdir()] == ["README.md"]
