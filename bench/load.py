"""`python -m bench.load URL SECONDS CONNECTIONS [TOKEN [BODY [EVERY_S]]]`: a load generator.

Keeps this many connections busy over HTTP/1.1, or sends a request on each at an interval, and prints what it
saw as JSON. GET, or POST with a body.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from urllib.parse import urlsplit


async def worker(
    place: tuple[str, int],
    request: bytes,
    until: float,
    seen: list[float],
    bad: list[str],
    *,
    every_s: float,
    wait_s: float,
) -> None:
    await asyncio.sleep(wait_s)
    reader, writer = await asyncio.open_connection(*place)
    try:
        while (began := time.perf_counter()) < until:
            writer.write(request)
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line.split(b":")[1])
                for line in head.split(b"\r\n")
                if line.lower().startswith(b"content-length:")
            )
            body = await reader.readexactly(length)
            seen.append(time.perf_counter() - began)
            if head[9:10] != b"2":
                bad.append(f"{head[9:12].decode()} {body[:200].decode()}")
            await asyncio.sleep(every_s)
    finally:
        writer.close()


async def load(
    url: str, seconds: float, connections: int, *, token: str, body: str, every_s: float
) -> dict[str, object]:
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    lines = [f"{'POST' if body else 'GET'} {path} HTTP/1.1", f"host: {host}:{port}"]
    lines += [f"authorization: Bearer {token}"] if token else []
    lines += ["content-type: application/json", f"content-length: {len(body.encode())}"] if body else []
    request = "\r\n".join([*lines, "", body]).encode()
    seen: list[float] = []
    bad: list[str] = []
    began = time.perf_counter()
    await asyncio.gather(
        *(
            worker(
                (host, port),
                request,
                began + seconds,
                seen,
                bad,
                every_s=every_s,
                wait_s=every_s * i / connections,  # spread out
            )
            for i in range(connections)
        )
    )
    took = time.perf_counter() - began
    ordered = sorted(seen)
    return {
        "requests": len(seen),
        "per_s": len(seen) / took,
        "p50_ms": 1e3 * ordered[len(ordered) // 2],
        "p99_ms": 1e3 * ordered[int(len(ordered) * 0.99)],
        "bad": len(bad),
        "first_bad": bad[:1],
    }


if __name__ == "__main__":
    given = [*sys.argv[1:], "", "", ""]
    every_s = float(given[5] or 0)
    print(
        json.dumps(
            asyncio.run(
                load(given[0], float(given[1]), int(given[2]), token=given[3], body=given[4], every_s=every_s)
            )
        )
    )
