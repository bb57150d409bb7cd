"""The picture of a run: its layers add up, no peak is lost, and the libraries are asked for politely."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from brimful.allocator import FREE, MALLOC, Request
from brimful.allocator.replay import replay
from brimful.allocator.timeline import (
    LAYERS,
    OTHERS,
    POINTS,
    UNNAMED,
    Timeline,
    stack,
    timeline,
    write_html,
    write_png,
)
from brimful.errors import WorldFailed
from brimful.units import MIB
from tests.allocator.recording import Recording
from tests.builders import refuses


def test_layers_add_up_to_what_is_live_and_keep_every_peak() -> None:
    """A spike of one request among 5,000 is still in the picture."""
    requests = [Request(MALLOC, i, 10, label="weights") for i in range(2500)]
    requests += [Request(MALLOC, 9999, 1000, label="spike"), Request(FREE, 9999)]
    requests += [Request(FREE, i) for i in range(2500)]
    x, layers = stack(requests)
    assert len(x) == POINTS
    totals = [sum(values) for values in zip(*(values for _, values in layers), strict=True)]
    assert max(totals) == 2500 * 10 + 1000
    assert dict(layers).keys() == {"weights", "spike"}


def test_many_labels_become_the_largest_and_the_rest() -> None:
    requests = [Request(MALLOC, i, 1 + i, label=f"op{i}" if i else "") for i in range(30)]
    _, layers = stack(requests)
    assert {name for name, _ in layers} == {*(f"op{i}" for i in range(29, 29 - LAYERS, -1)), OTHERS}
    assert layers[-1][0] == OTHERS
    assert sum(values[-1] for _, values in layers) == sum(range(1, 31))
    assert stack([Request(MALLOC, 1, 5)])[1] == ((UNNAMED, (5,)),)
    assert stack([]) == ((), ())


def test_what_is_always_there_lies_below_what_comes_and_goes() -> None:
    requests = [Request(MALLOC, 0, 5, label="weights")]
    for key in range(1, 50):
        requests += [Request(MALLOC, key, 500, label="activations"), Request(FREE, key)]
    assert [name for name, _ in stack(requests)[1]] == ["weights", "activations"]


def a_timeline(tmp_path: Path) -> Timeline:
    made = Recording()
    kept = [made.malloc(n * MIB) for n in (20, 30, 40)]
    made.free(kept[1])
    made.malloc(64 * MIB)
    path = tmp_path / "run of $x_1$ <b>.pickle"
    path.write_bytes(pickle.dumps(made.snapshot()))
    return timeline(replay(path, capacity_bytes=100 * MIB))


def test_the_capacity_and_the_point_where_it_runs_out_are_drawn(tmp_path: Path) -> None:
    drawn = a_timeline(tmp_path)
    assert (drawn.capacity_bytes, drawn.failed_at) == (100 * MIB, 4)
    assert "64 MiB" in drawn.failure
    write_html(drawn, tmp_path / "timeline.html")
    page = (tmp_path / "timeline.html").read_text(encoding="utf-8")
    assert "capacity 100 MiB" in page
    assert "runs out" in page
    assert "&lt;b&gt;" in page
    assert "<b>.pickle" not in page
    assert (
        "src=" not in page.replace("src=t", "").split("</script>", 1)[1]
    )  # nothing is loaded from elsewhere


def test_a_png_is_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_png(a_timeline(tmp_path), tmp_path / "timeline.png")
    data = (tmp_path / "timeline.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) > 10_000
    assert [path.name for path in tmp_path.glob(".timeline*")] == []


@pytest.mark.parametrize(
    ("module", "write", "said"),
    [
        ("plotly.graph_objects", write_html, r"brimful\[report\]"),
        ("matplotlib.figure", write_png, r"brimful\[plot\]"),
    ],
)
def test_a_missing_library_is_named_with_the_way_to_get_it(
    module: str, write: object, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import re

    monkeypatch.setitem(sys.modules, module, None)
    assert callable(write)
    with pytest.raises(WorldFailed) as caught:
        write(a_timeline(tmp_path), tmp_path / "out")
    assert caught.value.code == "not_installed"
    assert re.search(said, caught.value.hint)


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with refuses(WorldFailed, "language.cannot_write", {"code": "language.os_enoent"}):
        write_html(a_timeline(tmp_path), tmp_path / "no" / "such" / "folder.html")
