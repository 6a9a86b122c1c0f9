"""What somebody may have meant by a word that means nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable
from difflib import get_close_matches


def asked(near: Iterable[str]) -> str:
    """Return the question at the end of a refusal: "; did you mean `--format` or `--force`?"; empty for nothing."""
    names = " or ".join(f"`{one}`" for one in near)
    return f"; did you mean {names}?" if names else ""


def close(word: str, known: Iterable[str]) -> list[str]:
    """Return two that are close to a word: first what has its letters in another order."""
    near = get_close_matches(word, list(known), n=9)
    return sorted(near, key=lambda one: sorted(one) != sorted(word))[:2]


def like(word: str, known: Iterable[str]) -> str:
    """Ask for what is close to a word."""
    return asked(close(word, known))


def file_like(path: str) -> str:
    """Ask for the files that are close to one that is not there; empty if it is there."""
    if path.startswith("-"):  # an option, or stdin
        return ""
    folder, name = os.path.split(path)
    try:
        beside = [] if os.path.exists(path) else os.listdir(folder or os.curdir)
    except (OSError, ValueError):
        beside = []
    stem, ending = os.path.splitext(name)
    if alike := [one for one in beside if one.endswith(ending)]:
        beside = alike
    stems = {os.path.splitext(one)[0]: os.path.join(folder, one) for one in beside}  # endings are alike anyway
    return asked(stems[one] for one in get_close_matches(stem, stems, n=2))
