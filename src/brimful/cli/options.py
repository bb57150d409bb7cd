"""The parser, and what several commands ask for alike: a job, a sum of money, consent."""

from __future__ import annotations

import argparse
import sys
from functools import cache
from typing import NoReturn

from brimful.cli.commands import Command
from brimful.cli.spoken import tongue
from brimful.errors import BadInput, Refused
from brimful.language import LANGUAGES, Quoted, Usd, say, verbatim
from brimful.language.spoken import catalog
from brimful.units import microusd_from_usd

LOG_HELP = "a log of events, as `brimful fleet events -f --json` writes it"


class Parser(argparse.ArgumentParser):
    """argparse whose complaints are our errors, so that `--json` covers them too."""

    def error(self, message: str) -> NoReturn:
        raise BadInput(verbatim(message), hint=say("cli.hint_see_help", program=self.prog))


@cache
def _argparse_codes() -> dict[str, str]:
    return {str(texts["en"]): f"argparse.{name}" for name, texts in catalog("argparse").items()}


def _gettext(text: str) -> str:
    spoken = tongue()
    code = None if spoken.code == "en" else _argparse_codes().get(text)
    return str(spoken.template(code)) if code else text


# argparse looks its own words up by these two names; here it finds them in our catalog.
argparse._ = _gettext  # type: ignore[attr-defined]
argparse.ngettext = lambda one, many, n: _gettext(one if n == 1 else many)  # type: ignore[attr-defined]


def parser_for(command: Command) -> Parser:
    example = "\n".join(f"  {line}" for line in command.verb.example.strip().splitlines())
    parser = Parser(
        prog=f"brimful {command.name}",
        description=command.help[0].upper() + command.help[1:],
        epilog=f"example:\n{example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.verb.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON envelope instead of text")
    parser.add_argument(
        "--lang", choices=LANGUAGES, help="language of the answer; else that of your locale, else English"
    )
    return parser


def add_nothing(parser: argparse.ArgumentParser) -> None:
    """For a command without options of its own."""


def add_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="its id, as `brimful jobs` shows it")


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="say what would happen, and change nothing")


def add_consent(parser: argparse.ArgumentParser) -> None:
    """For what spends money: `agree` asks unless --yes was given."""
    parser.add_argument("--yes", action="store_true", help="do not ask before it may cost more")
    add_dry_run(parser)


def add_log(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--log", metavar="FILE", help=f"instead of a server: {LOG_HELP}")


def agree(sentence: str, *, yes: bool) -> None:
    """Spending needs consent: `--yes`, or an answer where somebody can give one."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Refused(
            say("cli.not_done", sentence=sentence), hint=say("cli.hint_add_yes_agree"), code="needs_consent"
        )
    sys.stdout.write(f"{sentence}. Go on? [y/N] ")
    sys.stdout.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Refused(say("cli.not_done_2"), code="needs_consent")


def usd(text: str, what: str, *, zero: bool = False) -> int:
    """Micro-dollars a person wrote; never a guess."""
    microusd = microusd_from_usd(text)
    if microusd is None or (microusd == 0 and not zero):
        raise BadInput(
            say("cli.not_sum_money", what=what, text=Quoted(text[:40])),
            hint=say("cli.hint_dollars_such_2_40_most"),
        )
    if microusd > 10**15:
        raise BadInput(
            say("cli.too_much", what=what, microusd=Usd(microusd)), hint=say("cli.hint_most_billion_dollars")
        )
    return microusd
