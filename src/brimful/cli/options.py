"""The parser, and what several commands share: a job, a sum of money, consent."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from brimful.cli.commands import Command, about
from brimful.cli.render import clean
from brimful.errors import BadInput, Refused
from brimful.language import LANGUAGES, Quoted, Usd, say, tongue, verbatim, words
from brimful.language.catalog import catalog
from brimful.language.near import similar
from brimful.units import microusd_from_usd

if TYPE_CHECKING:
    from brimful.fit.correction import Correction


class Formatter(argparse.RawDescriptionHelpFormatter):
    """argparse's layout, with options such as --tls-cert never broken at a hyphen."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        from textwrap import wrap

        return wrap(text, width, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """argparse with our errors, so that `--json` covers them too, and with help texts looked up when shown:
    `help.COMMAND_OPTION` of the catalogs, otherwise `help.OPTION`, which several commands share.
    """

    def __init__(self, command: Command) -> None:
        super().__init__(
            prog=f"brimful {command.name}",
            formatter_class=Formatter,
            allow_abbrev=False,
        )
        self.command = command

    def error(self, message: str) -> NoReturn:
        raise BadInput(verbatim(message), hint=say("cli.hint_see_help", program=self.prog))

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """A word outside the choices, said by its option's name, with the one that was likely meant."""
        known = None if action.choices is None else [str(each) for each in action.choices]
        if known is None or str(value) in known:
            return
        what = "/".join(action.option_strings) or str(action.metavar or action.dest)
        near = similar(str(value), known)
        raise BadInput(
            say("cli.not_a_choice", what=what, value=Quoted(str(value)[:60]), known=", ".join(known)),
            hint=say("cli.hint_did_you_mean", word=near[0]) if near else None,
        )

    def format_help(self) -> str:
        self.describe()
        return super().format_help()

    def describe(self) -> None:
        """Fill in the texts, in the language of this command line."""
        does = about(self.command.name, tongue().code)
        self.description = does[0].upper() + does[1:]
        examples = self.command.verb.example.strip().splitlines()
        title = words("help.examples" if len(examples) > 1 else "help.example")
        self.epilog = "\n".join([title, *(f"  {line}" for line in examples)])
        own = self.command.name.replace(" ", "_").replace("-", "_")
        for group in self._action_groups[2:]:
            if group.title is not None:
                group.title = words(f"help.title_{group.title}")
        for action in self._actions:
            if action.help is None:
                action.help = words(f"help.{help_key(own, action)}")


def help_key(own: str, action: argparse.Action) -> str:
    """By the option's name or destination: the command's own key, then its group's, then the shared one."""
    options = [option[2:].replace("-", "_") for option in action.option_strings if option.startswith("--")]
    homes = (own, own.partition("_")[0])
    keys = (f"{home}_{name}" for home in homes for name in (*options, action.dest))
    return next((key for key in keys if key in catalog("help")), action.dest)


@cache
def _argparse_codes() -> dict[str, str]:
    return {str(texts["en"]): f"argparse.{name}" for name, texts in catalog("argparse").items()}


def _gettext(text: str) -> str:
    spoken = tongue()
    code = None if spoken.code == "en" else _argparse_codes().get(text)
    return str(spoken.template(code)) if code else text


# argparse looks up its own texts by these two names; here it finds them in our catalog.
argparse._ = _gettext  # type: ignore[attr-defined]
argparse.ngettext = lambda one, many, n: _gettext(one if n == 1 else many)  # type: ignore[attr-defined]


def parser_for(command: Command) -> Parser:
    parser = Parser(command)
    for add in command.verb.arguments:
        add(parser)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--lang", choices=LANGUAGES)
    return parser


def arg(*names: str, **more: Any) -> Callable[[argparse._ActionsContainer], object]:  # noqa: ANN401
    """An argument, for the verbs that take it."""
    return lambda parser: parser.add_argument(*names, **more)


JOB, FILE, LOG = arg("job", metavar="JOB"), arg("file", metavar="FILE"), arg("--log", metavar="FILE")
FOLLOW, REASON = arg("--follow", "-f", action="store_true"), arg("--reason", default="")
CONSENT, DRY_RUN = arg("--yes", action="store_true"), arg("--dry-run", action="store_true")
_AGREED = ("y", "yes", "o", "oui", "s", "si", "sí", "j", "ja")


def agree(sentence: object, *, yes: bool) -> None:
    """A command that spends money takes CONSENT, and continues with `--yes` or a person's answer."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Refused(say("cli.not_done", sentence=sentence), code="needs_consent")
    sys.stdout.write(clean(words("cli.go_on", sentence=sentence)) + " ")
    sys.stdout.flush()
    if sys.stdin.readline().strip().lower() not in _AGREED:
        raise Refused(say("cli.declined"), code="needs_consent")


def usd(text: str, what: str, *, zero: bool = False) -> int:
    """Micro-dollars from a person's input; never a guess."""
    microusd = microusd_from_usd(text)
    if microusd is None or (microusd == 0 and not zero):
        raise BadInput(say("cli.not_a_sum", what=what, text=Quoted(text[:40])))
    if microusd > 10**15:
        raise BadInput(say("cli.too_much", what=what, microusd=Usd(microusd)))
    return microusd


def own_correction() -> Correction | None:
    """What this user's `runs calibrate --write` saved."""
    from brimful.fit.correction import calibration_path, load_correction

    return load_correction(calibration_path(os.environ))
