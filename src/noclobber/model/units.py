"""Numbers with their units, and lists, as readers see them."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, noun: str) -> str:
    """ "1 write", "3 writes"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(parts: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def few(parts: Sequence[str], most: int) -> list[str]:
    """ "a", "b", "3 more": the first parts, and how many there are beside them."""
    more = len(parts) - most
    return [*parts[:most], f"{more} more"] if more > 0 else [*parts]


def size(count: int) -> str:
    """A number of bytes: `96 B`, `1.5 kB`."""
    number, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if round(number, 1) < 1000:
            break
        number, unit = number / 1000, larger
    return f"{count} B" if unit == "B" else f"{number:.1f} {unit}"


def share(part: int, whole: int) -> str:
    """A part in percent: `1.5%`; empty where there is no whole."""
    return f"{100 * part / whole:.1f}%" if whole else ""
