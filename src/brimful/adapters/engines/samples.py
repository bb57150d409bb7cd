"""A job's newest sample, from a file the job wrote: reading it is safe, whatever is in its place."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from brimful.adapters.engines.job_users.isolation import OWN, is_isolated
from brimful.errors import BadInput
from brimful.job import open_plain
from brimful.language import Number, say

NAME = "sample.json"
MOST_BYTES = 64 * 1024


def read_sample(folder: Path) -> bytes | None:
    """The bytes of the lease's own file; None if there is none. BadInput if it is not a plain file.

    A link could lead to another job's file and a pipe would never end, so only a plain file is read.
    """
    place = folder / OWN if is_isolated(folder) else folder
    try:
        owner = place.stat().st_uid
        with open_plain(place / NAME, below=folder) as file:
            found = os.fstat(file.fileno())
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        what = "a link" if error.errno == errno.ELOOP else str(error.strerror)
        raise BadInput(say("adapters.sample_unreadable", what=what)) from error
    if found.st_nlink > 1 or found.st_uid != owner:
        raise BadInput(say("adapters.sample_not_plain"))
    if len(data) > MOST_BYTES:
        raise BadInput(say("adapters.sample_too_large", size=Number(found.st_size), most=Number(MOST_BYTES)))
    return data
