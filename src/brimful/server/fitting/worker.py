"""The answering process: one question per line in, one answer per line out, until the server hangs up.

It has nothing of the server's: no database, no token, an empty folder. Whatever a pasted text makes the
readers do costs only this process, which has little memory and which the server ends when it takes too long.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from tempfile import TemporaryDirectory
from typing import Any

from brimful.errors import BrimfulError
from brimful.language import choose, told
from brimful.server.fitting.answer import answered

MEMORY_BYTES = 1 << 30


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    with TemporaryDirectory(prefix="brimful-fit-") as folder:
        os.chdir(folder)
        for line in sys.stdin:
            asked = json.loads(line)
            choose(asked.pop("language"))
            answer: dict[str, Any]
            try:
                answer = {"data": answered(**asked)}
            except BrimfulError as error:
                answer = {"error": {"kind": type(error).__name__, **error.as_dict(told)}}
            except (RecursionError, MemoryError):  # from a paste that is not a config
                answer = {"error": None}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
        os.chdir("/")


if __name__ == "__main__":
    main()
