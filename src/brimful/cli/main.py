"""`brimful`: pick the command, run it, print its answer for a person or a program.

Exit codes: 0 yes, 1 a clear no ("does not fit"), 2 bad input, 3 environment error (disk, network, driver).
"""

from __future__ import annotations

import sys

from brimful.cli.commands import (
    GROUPS,
    HELP,
    OLD,
    YES,
    asked_language,
    find,
    group_overview,
    load,
    overview,
)
from brimful.errors import BadInput, BrimfulError

INTERRUPTED = 130  # what a shell expects after Ctrl-C


def main(argv: list[str] | None = None) -> int:
    """Run one command line and return its exit code. Never shows a traceback for an expected failure."""
    args = sys.argv[1:] if argv is None else argv
    as_json = "--json" in _split(args)[0]
    try:
        try:
            return _dispatch(args, as_json=as_json)
        except UnicodeEncodeError as error:  # an argument with bytes that are not text
            raise _bad("cli.not_utf8", text=ascii(error.object[:80])) from error
    except BrimfulError as error:
        _print_error(error, args, as_json=as_json)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) is gone; there is nobody left to tell.
        sys.stdout = None
        return YES


def _dispatch(args: list[str], *, as_json: bool) -> int:
    args = _command_first(args)
    if args[:1] == ["help"]:
        args = _command_first([*args[1:], "--help"])
    if not args or args[0] in HELP or args[0].startswith("--lang"):
        _out(overview(asked_language(args)))
        return YES
    if args[0] in ("-V", "--version"):
        from brimful.cli.version import version

        _out(f"brimful {version()}")
        return YES
    name, rest = find(args)
    if name in GROUPS:
        if rest and HELP.isdisjoint(rest):
            raise _bad("cli.group_needs_a_verb", "cli.hint_see_command_help", name=name)
        _out(group_overview(name, asked_language(args)))
        return YES
    if args[0] in OLD and (sys.stderr.isatty() or not HELP.isdisjoint(rest)):
        from brimful.cli.render import tell
        from brimful.language import choose, words

        choose(asked_language(args))
        tell(words("cli.old_name", old=args[0], name=name, group=name.split()[0]), aside=True)
    return _run(name, rest, as_json=as_json)


def _run(name: str, args: list[str], *, as_json: bool) -> int:
    from brimful.cli.options import parser_for
    from brimful.cli.render import tell
    from brimful.language import choose

    command = load(name)
    own, users = _split(args)
    choose(asked_language(own))
    options, strange = parser_for(command).parse_known_args(own)
    if strange and not command.takes_command:  # argparse takes no word after an option
        options, strange = parser_for(command).parse_known_intermixed_args(own)
    if strange and command.takes_command and not users and not strange[0].startswith("-"):
        # Its first word was taken for the job file.
        rest = " ".join([*filter(None, [getattr(options, "file", None)]), *strange])
        raise _bad("cli.command_needs_dashes", "cli.hint_command_after_dashes", name=name, rest=rest[:200])
    if strange:
        from difflib import get_close_matches

        known = [each for action in parser_for(command)._actions for each in action.option_strings]
        near = get_close_matches(strange[0].partition("=")[0], known, n=1, cutoff=0.75)
        hint = "cli.hint_did_you_mean_option" if near else "cli.hint_see_command_help"
        all_words = " ".join(strange)[:200]
        raise _bad("cli.not_understood", hint, name=name, words=all_words, option="".join(near))
    if command.takes_command:
        options.command = users
    elif users:
        raise _bad("cli.nothing_after_dashes", "cli.hint_see_command_help", name=name)
    answer = command.verb.run(options)
    if as_json and answer.data is not None:  # None: the command has printed everything while it ran
        _out(envelope({"ok": True, "data": answer.data}))
    elif answer.text:
        (_out if answer.raw else tell)(answer.text)
    return answer.exit_code


def envelope(answer: dict[str, object]) -> str:
    import json

    # NaN is not JSON: it must be removed where it is made, not here.
    return json.dumps(answer, indent=2, allow_nan=False)


def _print_error(error: BrimfulError, args: list[str], *, as_json: bool) -> None:
    from brimful.cli.render import tell
    from brimful.language import choose, told, words

    choose(asked_language(_split(args)[0]))
    if as_json:
        _out(envelope({"ok": False, "error": error.as_dict(told)}))
        return
    way_out = "" if error.way_out is None else "\n\n" + words("cli.way_out", hint=error.way_out)
    tell(words("cli.error", problem=error.said) + way_out, aside=True)


def _bad(problem: str, hint: str | None = None, **values: object) -> BadInput:
    from brimful.language import say
    from brimful.language.printable import all_printable

    values = all_printable(values)
    return BadInput(say(problem, **values), hint=say(hint, **values) if hint else None)


def _command_first(args: list[str]) -> list[str]:
    """`brimful --lang fr fit …`: options of every command may also come before it."""
    at = 0
    while at < len(args) and (args[at] in ("--json", "--lang") or args[at].startswith("--lang=")):
        at += 2 if args[at] == "--lang" else 1
    return [*args[at : at + 1], *args[:at], *args[at + 1 :]]


def _split(args: list[str]) -> tuple[list[str], list[str]]:
    """Our own words, and those after `--`, which are the user's command. argparse mixes the two."""
    if "--" not in args:
        return args, []
    at = args.index("--")
    return args[:at], args[at + 1 :]


def _out(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
