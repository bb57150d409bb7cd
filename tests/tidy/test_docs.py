"""Documentation that has gone stale is red."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from brimful.cli.commands import COMMANDS, GROUPS, OLD, SHORT, verbs_of
from tests.tidy.repository import DOCS, ROOT, SRC, files, name, pages, python_files, rooms, text

FRAGMENT = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*\.(added|changed|fixed|removed)\.md")
DECISION_PARTS = ["Context", "Choice", "Alternatives", "Consequence", "What would change our mind"]
ROOM_PARTS = ["Purpose", "Invariants", "How to add one more"]
DECISIONS = sorted(DOCS.glob("decisions/[0-9]*.md"))


def headings(page: str) -> list[str]:
    return re.findall(r"^## (.+)$", page, re.MULTILINE)


def code_in(page: str) -> str:
    """What stands in fenced blocks and in `code spans`."""
    fences = re.findall(r"^```.*?^```", page, re.MULTILINE | re.DOTALL)
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL))
    return "\n".join([*fences, *spans])


def test_generated_pages_and_transcripts_are_fresh() -> None:
    command = [sys.executable, "-m", "tools.generate", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", pages(), ids=name)
def test_every_command_a_page_shows_exists(page: Path) -> None:
    code = code_in(text(page))
    shown = re.findall(r"^\s*(?:\$ )?(?:\.venv/bin/)?brimful ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?", code, re.M)
    wrong = [
        f"{first} {second}".strip()
        for first, second in shown
        if not (
            first in {*COMMANDS, *SHORT, "help"} or (first in GROUPS and second in {"", *verbs_of(first)})
        )
    ]
    assert not wrong or is_history(page), f"{name(page)} shows commands that do not exist: {wrong}"
    targets = set(re.findall(r"^([a-z-]+):", text(ROOT / "Makefile"), re.MULTILINE))
    made = set(re.findall(r"^\s*(?:\$ )?make ([a-z][a-z-]*)", code, re.MULTILINE))
    assert made <= targets, f"{name(page)} shows a make target that does not exist"


def is_history(path: Path) -> bool:
    """Decisions tell of their time, the reference lists old names, test data is of an older brimful."""
    old = (DOCS / "decisions", DOCS / "reference" / "cli.md", ROOT / "tests" / "adapters" / "data")
    return any(path.is_relative_to(each) for each in old)


def test_nothing_people_read_names_a_command_by_its_old_name() -> None:
    old = re.compile(rf"brimful (?:{'|'.join(OLD)})(?![\w-])")
    suffixes = {".md", ".py", ".html", ".po", ".toml", ".yaml", ".json"}
    guilty = [
        f"{name(path)}: {found[0]}"
        for path in files()
        if path.suffix in suffixes and not is_history(path)
        for found in old.finditer(text(path))
    ]
    assert not guilty, f"`Old names` of docs/reference/cli.md has the new ones: {guilty}"


@pytest.mark.parametrize("page", pages(), ids=name)
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", text(page), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", prose)
    assert not [link for link in links if not (page.parent / link).exists()]
    ours = re.findall(
        r"\]\(https://(?:raw\.githubusercontent|github)\.com/brimful/brimful/(?:blob/)?main/([^)#\s]+)", prose
    )
    assert not [link for link in ours if not (ROOT / link).exists()]


def test_the_readme_works_on_a_package_index() -> None:
    """There, a relative link leads nowhere and a relative picture is not shown."""
    prose = re.sub(r"^```.*?^```", "", text(ROOT / "README.md"), flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"\]\((?!https?:|#|mailto:)([^)\s]+)", prose) == []


def test_every_room_has_a_contributor_note() -> None:
    for room in rooms():
        note = DOCS / "contributing" / f"{room.name}.md"
        assert note.is_file(), f"{name(note)} is missing: purpose, invariants, how to add one more"
        assert headings(text(note))[: len(ROOM_PARTS)] == ROOM_PARTS, name(note)


def test_the_layers_of_the_notes_are_those_that_are_held() -> None:
    contract = tomllib.loads(text(ROOT / "pyproject.toml"))["tool"]["importlinter"]["contracts"][0]
    held = [set(re.findall(r"brimful\.(\w+)", layer)) for layer in contract["layers"]]
    drawn = re.search(r"```text\n(cli .*?)```", text(DOCS / "contributing" / "index.md"), re.DOTALL)
    assert drawn is not None
    told = [set(re.findall(r"\w+", layer)) for layer in drawn[1].split(">")]
    assert told[:-1] == held[:-1]
    assert told[-1] == held[-1] - {"files", "job"}


def test_open_ends_are_few() -> None:
    assert len(text(DOCS / "contributing" / "open-ends.md").splitlines()) <= 120


def test_changelog_fragments_are_named_and_short() -> None:
    for path in (ROOT / "changelog.d").iterdir():
        if path.name == "README.md":
            continue
        assert FRAGMENT.fullmatch(path.name), f"{name(path)}: call it <slug>.(added|changed|fixed|removed).md"
        assert text(path).strip(), f"{name(path)} is empty"
        assert "\n\n" not in text(path).strip(), f"{name(path)}: one paragraph, written for the user"


def test_no_two_decisions_have_one_number() -> None:
    """Numbers are given out ahead, so that developers side by side do not collide: there may be holes."""
    numbers = [int(path.name[:4]) for path in DECISIONS]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("page", DECISIONS, ids=name)
def test_a_decision_has_its_five_parts(page: Path) -> None:
    assert headings(text(page)) == DECISION_PARTS
    assert text(page).startswith(f"# {int(page.name[:4])}. ")


def test_the_glossary_and_the_code_speak_one_language() -> None:
    glossary = text(DOCS / "reference" / "glossary.md")
    entries = re.findall(r"^\*\*(\w+)\*\*(.*)$", glossary, re.MULTILINE)
    assert len(entries) >= 11
    sources = [text(path) for path in python_files() if path.is_relative_to(SRC)]
    spoken = {word for source in sources for word in re.findall(r"[a-z]+", source.lower())}
    named = {
        node.name.lower()
        for source in sources
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
    }
    for term, rest in entries:
        if "*(not in the code yet)*" in rest:
            assert term not in named, f"{term!r} is in the code now: the glossary should not say otherwise"
        else:
            assert term in spoken, f"{term!r} is in the glossary and nowhere in the code"


def test_every_page_is_reached_from_the_first() -> None:
    """By a table of contents, as Sphinx reads it; what none lists is neither built into a menu nor found."""
    reached, queue = set[Path](), [DOCS / "index.md"]
    while queue:
        page = queue.pop()
        if page in reached:
            continue
        reached.add(page)
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```", text(page), re.MULTILINE | re.DOTALL):
            for line in filter(None, (line.strip() for line in block.splitlines())):
                if not line.startswith(":"):
                    queue += page.parent.glob(f"{line}.md")
    pages_there = set(DOCS.rglob("*.md"))
    assert reached == pages_there, f"no table of contents leads to {sorted(map(name, pages_there - reached))}"


def test_every_page_that_a_reader_needs_is_linked_in_a_sentence() -> None:
    """A menu is for those who know what they look for: an explanation is also linked where it is needed."""
    links = {
        (page.parent / link).resolve()
        for page in pages()
        for link in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", text(page))
    }
    links |= {ROOT / link for page in pages() for link in re.findall(r"/blob/main/([^)#\s]+)", text(page))}
    wanted = [path for folder in ("tutorial", "explanation") for path in (DOCS / folder).glob("*.md")]
    assert not [name(path) for path in wanted if path not in links]
