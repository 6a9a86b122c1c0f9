"""PyTorch's error texts as the rules write them down: whether a message has one, and whose a piece of one is.

A text is written as PyTorch prints it, and `*` stands for one word that differs from program to program. What stands in
brackets is enough to recognise it, in an older release too; where nothing does, it takes all. The rest is there for a
piece that a user cut short: it goes as far as pieces are ambiguous. After `unless` stands what no such message has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, lru_cache

A_VIEW = "Output * of * [is a view and is being modified inplace]."
ITS_BASE = "Output * of * [is a view and its base or another view of its base has been modified inplace]."
_FEWEST_WORDS, _FEWEST_CHARACTERS = 4, 16
"""A piece with less is not distinctive."""
_LINE_PREFIX = re.compile(r"^\s*(?:\[rank\d+\]:|[E>|](?=[ \t]))[ \t]?", re.MULTILINE)


def joined(message: str) -> str:
    """One line, without the prefixes that launchers, pytest and quoting put before each."""
    return re.sub(r"\s+", " ", _LINE_PREFIX.sub(" ", message))


@lru_cache(maxsize=64)
def words_of(message: str) -> str:
    """The words of a message in lower case, without what stands around them."""
    words = joined(message).lower().replace("in-place", "inplace").split()
    return " ".join(filter(None, (re.sub(r"^[^\w*]+|[^\w*]+$", "", one) for one in words)))


def is_in(text: str, message: str) -> bool:
    """Return True if a message has a text."""
    marks, other = _recognised_by(text)
    said = words_of(message)
    return any(one.search(said) for one in marks) and (other is None or other.search(said) is None)


def printed(text: str) -> str:
    """The text as PyTorch prints it."""
    return re.sub(r"[][]", "", text.partition(" unless ")[0])


@cache
def _recognised_by(text: str) -> tuple[list[re.Pattern[str]], re.Pattern[str] | None]:
    whole, _, other = text.partition(" unless ")
    return [*map(_compiled, re.findall(r"\[(.*?)\]", whole) or [whole])], _compiled(other) if other else None


def _compiled(text: str) -> re.Pattern[str]:
    return re.compile(" ".join(r"\S+" if one == "*" else re.escape(one) for one in words_of(text).split()))


_OUTPUT = re.compile(r"Output\s+\d+\s+of\s+([\w:<>]+)")


def function_of(message: str) -> str:
    """Return the name of the Function whose result PyTorch refuses to write, by its message; empty if it names none."""
    found = _OUTPUT.search(message)
    return found[1].removesuffix("Backward") if found else ""


def codes_of_piece(piece: str, known: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return the codes of the rules whose texts have a piece, sorted; none if the piece is not distinctive. `known` are
    codes with texts.

    The first and the last word may be cut as well. A text that a known one equals has only the code of that one.
    """
    given = words_of(re.sub(r"(?s).*\b\w+(?:Error|Exception): ", "", piece)).split()
    if len(given) < _FEWEST_WORDS or len(" ".join(given)) < _FEWEST_CHARACTERS:
        return ()
    texts = [(code, words_of(printed(text)).split()) for code, text in known]
    whole = {code for code, words in texts if len(words) == len(given) and _begins(words, given)}
    return tuple(sorted(whole or {code for code, words in texts if _has(words, given)}))


def _has(words: list[str], piece: list[str]) -> bool:
    return any(_begins(words[start:], piece) for start in range(len(words) - len(piece) + 1))


def _begins(words: list[str], piece: list[str]) -> bool:
    first, *middle, last = piece
    same = all(one in (each, "*") for one, each in zip(words[1 : len(piece) - 1], middle, strict=True))
    opens, closes = words[0], words[len(piece) - 1]
    return same and (opens == "*" or opens.endswith(first)) and (closes == "*" or closes.startswith(last))
