"""The server's own log: lines for people, or JSON for programs. Neither contains secrets."""

from __future__ import annotations

import json
import logging
import re
import sys

from brimful.language.printable import printable

# A token that slips into a message is removed, whoever wrote the message.
_TOKENS = re.compile(r"brim_([0-9a-f]{16})_[A-Za-z0-9_-]{20,}")


def _clean(text: str) -> str:
    return _TOKENS.sub(r"brim_\1_…", printable(text))


class TextFormatter(logging.Formatter):
    """User input cannot break out of its line or move a terminal's cursor."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        record.message = _clean(record.message)
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        body = {
            "at": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _clean(record.getMessage()),
        }
        if record.exc_info:
            body["error"] = self.formatException(record.exc_info)
        return json.dumps(body, ensure_ascii=False)


def set_up_logging(form: str = "text") -> None:
    handler = logging.StreamHandler(sys.stderr)
    text = TextFormatter("%(asctime)s  %(message)s", datefmt="%H:%M:%S")
    handler.setFormatter(JsonFormatter() if form == "json" else text)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
