"""The catalogs hold every sentence, and numbers are written as each language writes them."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from babel.numbers import format_decimal, format_percent

from brimful.cli.main import main
from brimful.language import LANGUAGES, Number, Percent, Several, Size, Usd, language, language_of_locale, say
from brimful.language.printable import MARK, printable

ROOT = Path(__file__).resolve().parent.parent
CONFIG = str(ROOT / "examples" / "nanogpt" / "train_fineweb.py")
CATALOGS = ROOT / "src" / "brimful" / "language" / "catalogs"
TRANSLATED = tuple(code for code in LANGUAGES if code != "en")
CODE_OF_A_SENTENCE = re.compile(r"[a-z]+(?:\.[a-z0-9_]+){1,2}")  # room.code, or room.code.wording
NAMES = re.compile(r"\{(\w+)(?::\w+)?\}")
COUNTED = re.compile(r"\{\w+:(\w+)\}")
DEFAULTS = re.compile(r"%\(\w+\)\w")  # as argparse fills them in
# What people type or read in a program is written as it is there.
CODE = re.compile(
    r"torch\.cuda\.memory\.\w+\([^)]*\)|`[^`]*`|--[a-z-]+|[+*/-] % [*]+"
    r"|from brimful\S* import load_shim; load_shim"
)
# A hint that is nothing but what to type or to write into a file.
TYPED = re.compile(r"--|#|brimful[ .]|pip |export |command: |envs: |resources: |run: |\{\{|zone, gap_seconds")
QUOTED = re.compile(r"«[^»]*»|„[^“]*“|“[^”]*”|`[^`]*`|'[^']*'")
ONLY_NAMES = {
    "{change}: {effect}",
    "{file}: {change}",
    "{name} ({size}): {change}",
    "{one}; {other}",
    "Fit",
    "MFU",
    "MFU {said}",
}
# Words that are the same in the language, and what is nothing but names.
SAME = {
    "fr": {
        "Job",
        "Jobs",
        "job",
        "{n} job",
        "{n} jobs",
        "job {job}",
        "job {name}",
        "{tokens} tokens/s",
        "options",
        "budget",
        "quota",
        "site",
        "type",
        "GPU",
        "images",
        "activations",
        "gradients",
        "batch",
        "tokens/s",
        "{rate} tokens/s",
        "batch_size {size}",
        "{reasons}",
        "verdict",
        "console",
        *ONLY_NAMES,
        "code",
        "total",
        "attention",
        "backward",
        "buffers",
        "forward",
        "fragmentation",
        "impossible",
        "loss",
        "possible",
        "tokens",
        "{n} M",
        "{n} allocation",
        "{n} allocations",
        "Pool",
        "pool",
        "Site",
    },
    "es": {
        "Pool",
        "pool",
        "Roles",
        "Token",
        "Tokens",
        "token",
        "{tokens} tokens/s",
        "GPU",
        "batch",
        "tokens/s",
        "{rate} tokens/s",
        "batch_size {size}",
        "{reasons}",
        "total",
        "{shape} x {number_bytes} bytes = {size}: {what}.",
        "backward",
        "buffers",
        "error: {problem}",
        "forward",
        "loss",
        "tokens",
        "{n} M",
        "normal",
        *ONLY_NAMES,
    },
    "de": {
        "GPU",
        "GPUs",
        "Job",
        "Jobs",
        "Lease",
        "Token",
        "Tokens",
        "normal",
        "{size} GPUs",
        "batch_size {size}",
        "{reasons}",
        "in float16",
        *ONLY_NAMES,
    },
}
ENGLISH = re.compile(
    r"\b(the|and|with|which|that|from|more|less|than|memory|weights|step|saves|needs|fits|here)\b",
    re.IGNORECASE,
)


def texts(code: str) -> dict[str, str]:
    """Every sentence of one language by its code, with plural forms apart."""
    found = {}
    for path in sorted(CATALOGS.glob("*.json")):
        for name, languages in json.loads(path.read_text(encoding="utf-8")).items():
            forms = languages.get(code, "")
            for form, text in {"": forms}.items() if isinstance(forms, str) else forms.items():
                found[f"{path.stem}.{name}{form and ':' + form}"] = text
    return found


ENGLISH_TEXTS = texts("en")


def used_codes() -> tuple[set[str], set[str]]:
    """Codes that the source names in full, and beginnings of those it puts together."""
    rooms = {path.stem for path in CATALOGS.glob("*.json")}
    full: set[str] = set()
    begun: set[str] = set()
    for path in (ROOT / "src" / "brimful").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr) and isinstance(first := node.values[0], ast.Constant):
                room, dot, _ = str(first.value).partition(".")
                begun |= {str(first.value)} if room in rooms and dot else set()
            elif isinstance(node, ast.Constant) and CODE_OF_A_SENTENCE.fullmatch(str(node.value)):
                full |= {str(node.value)}
    return full | said_by_pages(), begun


def said_by_pages() -> set[str]:
    """What the console's pages say: `t("room.code")`."""
    pages = (ROOT / "src" / "brimful" / "server" / "console" / "templates").glob("*.html")
    return {code for page in pages for code in re.findall(r'\bt\("([a-z0-9_.]+)"', page.read_text())}


def test_the_source_and_the_catalogs_hold_the_same_codes() -> None:
    full, begun = used_codes()
    held = {code.partition(":")[0].removesuffix(".hint") for code in ENGLISH_TEXTS}
    assert not (said_codes() | said_by_pages()) - held, "say() names a code that no catalog has"
    # What argparse says is looked up by its text.
    unsaid = {code for code in held - full if not code.startswith("argparse.")}
    assert not {code for code in unsaid if not code.startswith(tuple(begun))}, "nobody says these"


def said_codes() -> set[str]:
    """The literal first argument of every `say` and `words`."""
    found = set()
    for path in (ROOT / "src" / "brimful").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Name(id="say" | "words" | "os_errors_as" | "needs_package")
                    | ast.Attribute(attr="refused"),
                    args=[ast.Constant(value=str(code)), *_],
                ):
                    found.add(code)
    return found


def test_a_call_of_say_gives_what_its_sentence_names() -> None:
    for path in (ROOT / "src" / "brimful").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Name(id="say" | "os_errors_as" | "needs_package")
                    | ast.Attribute(attr="refused") as func,
                    args=[ast.Constant(value=str(code)), *_],
                    keywords=given,
                ):
                    if any(keyword.arg is None for keyword in given):
                        continue  # **values: what they hold is only known when it runs
                    text = ENGLISH_TEXTS.get(code) or ENGLISH_TEXTS[f"{code}:other"]
                    text += ENGLISH_TEXTS.get(f"{code}.hint", "")
                    wanted = NAMES.findall(re.sub(r"\{\{|\}\}", "", text))
                    # A row of a trace adds where it is, a failure what went wrong; `code` is the error's own.
                    added = {"refused": "where", "os_errors_as": "error", "needs_package": "name"}
                    who = func.attr if isinstance(func, ast.Attribute) else func.id
                    values = {keyword.arg for keyword in given} - {"code"} | {added.get(who)} - {None}
                    optional = {"name"} if who == "needs_package" else set()
                    assert values - optional == set(wanted) - optional, f"{path.name}: {code}"


def test_no_value_is_named_code() -> None:
    """It would hide the sentence's own `code` from programs."""
    assert not [name for name, text in ENGLISH_TEXTS.items() if "code" in NAMES.findall(text)]
    for path in (ROOT / "src" / "brimful").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id="say" | "words"), keywords=given):
                    assert "code" not in [keyword.arg for keyword in given], f"{path.name}:{node.lineno}"


def test_catalogs_are_in_order() -> None:
    for path in CATALOGS.glob("*.json"):
        held = json.loads(path.read_text(encoding="utf-8"))
        assert list(held) == sorted(held), path.name
        assert all(list(one) == [code for code in LANGUAGES if code in one] for one in held.values()), (
            path.name
        )


@pytest.mark.parametrize("code", TRANSLATED)
def test_no_translation_is_missing(code: str) -> None:
    missing = [name for name, text in texts(code).items() if not text]
    assert not missing, f"{len(missing)} sentences have no {code}"


@pytest.mark.parametrize("code", TRANSLATED)
def test_a_translation_has_the_names_of_its_sentence(code: str) -> None:
    for name, text in texts(code).items():
        if not text:
            continue  # told by the test above
        for names in (NAMES, DEFAULTS):
            assert set(names.findall(ENGLISH_TEXTS[name])) == set(names.findall(text)), name


@pytest.mark.parametrize("code", TRANSLATED)
def test_a_translation_is_not_english(code: str) -> None:
    for name, said in texts(code).items():
        if not said:
            continue  # told by the test above
        bare = CODE.sub("", DEFAULTS.sub("", NAMES.sub("", said)))
        only_names = not re.search(r"[a-z]{2}", bare, re.IGNORECASE)
        is_noun = name.startswith("units.")  # GPU, pool, token: many are the same word
        same = only_names or is_noun or TYPED.match(said) or said in SAME[code]
        assert said != ENGLISH_TEXTS[name] or same, name
        plain = QUOTED.sub("", bare)
        plain = re.sub(
            r"\b(?:flash attention|gradient checkpointing|Out-of-Memory)\b", "", plain, flags=re.IGNORECASE
        )
        assert not ENGLISH.search(plain), said


def test_french_keeps_its_double_signs_with_the_word_before() -> None:
    for said in texts("fr").values():
        if TYPED.match(said):
            continue
        wrong = r"[^\u202f] ?[;?!](?= |$)|[^\u00a0] ?[:%](?= |$)|« |[^\u00a0]»"
        assert not re.search(wrong, CODE.sub("", said)), said


@pytest.mark.parametrize("code", LANGUAGES)
@pytest.mark.parametrize("value", [0.0, 0.5, 7.25, 999.99, 1234.5, 54321.0, 1234567.8, -42.4])
def test_numbers_are_written_as_babel_writes_them(code: str, value: float) -> None:
    theirs = format_decimal(value, format="#,##0.00", locale=code)
    if code == "es" and 1000 <= value < 10_000:
        theirs = theirs.replace(
            ".", ""
        )  # four digits are not parted: a rule of the CLDR that Babel leaves out
    assert language(code).number(value, 2) == theirs


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("en", ["$2,766.36", "$15,500.00"]),
        ("fr", ["2\u202f766,36\u00a0$", "15\u202f500,00\u00a0$"]),
        ("es", ["2766,36\u00a0$", "15.500,00\u00a0$"]),
        ("de", ["2.766,36\u00a0$", "15.500,00\u00a0$"]),
    ],
)
def test_money_is_grouped_as_other_numbers_are(code: str, shown: list[str]) -> None:
    assert [language(code).text(Usd(n)) for n in (2_766_360_000, 15_500_000_000)] == shown


@pytest.mark.parametrize(
    ("code", "one", "more"), [("fr", "1 vidé", "2 vidés"), ("es", "1 vaciado", "2 vaciados")]
)
def test_one_node_is_drained_in_the_singular(code: str, one: str, more: str) -> None:
    assert [language(code).text(say("console.n_drained", n=n)) for n in (1, 2)] == [one, more]


@pytest.mark.parametrize("code", TRANSLATED)
def test_percent_is_written_as_babel_writes_it(code: str) -> None:
    assert language(code).text(Percent(0.684)) == format_percent(0.684, locale=code)


def test_sizes_have_the_units_of_the_language() -> None:
    assert language("en").text(Size(1.54 * 2**30)) == "1.54 GiB"
    assert language("fr").text(Size(1.54 * 2**30)) == "1,54\u00a0Gio"
    assert language("de").text(Size(1.54 * 2**30)) == "1,54\u00a0GiB"
    assert language("es").text(Size(180 * 2**20)) == "180\u00a0MiB"


def test_a_sentence_within_a_sentence_is_translated_too() -> None:
    nested = say("diagnose.moment.happened", where=say("diagnose.in_backward"))

    assert language("de").text(nested) == "Es geschah im Backward-Pass."
    assert language("en").text(Several((Number(1234), "x"))) == "1,234, x"


@pytest.mark.parametrize(
    ("environment", "code"),
    [
        ({"LANG": "fr_FR.UTF-8"}, "fr"),
        ({"LANG": "fr_FR.UTF-8", "LC_ALL": "de_AT.UTF-8"}, "de"),
        ({"LC_MESSAGES": "es_MX", "LANG": "en_US"}, "es"),
        ({"LANG": "C.UTF-8"}, "en"),
        ({"LANG": "est_EE"}, "en"),
        ({"LANG": "ja_JP"}, "en"),
        ({}, "en"),
    ],
)
def test_the_language_is_that_of_the_locale(environment: dict[str, str], code: str) -> None:
    assert language_of_locale(environment) == code


LOG = "iter 4000: loss 3.1, time 245.1ms, mfu 10.00%\n"
OOM = (
    "loss.backward()\nCUDA out of memory. Tried to allocate 1.54 GiB (GPU 0; 11.69 GiB total capacity; "
    "9.00 GiB already allocated; 1.00 GiB free; 9.50 GiB reserved in total by PyTorch)\n"
)
PASTE = "batch_size = 12\ncompile = False\ndtype = 'float16'\nit never fails\n"
COMMANDS = {
    "explain": ["explain", "TEXT", "--config", CONFIG, "--gpu", "rtx-4070", "--other-mib", "2100"],
    "claims": ["claims", CONFIG, "--gpu", "rtx-4070", "--other-mib", "2100"],
    "paste": ["claims", CONFIG, "--gpu", "rtx-4070", "--text", "PASTE"],
    "sweep": ["sweep", CONFIG, "--gpu", "rtx-4070"],
    "fit": ["fit", CONFIG, "--gpu", "rtx-4070", "--other-mib", "2100"],
    "ladder": ["fit", CONFIG, "--gpu", "rtx-4070", "--other-mib", "2100", "--ladder"],
    "compare": ["fit", CONFIG, "--gpu", "rtx-4070", "--other-mib", "2100", "--compare", "batch_size=12"],
    "measured": ["fit", CONFIG, "--gpu", "rtx-4070", "--measured-mfu", "0.1"],
    "cards": ["fit", CONFIG, "--gpu", "all"],
    "serving": ["fit", "--model", "llama-3.1-8b", "--gpu", "4090", "--inference"],
}


@pytest.mark.parametrize("code", TRANSLATED)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_nothing_in_english(
    name: str, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "text").write_text(LOG + OOM)
    (tmp_path / "paste").write_text(PASTE)
    places = {"TEXT": str(tmp_path / "text"), "PASTE": str(tmp_path / "paste")}
    main([*(places.get(word, word) for word in COMMANDS[name]), "--lang", code])
    text = " ".join(line for line in capsys.readouterr().out.splitlines() if " | " not in line)
    text = QUOTED.sub("", text).replace("gradient checkpointing", "").replace("Gradient Checkpointing", "")

    assert not ENGLISH.search(text), ENGLISH.search(text)


def test_spaces_that_keep_words_together_print_and_what_moves_a_cursor_does_not() -> None:
    said = language("fr").text(say("cli.way_out", hint="oui\u202f; non"))
    assert printable(said) == said
    assert printable("a\x1b[2Jb\u202ec\n") == f"a{MARK}[2Jb{MARK}c{MARK}"


@pytest.mark.parametrize("code", LANGUAGES)
def test_a_count_in_a_sentence_has_the_form_of_its_number(code: str) -> None:
    noun = {"en": "GPUs", "fr": "GPU", "es": "GPU", "de": "GPUs"}[code]
    spoken = language(code)
    one, two = (spoken.text(say("fleet.gpus_held", held=1, gpus=n)) for n in (1, 2))
    assert "1 GPU" in one
    assert "GPUs" not in one
    assert f"2 {noun}" in two
    assert spoken.text(say("fleet.gpus_held", held=0, gpus=Number(1))) == spoken.text(
        say("fleet.gpus_held", held=0, gpus=1)
    )


def test_every_counted_noun_is_known() -> None:
    units = json.loads((CATALOGS / "units.json").read_text(encoding="utf-8"))
    counted = {noun for code in LANGUAGES for said in texts(code).values() for noun in COUNTED.findall(said)}
    assert counted
    assert counted <= units.keys()
