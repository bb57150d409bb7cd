from pathlib import Path

import pytest

from brimful.configs.nanogpt import read_nanogpt
from brimful.configs.reading import Reading, change_text
from brimful.errors import BadInput, NotFound
from brimful.language import say
from tests.builders import refuses

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "nanogpt" / "train_fineweb.py"

PLAIN = "out_dir = 'out'\n"  # train.py, with every default


def read(tmp_path: Path, text: str | bytes, *overrides: str) -> Reading:
    file = tmp_path / "config.py"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_nanogpt(file, overrides)


def refusal(tmp_path: Path, text: str | bytes, *overrides: str) -> BadInput:
    with pytest.raises(BadInput) as refused:
        read(tmp_path, text, *overrides)
    assert refused.value.hint
    assert len(refused.value.problem) < 400
    return refused.value


def test_the_example_is_the_run_of_the_forum_post() -> None:
    reading = read_nanogpt(EXAMPLE)

    assert (reading.model.layers, reading.model.heads, reading.model.width) == (12, 12, 576)
    assert (reading.training.batch_size, reading.training.accumulation) == (16, 32)
    assert reading.training.compiled
    assert reading.training.dtype == "bfloat16"
    assert reading.warnings == ()


def test_a_config_without_a_size_is_train_py_and_every_default_is_listed(tmp_path: Path) -> None:
    reading = read(tmp_path, PLAIN)

    assert (reading.model.layers, reading.model.heads, reading.model.width) == (12, 12, 768)
    assert (reading.model.vocab, reading.model.positions) == (50304, 1024)
    assert (reading.training.batch_size, reading.training.accumulation) == (12, 40)
    assumed = {assumption.name: assumption.value for assumption in reading.assumed}
    assert assumed["gradient_accumulation_steps"] == 40
    assert {"n_layer", "batch_size", "dtype", "compile", "vocab_size", "attention", "optimizer"} <= set(
        assumed
    )


def test_arithmetic_on_numbers_and_earlier_names_is_worked_out(tmp_path: Path) -> None:
    reading = read(
        tmp_path,
        "gpus: int = 8\ngradient_accumulation_steps = 5 * gpus\nn_embd = 2**9 + 64\nbatch_size = 33 // 2\n",
    )

    assert reading.training.accumulation == 40
    assert reading.model.width == 576
    assert reading.training.batch_size == 16


def test_a_later_line_wins_and_may_build_on_the_earlier_one(tmp_path: Path) -> None:
    assert read(tmp_path, "batch_size = 4\nbatch_size *= 2\n").training.batch_size == 8


def test_unknown_keys_are_kept_and_reported(tmp_path: Path) -> None:
    reading = read(tmp_path, "batch_size = 4\nsparkle = 7\nlearning_rate = 6e-4\n")

    assert reading.warnings == (say("configs.not_known_to_nanogpt", names="sparkle"),)


def test_a_label_made_by_a_call_is_not_needed_and_not_made(tmp_path: Path) -> None:
    reading = read(tmp_path, "import time\nwandb_run_name = 'ft-' + str(time.time())\nbatch_size = 4\n")

    assert reading.training.batch_size == 4


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("print(1)", "call"),
        ("batch_size + 1", "binop"),
        ("while True: pass", "while"),
        ("class GPT: pass", "class"),
        ("try: pass\nfinally: pass", "try"),
    ],
)
def test_a_line_that_only_python_could_run_is_refused_by_its_kind(
    tmp_path: Path, line: str, kind: str
) -> None:
    with refuses(BadInput, "configs.statement_refused", 2, kind):
        read(tmp_path, f"batch_size = 4\n{line}\n")


def test_a_checkpoint_overrules_the_sizes_in_the_file(tmp_path: Path) -> None:
    reading = read(tmp_path, "init_from = 'gpt2-xl'\nn_layer = 3\nblock_size = 2048\n")

    assert (reading.model.layers, reading.model.width, reading.model.vocab) == (48, 1600, 50257)
    assert reading.model.bias
    assert reading.training.sequence_tokens == 1024


def test_set_overrules_a_line_and_takes_words_without_quotes(tmp_path: Path) -> None:
    reading = read(
        tmp_path, "batch_size = 4\ndtype = 'bfloat16'\n", "batch_size=2*3", "dtype=float16", "compile=False"
    )

    assert reading.training.batch_size == 6
    assert reading.training.dtype == "float16"
    assert not reading.training.compiled


@pytest.mark.parametrize(
    "text",
    [
        'notes = """\nbatch_size = 64\n"""\n',
        '"""\nbatch_size = 64\n"""\n',
        "later = dict(batch_size=64)\n",
        'later = {"batch_size": 64}\n',
        "x = [batch_size for batch_size in (64,)]\n",
        "x = lambda batch_size=64: batch_size\n",
    ],
)
def test_a_name_inside_a_text_or_a_value_sets_nothing(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, f"batch_size = 4\n{text}").training.batch_size == 4


@pytest.mark.parametrize(
    "words", ["batch_size", "=3", "batchsize=3", "batch_size=", "batch_size=-1", "dtype=int8"]
)
def test_a_wrong_override_is_one_clear_error(tmp_path: Path, words: str) -> None:
    refusal(tmp_path, PLAIN, words)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x = 1\n__import__('os').system('touch PWNED')\n", 2),
        ("x = __import__('os').system('touch PWNED')\n", 1),
        ("n_layer = __import__('os').system('touch PWNED')\n", 1),
        ("y = eval('1')\n", 1),
        ("exec('import os')\n", 1),
        ("n_layer = open('PWNED', 'w')\n", 1),
        ("n_layer = [1 for _ in iter(int, 1)]\n", 1),
        ("n_layer = (lambda: 3)()\n", 1),
        ("\n\nwhile True:\n    pass\n", 3),
        ("for i in range(10**9):\n    pass\n", 1),
        ("def f():\n    pass\n", 1),
        ("x = 1\nclass Later:\n    batch_size = 64\n", 2),
        ("def later():\n    batch_size = 64\n", 1),
        ("if False:\n    batch_size = 64\n", 1),
        ("later.batch_size = 64\n", 1),
        ("x = batch_size = 64\n", 1),
        ("x = (batch_size := 64)\n", 1),
        ("import os\nos.remove('x')\n", 2),
        ("n_layer = 9**9**9\n", 1),
        ("n_layer = 10**30\n", 1),
        ("n_layer = -3\n", 1),
        ("n_layer = 0\n", 1),
        ("n_layer = True\n", 1),
        ("n_layer = 'twelve'\n", 1),
        ("n_layer = None\n", 1),
        ("n_layer = 12.0\n", 1),
        ("n_layer = 12 / 0\n", 1),
        ("n_layer = (1, 2)\n", 1),
        ("dropout = float('nan')\n", 1),
        ("dropout = 1e999 - 1e999\n", 1),
        ("dropout = 1.5\n", 1),
        ("dropout = (-1) ** 0.5\n", 1),
        ("batch_size = 10**19\n", 1),
        ("block_size = 1 << 40\n", 1),
        ("compile = 'yes'\n", 1),
        ("dtype = 'int8'\n", 1),
        ("dtype = ['bfloat16']\n", 1),
        ("init_from = 'gpt2-enormous'\n", 1),
        ("init_from = 3\n", 1),
        ("batch_size = 16 +\n", 1),
        ("batch_size = undefined_name\n", 1),
        ("batch_size = '" + "9" * 5000 + "'\n", 1),
    ],
)
def test_what_is_no_config_is_refused_with_its_line_and_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, line: int
) -> None:
    monkeypatch.chdir(tmp_path)

    assert f"line {line}" in refusal(tmp_path, text).problem
    assert [file.name for file in tmp_path.iterdir()] == ["config.py"]


@pytest.mark.parametrize(
    "body",
    [
        b"(" * 100_000,
        b"x = " + b"[" * 5_000 + b"]" * 5_000,
        b"n_layer = " + b"-" * 200_000 + b"1\n",
        b"n_layer = " + b"1+" * 100_000 + b"1\n",
        b"n_layer = " + b"9" * 100_000 + b"\n",
        b"x = 'a'\n" + b"x = x + x\n" * 200 + b"n_layer = x\n",
        b"\x7fELF\x00\x01\x02",
        b"batch_size = 4\n# caf\xe9\n",
        b"\xff\xfe\x00",
    ],
)
def test_a_file_made_to_hurt_is_refused_quickly(tmp_path: Path, body: bytes) -> None:
    refusal(tmp_path, body)


@pytest.mark.parametrize("text", ["", "42\n", "# nothing\n", '"""Only words."""\npass\n', "import os\n"])
@pytest.mark.parametrize("overrides", [(), ("batch_size=4",)])
def test_a_file_that_sets_nothing_is_no_config(tmp_path: Path, text: str, overrides: tuple[str, ...]) -> None:
    """A download that failed is not train.py with every default."""
    assert refusal(tmp_path, text, *overrides).said.as_dict()["code"] == "configs.sets_nothing"


def test_a_missing_file_a_folder_and_a_device_are_told_apart(tmp_path: Path) -> None:
    with refuses(NotFound, "configs.no_file"):
        read_nanogpt(tmp_path / "absent.py")
    with refuses(BadInput, "configs.path_is"):
        read_nanogpt(tmp_path)
    with refuses(BadInput, "configs.path_is"):
        read_nanogpt(Path("/dev/zero"))


def test_a_gigabyte_is_refused_by_its_size_alone(tmp_path: Path) -> None:
    file = tmp_path / "data.py"
    with file.open("wb") as sparse:
        sparse.truncate(1024**3)

    with refuses(BadInput, "configs.file_too_large"):
        read_nanogpt(file)


def test_a_width_the_heads_do_not_divide_is_refused(tmp_path: Path) -> None:
    reason = refusal(tmp_path, "n_embd = 100\nn_head = 12\n").said.as_dict()
    assert reason == {"code": "configs.n_embd_not_multiple_of_n_head", "width": 100, "heads": 12}


def test_accumulation_is_divided_by_the_number_of_gpus_as_train_py_does(tmp_path: Path) -> None:
    reading = read(tmp_path, "gradient_accumulation_steps = 5 * 8\n", "gpus=8")

    assert reading.training.accumulation == 5
    assert reading.training.effective_batch == 12 * 40
    assert reading.training.sharding == "ddp"
    reason = refusal(tmp_path, PLAIN, "gpus=7").said.as_dict()
    assert (reason["code"], reason["gpus"]) == ("configs.accumulation_does_not_divide", 7)


def test_set_takes_our_own_words_beside_train_pys(tmp_path: Path) -> None:
    reading = read(tmp_path, PLAIN, "checkpointing=full", "optimizer=adam8bit", "seq_len=512", "layers=6")

    assert (reading.training.checkpointing, reading.training.optimizer) == ("full", "adam8bit")
    assert (reading.training.sequence_tokens, reading.model.positions) == (512, 512)
    assert reading.model.layers == 6


def test_a_change_is_spelled_as_the_lines_of_the_file(tmp_path: Path) -> None:
    before = read(tmp_path, "batch_size = 16\ngradient_accumulation_steps = 32\n", "gpus=4")
    after = read(
        tmp_path, "batch_size = 8\ngradient_accumulation_steps = 64\n", "gpus=4", "checkpointing=full"
    )
    change, lines_alone = before.dialect.spell(before.training, after.training)

    assert change == {
        "batch_size": (16, 8),
        "gradient_accumulation_steps": (32, 64),
        "checkpointing": ("none", "full"),
    }
    assert not lines_alone


def test_a_character_dataset_has_the_letters_of_its_text_and_not_gpt2s_vocabulary(tmp_path: Path) -> None:
    reading = read(tmp_path, "dataset = 'shakespeare_char'\nn_embd = 384\nn_head = 6\n")
    assert reading.model.vocab == 65
    assert "configs.vocab_size_from_meta" in {said.code for said in reading.warnings}
    assert read(tmp_path, "dataset = 'shakespeare_char'\nvocab_size = 100\n").model.vocab == 100


def test_a_change_in_words_names_what_was_only_where_something_was() -> None:
    assert change_text({"batch_size": (16, 8), "compile": [None, True]}) == "batch_size 16 -> 8, compile True"
