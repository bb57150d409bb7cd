import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.configs.nanogpt import read_nanogpt
from brimful.errors import Refused, WorldFailed
from brimful.fit.advice.patch import patch_text, write_patched
from tests.builders import refuses

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "nanogpt" / "train_fineweb.py"


def test_only_the_lines_that_change_change() -> None:
    before = EXAMPLE.read_text()
    after = patch_text(before, {"batch_size": 8, "gradient_accumulation_steps": 64}, suffix=".py")

    pairs = zip(before.splitlines(), after.splitlines(), strict=True)
    assert [(a, b) for a, b in pairs if a != b] == [
        ("batch_size = 16", "batch_size = 8"),
        ("gradient_accumulation_steps = 32", "gradient_accumulation_steps = 64"),
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("batch_size = 16  # per GPU\n", "batch_size = 8  # per GPU\n"),
        ("batch_size: int = 4 * 4\n", "batch_size: int = 8\n"),
        ("batch_size = 1\nx = 2\nbatch_size = 16\n", "batch_size = 1\nx = 2\nbatch_size = 8\n"),
        ("batch_size = 4\nbatch_size *= 4", "batch_size = 4\nbatch_size *= 4\nbatch_size = 8\n"),
        ("n_layer = 3\n", "n_layer = 3\nbatch_size = 8\n"),
        ("", "\nbatch_size = 8\n"),
        ("batch_size = (\n    16  # many\n)  # end\n", "batch_size = (\n    8  # many\n)  # end\n"),
        ("é = 'ü'; batch_size = 16 # ü\n", "é = 'ü'; batch_size = 8 # ü\n"),
        ("batch_size = 16\r\nx = 1\r\n", "batch_size = 8\r\nx = 1\r\n"),
    ],
)
def test_a_python_line_is_changed_in_place_or_overruled_at_the_end(before: str, after: str) -> None:
    assert patch_text(before, {"batch_size": 8}, suffix=".py") == after


def test_words_keep_the_quotes_their_author_uses() -> None:
    assert patch_text("dtype = 'bfloat16'\n", {"dtype": "float16"}, suffix=".py") == "dtype = 'float16'\n"
    assert patch_text('dtype = "bfloat16"\n', {"dtype": "float16"}, suffix=".py") == 'dtype = "float16"\n'
    assert patch_text("compile = True\n", {"compile": False}, suffix=".py") == "compile = False\n"


def test_a_patched_file_reads_as_the_change(tmp_path: Path) -> None:
    file = tmp_path / "config.py"
    lines = {"batch_size": 4, "gradient_accumulation_steps": 128, "compile": False, "dtype": "float16"}
    file.write_text(patch_text(EXAMPLE.read_text(), lines, suffix=".py"))
    training = read_nanogpt(file).training

    assert (training.batch_size, training.accumulation) == (4, 128)
    assert (training.compiled, training.dtype) == (False, "float16")


def test_json_keeps_its_layout_and_takes_new_lines_at_the_end() -> None:
    before = '{\n    "per_device_train_batch_size": 16,   "note": "a, \\"b\\": 3",\n    "bf16": true\n}\n'
    lines = {"per_device_train_batch_size": 8, "gradient_checkpointing": True}
    after = patch_text(before, lines, suffix=".json")

    assert after == (
        '{\n    "per_device_train_batch_size": 8,   "note": "a, \\"b\\": 3",\n    "bf16": true,\n'
        '    "gradient_checkpointing": true\n}\n'
    )
    assert json.loads(after)["note"] == 'a, "b": 3'


@pytest.mark.parametrize("before", ["{}", "{\n}\n", '{"a": {"bf16": true}}', '{"x":1,"y":[1,{"bf16":2}]}'])
def test_json_of_any_shape_stays_json(before: str) -> None:
    after = json.loads(patch_text(before, {"bf16": False}, suffix=".json"))

    assert after == {**json.loads(before), "bf16": False}


def test_yaml_keeps_comments_and_its_own_words() -> None:
    before = "# recipe\nmicro_batch_size: 16   # per GPU\nlora_r: 8\nlist:\n  - bf16: x\n"
    after = patch_text(before, {"per_device_train_batch_size": 8, "bf16": True}, suffix=".yaml")

    assert after == "# recipe\nmicro_batch_size: 8   # per GPU\nlora_r: 8\nlist:\n  - bf16: x\nbf16: true\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("notes: |\n  bf16: false\n", "notes: |\n  bf16: false\nbf16: true\n"),
        ('notes: "\nbf16: false\n"\n', 'notes: "\nbf16: false\n"\nbf16: true\n'),
        ("later:\n  bf16: false\n", "later:\n  bf16: false\nbf16: true\n"),
        ("bf16:   no   # for now\nx: 1\n", "bf16: true   # for now\nx: 1\n"),
        ("'bf16' : no\n", "'bf16' : true\n"),
        ("bf16:\nx: 1\n", "bf16: true\nx: 1\n"),
        ("bf16:  # open\nx: 1\n", "bf16: true  # open\nx: 1\n"),
        ("bf16:\n  - a\n  -\nx: 1\n", "bf16: true\nx: 1\n"),
        ("bf16:\n  a: 1  # one\n# two\nx: 1\n", "bf16: true  # one\n# two\nx: 1\n"),
        ("bf16: >\n  text\n\nx: 1\n", "bf16: true\n\nx: 1\n"),
        ("x: 1\r\n", "x: 1\r\nbf16: true\r\n"),
        ("bf16: no\r\nx: 1\r\n", "bf16: true\r\nx: 1\r\n"),
        ("---\nx: 1\n...\n", "---\nx: 1\nbf16: true\n...\n"),
        ("  x: 1\n  y: 2\n", "  x: 1\n  y: 2\n  bf16: true\n"),
        ("{x: 1,  # one\n}", "{x: 1, bf16: true,  # one\n}"),
        ("{}", "{bf16: true}"),
        ("# nothing\n", "# nothing\nbf16: true\n"),
    ],
)
def test_yaml_of_any_shape_is_changed_where_its_own_key_is(before: str, after: str) -> None:
    assert patch_text(before, {"bf16": True}, suffix=".yaml") == after


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["bf16", "optim", "a b", "on", "'", "notes", "é"]),
        st.recursive(
            st.one_of(st.integers(), st.booleans(), st.none(), st.text(max_size=30)),
            lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner)),
            max_leaves=4,
        ),
        max_size=5,
    ),
    st.sampled_from([None, False, True]),
    st.sampled_from([2, 4]),
)
def test_any_yaml_mapping_keeps_everything_else(
    before: dict[str, object], flow: bool | None, indent: int
) -> None:
    text = yaml.safe_dump(before, default_flow_style=flow, indent=indent)
    after = patch_text(text, {"bf16": True, "optim": "sgd"}, suffix=".yaml")

    assert yaml.safe_load(after) == {**before, "bf16": True, "optim": "sgd"}


def test_writing_leaves_the_old_file_beside_the_new_one(tmp_path: Path) -> None:
    file = tmp_path / "config.py"
    file.write_text("batch_size = 16\n")
    file.chmod(0o640)

    first, second = write_patched(file, "batch_size = 8\n"), write_patched(file, "batch_size = 4\n")

    assert file.read_text() == "batch_size = 4\n"
    assert (first.name, first.read_text()) == ("config.py.bak", "batch_size = 16\n")
    assert (second.name, second.read_text()) == ("config.py.bak2", "batch_size = 8\n")
    assert file.stat().st_mode & 0o777 == 0o640
    assert len(list(tmp_path.iterdir())) == 3


def test_a_backup_is_not_written_through_a_link(tmp_path: Path) -> None:
    file, elsewhere = tmp_path / "config.py", tmp_path / "elsewhere"
    file.write_text("batch_size = 16\n")
    (tmp_path / "config.py.bak").symlink_to(elsewhere)  # dangling: `exists()` says no

    backup = write_patched(file, "batch_size = 8\n")

    assert not elsewhere.exists()
    assert (backup.name, backup.read_text()) == ("config.py.bak2", "batch_size = 16\n")


@pytest.mark.parametrize("step", ["copystat", "read_bytes", "replace"])
def test_where_writing_fails_only_the_old_file_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    file = tmp_path / "config.py"
    file.write_text("batch_size = 16\n")

    def fails(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil if step == "copystat" else Path, step, fails)

    with refuses(WorldFailed, "fit.cannot_write"):
        write_patched(file, "batch_size = 8\n")

    assert [each.name for each in tmp_path.iterdir()] == ["config.py"]
    assert file.read_text() == "batch_size = 16\n"


def test_text_that_cannot_be_encoded_leaves_nothing_behind(tmp_path: Path) -> None:
    file = tmp_path / "config.py"
    file.write_text("batch_size = 16\n")

    with pytest.raises(UnicodeEncodeError):
        write_patched(file, "\ud800")

    assert [each.name for each in tmp_path.iterdir()] == ["config.py"]


def test_where_every_backup_name_is_taken_nothing_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brimful.fit.advice.patch._MOST_BACKUPS", 2)
    file = tmp_path / "config.py"
    for name in ("config.py", "config.py.bak", "config.py.bak2"):
        (tmp_path / name).write_text(name)

    with refuses(Refused, "fit.too_many_backups"):
        write_patched(file, "batch_size = 8\n")

    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {
        name: name for name in ("config.py", "config.py.bak", "config.py.bak2")
    }


def test_a_link_is_followed_and_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.py", tmp_path / "link.py"
    real.write_text("batch_size = 16\n")
    link.symlink_to(real)

    write_patched(link, "batch_size = 8\n")

    assert link.is_symlink()
    assert real.read_text() == "batch_size = 8\n"


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 512),
    st.integers(1, 512),
    st.booleans(),
    st.sampled_from(["bfloat16", "float16", "float32"]),
    st.sampled_from(
        [
            "",
            "batch_size = 3\n",
            "x = 1\nbatch_size = 4 * (\n  2\n)\n",
            "compile: bool = True\ndtype = 'float16'",
        ]
    ),
)
def test_any_nanogpt_file_says_after_the_patch_what_it_should(
    batch: int, steps: int, compiled: bool, dtype: str, text: str
) -> None:
    lines = {"batch_size": batch, "gradient_accumulation_steps": steps, "compile": compiled, "dtype": dtype}
    with TemporaryDirectory() as folder:
        file = Path(folder) / "config.py"
        file.write_text(patch_text(text, lines, suffix=".py"))
        training = read_nanogpt(file).training

    assert (training.batch_size, training.accumulation) == (batch, steps)
    assert (training.compiled, training.dtype) == (compiled, dtype)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=8), st.one_of(st.integers(), st.text(max_size=8), st.none()), max_size=5
    ),
    st.sampled_from([None, 1, 2, "\t"]),
)
def test_any_json_object_keeps_everything_else(before: dict[str, object], indent: int | str | None) -> None:
    after = patch_text(json.dumps(before, indent=indent), {"bf16": True, "optim": "sgd"}, suffix=".json")

    assert json.loads(after) == {**before, "bf16": True, "optim": "sgd"}
