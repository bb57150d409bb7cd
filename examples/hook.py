"""A webhook that prints the notifications it gets: see docs/tutorial/team-budgets.md."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


class Hook(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        note = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        about = note.get("job") or note.get("budget", "")
        print(f"{note['kind']} {about}: {note['reason']}", flush=True)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """No line for each request."""


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 9000
    HTTPServer(("127.0.0.1", port), Hook).serve_forever()
