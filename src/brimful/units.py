"""Bytes, seconds and micro-dollars: how they are parsed from text and shown.

Inside brimful a quantity is a plain number whose name ends in its unit (`peak_bytes`, `step_s`,
`microusd_per_gpu_hour`). GiB and dollars exist only here, where people read and write.
"""

from __future__ import annotations

from collections.abc import Sequence

KIB = 1024
MIB = 1024**2
GIB = 1024**3
HOUR_S = 3600
DAY_S = 24 * HOUR_S
CENT = 10_000  # micro-dollars
MICROUSD = 1_000_000


def show_bytes(n: float) -> str:
    """'1.54 GiB'. Binary units, always named: GB and GiB are 7 % apart."""
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(n) >= size:
            return f"{n / size:.2f} {unit}" if unit == "GiB" else f"{n / size:.0f} {unit}"
    return f"{n:.0f} B"


def bytes_from_text(text: str) -> int | None:
    """Bytes in '12GiB', '12 GB', '512MiB' or '80g'; None if it is not a size.

    GiB is 2^30 and GB is 10^9, as written; a bare K, M, G or T is binary, as GPUs are sold.
    """
    digits = text.strip()
    unit = digits.lstrip("0123456789.")
    digits, unit = digits[: len(digits) - len(unit)], unit.strip().lower()
    power = {"": 0, "b": 0, "k": 1, "m": 2, "g": 3, "t": 4}.get(unit.removesuffix("ib").removesuffix("b"))
    if power is None or len(digits) > 20 or digits.count(".") > 1 or not digits.strip("."):
        return None
    decimal = len(unit) == 2 and unit.endswith("b")
    return int(float(digits) * (1000 if decimal else KIB) ** power)


def show_seconds(seconds: float) -> str:
    """'512 ms', '42.3 s', '7 s', '3 h 05 min', '2 d 4 h': about three digits at any size."""
    if seconds < 0:
        return "-" + show_seconds(-seconds)
    if 0.9995 <= seconds < 1 or 59.95 <= seconds < 60:
        seconds = round(seconds)  # or it would be '1000 ms', '60.0 s'
    if seconds < 60:
        if seconds >= 1 or seconds == 0:
            return f"{seconds:.{0 if seconds == int(seconds) else 1}f} s"
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.001 else f"{seconds * 1000:.1f} ms"
    minutes = round(seconds / 60)
    if seconds < HOUR_S and minutes < 60:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / HOUR_S)
    return f"{hours // 24} d {hours % 24} h"


def integer_from_text(text: str, *, low: int, high: int) -> int | None:
    """The whole number written in plain digits, within bounds; None for anything else.

    int() alone would accept '1_000', ' 7 ' and the digits of every script, and be slow on a million of them.
    """
    is_plain = text.isascii() and text.isdigit() and len(text) <= len(str(high))
    return int(text) if is_plain and low <= int(text) <= high else None


def counted(n: int, noun: str) -> str:
    """'1 job', '2 jobs'."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def spans(indices: Sequence[int]) -> str:
    """'0–3, 6' for [0, 1, 2, 3, 6]."""
    runs: list[list[int]] = []
    for i in sorted(indices):
        if runs and i == runs[-1][-1] + 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def show_usd(microusd: int, *, exact: bool = False) -> str:
    """'$12.34', or two digits of a sum below a cent: '$0.0066'.

    `exact`: to the micro-dollar, for columns in which the smallest sum matters.
    """
    sign = "-" if microusd < 0 else ""
    n = abs(microusd)
    if exact:
        return f"{sign}${n / MICROUSD:,.6f}"
    if n == 0 or n >= MICROUSD // 100:
        return f"{sign}${n / MICROUSD:,.2f}"
    places = 6 - max(0, len(str(n)) - 2)
    return f"{sign}${n / MICROUSD:.{places}f}".rstrip("0")


def microusd_from_usd(text: str) -> int | None:
    """Micro-dollars in '1.50' or '$1.50'; None if it is not a sum of money.

    Decimal digits only and at most six places: a float would lose the last micro-dollar.
    """
    digits = text.strip().removeprefix("$")
    whole, _, fraction = digits.partition(".")
    if not whole.isascii() or not whole.isdigit() or len(whole) > 12 or len(fraction) > 6:
        return None
    if fraction and not (fraction.isascii() and fraction.isdigit()):
        return None
    return int(whole) * MICROUSD + int(fraction.ljust(6, "0") or 0)


def cents_that_add_up(microusd: Sequence[int]) -> list[int]:
    """The amounts in whole cents that add up to their sum in whole cents, each at most a cent off.

    For a list with its sum below: rounded one by one, three times $0.33 would be shown above $1.00. Those
    with the largest remainders are rounded up. A sum below a cent is shown to the micro-dollar, and stays.
    """
    total = sum(microusd)
    if total < CENT or min(microusd) < 0:
        return list(microusd)
    found = [amount // CENT for amount in microusd]
    missing = (total + CENT // 2) // CENT - sum(found)
    for i in sorted(range(len(microusd)), key=lambda i: -(microusd[i] % CENT))[:missing]:
        found[i] += 1
    return [cents * CENT for cents in found]
