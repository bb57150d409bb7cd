"""A file of queues: what each may hold, as TOML, with a table for each queue.

[vision]
gpus = 8
user_gpus = 4
type_gpus = { h100-sxm-80gb = 4 }
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from brimful.errors import BadInput, WorldFailed
from brimful.language import os_words, say


def read_queues(path: Path) -> list[dict[str, Any]]:
    """As `PUT /v1/queues` takes them; the server checks their values."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WorldFailed(say("client.cannot_read_queues", path=path, error=os_words(error))) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(say("client.bad_queues_file", path=path, why=error)) from error
    for name, table in tables.items():
        if not isinstance(table, dict) or "queue" in table:
            raise BadInput(
                say("client.bad_queues_file", path=path, why=say("client.queue_is_table", name=name))
            )
    return [{"queue": name, **table} for name, table in tables.items()]
