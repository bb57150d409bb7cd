"""`brimful`: pick the command, run it, print its answer for a person or a program.

Exit codes: 0 yes, 1 a clear no ("does not fit"), 2 bad input, 3 the world failed.
"""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from brimful import __version__
from brimful.cli.commands import BAD_INPUT, COMMANDS, GROUPS, SPOKEN, WORLD_FAILED, YES, Command, load
from brimful.errors import BadInput, BrimfulError

INTERRUPTED = 130  # what a shell expects of a program stopped by Ctrl-C


class Parser(argparse.ArgumentParser):
    """argparse whose complaints are our errors, so that `--json` covers them too."""

    def error(self, message: str) -> NoReturn:
        raise BadInput(message, hint=f"see `{self.prog} --help`")


def main(argv: list[str] | None = None) -> int:
    """Run one command line and return its exit code. Never shows a traceback for a foreseeable failure."""
    args = sys.argv[1:] if argv is None else argv
    as_json = "--json" in _split(args)[0]
    try:
        return _dispatch(args, as_json=as_json)
    except BrimfulError as error:
        _print_error(error, args, as_json=as_json)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has gone; there is nobody left to tell.
        sys.stdout = None
        return YES


def _dispatch(args: list[str], *, as_json: bool) -> int:
    first = args[0] if args else "--help"
    if first in ("-h", "--help", "help"):
        _out(overview())
        return YES
    if first in ("-V", "--version"):
        _out(f"brimful {__version__}")
        return YES
    if first not in COMMANDS:
        raise _unknown_command(first)
    command = load(first)
    own, users = _split(args[1:])
    options, strange = parser_for(command).parse_known_args(own)
    if strange and command.takes_command and not users and not strange[0].startswith("-"):
        # Its first word was taken for the file of a job.
        rest = " ".join([*filter(None, [getattr(options, "file", None)]), *strange])
        raise BadInput(
            f"the command {rest[:60]!r} needs -- before it", hint=f"brimful {first} … -- {rest[:200]}"
        )
    if strange:
        raise BadInput(f"not understood: {' '.join(strange)[:200]}", hint=f"see `brimful {first} --help`")
    if command.takes_command:
        options.command = users
    elif users:
        raise BadInput(f"`brimful {first}` takes nothing after --", hint=f"see `brimful {first} --help`")
    answer = command.run(options)
    if as_json and answer.data is not None:  # None: the command has told everything while it ran
        _out(envelope(answer.data))
    elif answer.text:
        _out(answer.text)
    return answer.exit_code


def parser_for(command: Command) -> Parser:
    parser = Parser(
        prog=f"brimful {command.name}",
        description=command.help[0].upper() + command.help[1:],
        epilog=f"example:\n{_indent(command.example)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON envelope instead of text")
    return parser


def overview() -> str:
    lines = ["brimful fills the GPUs you already pay for.", "", "usage: brimful COMMAND [options]"]
    width = max(map(len, COMMANDS))
    for title, names in GROUPS.items():
        lines += ["", f"{title}:"]
        lines += [f"  {name:<{width}}  {COMMANDS[name]}" for name in names]
    lines += [
        "",
        "Every command takes --json and --help (with an example).",
        "Exit codes: 0 yes, 1 a clear no, 2 bad input, 3 the world failed.",
        "",
        "begin with:  brimful fit examples/nanogpt/train_fineweb.py --gpu rtx-4070",
    ]
    return "\n".join(lines)


def envelope(data: object) -> str:
    import json

    # NaN is not JSON: a number that is not one must be left out where it is made, not here.
    return json.dumps({"ok": True, "data": data}, indent=2, allow_nan=False)


def _print_error(error: BrimfulError, args: list[str], *, as_json: bool) -> None:
    if as_json:
        import json

        _out(json.dumps({"ok": False, "error": error.as_dict()}, indent=2))
        return
    assert error.exit_code in (1, BAD_INPUT, WORLD_FAILED)
    text = f"error: {error.problem}"
    if error.hint:
        text += f"\n\nhint: {error.hint}"
    if args and args[0] in SPOKEN:
        from brimful.cli.spoken import error_text, spoken_of

        tongue = spoken_of(_split(args)[0])
        text = text if tongue.code == "en" else error_text(error, tongue)
    sys.stderr.write(text + "\n")


def _unknown_command(word: str) -> BadInput:
    from difflib import get_close_matches

    near = get_close_matches(word, COMMANDS, n=1)
    hint = f"did you mean `brimful {near[0]}`?" if near else "see `brimful --help` for the commands"
    return BadInput(f"there is no command {word!r}", hint=hint, code="unknown_command")


def _split(args: list[str]) -> tuple[list[str], list[str]]:
    """Our own words, and those after `--`, which are the user's command. argparse mixes the two."""
    if "--" not in args:
        return args, []
    at = args.index("--")
    return args[:at], args[at + 1 :]


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.strip().splitlines())


def _out(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
