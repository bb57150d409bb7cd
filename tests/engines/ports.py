"""Ports of a lab that nobody else has."""

from __future__ import annotations

import socket

# Below those that Linux gives to clients (ip_local_port_range), in blocks.
FIRST_PORT, LAST_PORT, PORTS = 10240, 32768, 256


def reserve_ports(count: int) -> tuple[socket.socket, list[int]]:
    """So many ports that no other lab has, nor the system gives to whoever asks for any.

    They are ours as long as the socket is open. A port that is merely free now may be somebody's client port
    a moment later, and a daemon that was killed and is started again does not get it back.
    """
    for block in range(FIRST_PORT, LAST_PORT - PORTS, PORTS):
        lock, ports = socket.socket(socket.AF_UNIX), list(range(block, block + count))
        try:
            lock.bind(f"\0brimful-lab-{block}")
        except OSError:
            lock.close()
            continue
        if all(map(is_free, ports)):
            return lock, ports
        lock.close()
    raise AssertionError(f"no {count} free ports between {FIRST_PORT} and {LAST_PORT}")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
