"""The operator's own token: created at the first start, so that one machine needs no setup."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from brimful.adapters.files import NOTE_BYTES, in_words
from brimful.errors import WorldFailed
from brimful.files import write_whole
from brimful.job import read_plain
from brimful.language import say
from brimful.server.auth import EVERYBODY, Access, Principal

log = logging.getLogger("brimful")


def operator_token(access: Access, path: Path) -> Principal:
    """The owner of the token in the file; a new token if there is none that is valid and private."""
    try:
        who = _kept_token(access, path) if path.exists() else None
        if who is not None:
            return who
        text, token = access.issue(name="owner", tenant=EVERYBODY, role="operator")
        write_whole(path, text, mode=0o600)
    except OSError as error:
        said = say("server.cannot_use_token_file", path=path, error=in_words(error))
        raise WorldFailed(said, code="token_unusable") from error
    return Principal(token=token.token, name=token.name, roles={token.tenant: token.role})


def _kept_token(access: Access, path: Path) -> Principal | None:
    """A token that others could read is not secret: it is revoked and counts as missing."""
    found = path.stat()
    text = read_plain(path, below=path.parent, most_bytes=NOTE_BYTES).decode(errors="replace").strip()
    private = found.st_uid == os.geteuid() and not found.st_mode & 0o077
    who = access.look_up(text)
    if private and who is not None and who.may("operator"):
        return who
    if who is not None:
        access.revoke(who, who.token)
    log.warning("the token in %s was %s; here is a new one", path, "no good" if private else "readable")
    return None
