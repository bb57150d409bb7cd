"""`brimful completion`: a script that completes commands, options and their values in bash, zsh or fish.

The script contains every word: a shell never starts Python to complete one.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from brimful.cli.commands import COMMANDS, GROUPS, Answer, about, load, verbs_of
from brimful.cli.options import parser_for
from brimful.language import tongue
from brimful.scheduler.policies import POLICIES
from brimful.specs.gpu import all_gpus
from brimful.specs.presets import all_presets

EXAMPLE = """brimful completion bash > ~/.local/share/bash-completion/completions/brimful
brimful completion zsh > ~/.zfunc/_brimful   # with `fpath+=~/.zfunc` before compinit
brimful completion fish > ~/.config/fish/completions/brimful.fish"""

FIRST = (("--help", "-h"), ("--version", "-V"))  # options without a command
WIDEST = 70  # of an option's description


class Option(NamedTuple):
    words: tuple[str, ...]
    does: str
    takes_value: bool = False
    values: tuple[str, ...] = ()  # empty: files, or anything


class Known(NamedTuple):
    """A command, a group without its verb, or "": what may follow it."""

    name: str
    words: tuple[tuple[str, str], ...]  # each with its description
    options: tuple[Option, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=tuple(SHELLS))


def run(args: argparse.Namespace) -> Answer:
    script = SHELLS[args.shell](list(known()))
    return Answer({"shell": args.shell, "script": script}, script, raw=True)


def known() -> Iterator[Known]:
    language = tongue().code
    firsts = dict.fromkeys(name.partition(" ")[0] for name in COMMANDS)
    does = {first: about(f"group_{first}" if first in GROUPS else first, language) for first in firsts}
    yield Known("", tuple(does.items()), tuple(Option(words, "") for words in FIRST))
    for group in GROUPS:
        yield Known(group, tuple((verb, about(f"{group} {verb}", language)) for verb in verbs_of(group)), ())
    for name in COMMANDS:
        parser = parser_for(load(name))
        parser.describe()
        formatter = parser._get_formatter()
        options, words = list[Option](), list[tuple[str, str]]()
        for action in parser._actions:
            if action.help == argparse.SUPPRESS:
                continue
            values = _values(name, action)
            if action.option_strings:
                said = " ".join(formatter._expand_help(action).split())[:WIDEST]
                options.append(Option(tuple(action.option_strings), said, action.nargs != 0, values))
            else:
                words += [(value, "") for value in values]
        yield Known(name, tuple(words), tuple(options))


def _values(name: str, action: argparse.Action) -> tuple[str, ...]:
    if action.choices is not None:
        return tuple(map(str, action.choices))
    if action.dest == "gpu" or (name, action.dest) == ("gpus", "name"):
        return tuple(gpu.name for gpu in all_gpus())
    if action.dest == "model":
        return tuple(preset.model.name for preset in all_presets())
    return tuple(POLICIES) if action.dest == "policy" else ()


def _bash(all_known: list[Known]) -> str:
    """Compares the words of the line itself, because bash has already split them at `=` and `:`."""
    groups, after, follow = "|".join(GROUPS), list[str](), list[str]()
    for one in all_known:
        words = [word for word, _ in one.words]
        options = [word for option in one.options for word in option.words]
        follow.append(f"    {shlex.quote(one.name)}) words={_list(words)} options={_list(options)} ;;")
        for option in one.options:
            if option.takes_value:
                asked = "|".join(shlex.quote(f"{one.name}:{word}") for word in option.words)
                after.append(f"    {asked}) words={_list(option.values)} options= ;;")
    return f"""\
_brimful() {{
    local name= verb= word last= words= options= current=${{COMP_WORDS[COMP_CWORD]}}
    COMPREPLY=()
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case $last/$word in
        */--) return ;;
        --lang/*) ;;
        */-*) ;;
        *) if [ -z "$name" ]; then name=$word; elif [ -z "$verb" ]; then verb=$word; fi ;;
        esac
        last=$word
    done
    case $name in {groups}) if [ -n "$verb" ]; then name="$name $verb"; fi ;; esac
    case $name in
{chr(10).join(follow)}
    esac
    case "$name:$last" in
{chr(10).join(after)}
    esac
    case $current in -*) words=$options ;; esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _brimful brimful"""


def _list(words: tuple[str, ...] | list[str]) -> str:
    return shlex.quote(" ".join(words))


def _zsh(all_known: list[Known]) -> str:
    groups, after, follow = "|".join(GROUPS), list[str](), list[str]()
    for one in all_known:
        words = " ".join(_told(word, does) for word, does in one.words)
        options = " ".join(_told(word, option.does) for option in one.options for word in option.words)
        follow.append(f"    {shlex.quote(one.name)}) found=({words}) options=({options}) ;;")
        for option in one.options:
            if option.takes_value:
                asked = "|".join(shlex.quote(f"{one.name}:{word}") for word in option.words)
                after.append(f"    {asked}) found=({' '.join(option.values)}) options=() ;;")
    return f"""\
#compdef brimful
_brimful() {{
    local name= verb= word last=
    local -a found options
    for word in "${{(@)words[2,CURRENT-1]}}"; do
        case $last/$word in
        */--) _files; return ;;
        --lang/*) ;;
        */-*) ;;
        *) if [[ -z $name ]]; then name=$word; elif [[ -z $verb ]]; then verb=$word; fi ;;
        esac
        last=$word
    done
    case $name in ({groups}) if [[ -n $verb ]]; then name="$name $verb"; fi ;; esac
    case $name in
{chr(10).join(follow)}
    esac
    case "$name:$last" in
{chr(10).join(after)}
    esac
    if [[ $words[CURRENT] == -* ]]; then found=($options); fi
    if (( $#found )); then _describe brimful found; else _files; fi
}}
if [[ $funcstack[1] == _brimful ]]; then _brimful "$@"; else compdef _brimful brimful; fi"""


def _told(word: str, does: str) -> str:
    """A word and what it does, in the format of _describe."""
    return shlex.quote(word.replace(":", "\\:") + (f":{does}" if does else ""))


def _fish(all_known: list[Known]) -> str:
    lines = []
    for one in all_known:
        at = f"complete -c brimful -n {shlex.quote(f'__brimful_at {one.name}'.strip())}"
        lines += [f"{at} -f -a {shlex.quote(word)}{_says(does)}" for word, does in one.words]
        for option in one.options:
            names = [
                f" -l {word[2:]}" if word.startswith("--") else f" -s {word[1:]}" for word in option.words
            ]
            values = f" -x -a {_list(option.values)}" if option.values else " -r -F" * option.takes_value
            lines.append(f"{at}{''.join(names)}{values}{_says(option.does)}")
    return f"""\
function __brimful_at
    set -l name
    set -l last
    for word in (commandline -opc)[2..-1]
        switch "$last/$word"
            case '*/--'
                return 1
            case '--lang/*' '*/-*'
            case '*'
                set -a name $word
        end
        set last $word
    end
    if contains -- "$name[1]" {" ".join(GROUPS)}
        test "$name[1..2]" = "$argv"
    else
        test "$name[1]" = "$argv"
    end
end
{chr(10).join(lines)}"""


def _says(does: str) -> str:
    escaped = does.replace("\\", "\\\\").replace("'", "\\'")
    return f" -d '{escaped}'" if does else ""


SHELLS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
