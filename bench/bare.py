"""The peer of the server group: bare FastAPI and SQLite, with the same durability.

One INSERT and its commit for a submit, one SELECT for a read or a list; the write-ahead log is flushed as
ours is.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel


class Submission(BaseModel):
    command: list[str]
    folder: str
    gpus: int = 1
    name: str = ""


def make_app(path: str) -> FastAPI:
    app = FastAPI()
    local = threading.local()

    def database() -> sqlite3.Connection:
        if not hasattr(local, "connection"):
            local.connection = sqlite3.connect(path, timeout=30)
            local.connection.execute("PRAGMA journal_mode=WAL")
            local.connection.execute("PRAGMA synchronous=FULL")
        connection: sqlite3.Connection = local.connection
        return connection

    database().execute("CREATE TABLE IF NOT EXISTS jobs (id INTEGER PRIMARY KEY, body TEXT NOT NULL)")

    @app.post("/jobs", status_code=201)
    def submit(submission: Submission) -> dict[str, Any]:
        with database() as connection:
            done = connection.execute("INSERT INTO jobs (body) VALUES (?)", (submission.model_dump_json(),))
        return {"ok": True, "data": {"job": done.lastrowid}}

    @app.get("/jobs/{job}")
    def show(job: int) -> dict[str, Any]:
        row = database().execute("SELECT id, body FROM jobs WHERE id = ?", (job,)).fetchone()
        return {"ok": True, "data": {"job": row[0], "body": row[1]}}

    @app.get("/jobs")
    def newest(limit: int) -> dict[str, Any]:
        rows = database().execute("SELECT id, body FROM jobs ORDER BY id DESC LIMIT ?", (limit,)).fetchall()
        return {"ok": True, "data": {"jobs": [{"job": row[0], **json.loads(row[1])} for row in rows]}}

    return app


if __name__ == "__main__":
    uvicorn.run(make_app(sys.argv[1]), host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
