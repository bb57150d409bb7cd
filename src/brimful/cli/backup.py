"""`brimful backup`: the whole database in one file, while brimful runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from brimful.cli.commands import Answer
from brimful.cli.data import add_database_arguments, open_store

EXAMPLE = """brimful backup brimful-monday.zip
brimful backup --database postgresql+psycopg://brimful@db/brimful /backups/monday.zip"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="where to write it; readable by you alone")
    parser.add_argument("--force", action="store_true", help="replace the file if it is there")
    add_database_arguments(parser)


def run(args: argparse.Namespace) -> Answer:
    from brimful.errors import Refused

    target = Path(args.file).expanduser().absolute()
    if target.exists() and not args.force:
        raise Refused(f"{target} is there already", hint="choose another name, or --force")
    with open_store(args) as (store, settings):
        from brimful.adapters.stores.backup import back_up

        made = back_up(store, target)
        size = target.stat().st_size
    tables = ", ".join(f"{count:,} {name}" for name, count in made.rows.items() if name != "brimful")
    text = "\n".join(
        [
            f"wrote {target} ({size / 2**20:.1f} MiB): {tables}",
            "",
            "Not in it: checkpoints, logs and environment values of jobs. They stay in",
            f"{settings.engines_folder}.",
        ]
    )
    return Answer({"file": str(target), "bytes": size, "schema": made.schema, "rows": made.rows}, text)
