"""PyTorch's error texts in plain words: `parse` for the stale-save message, `explanation` for any text or traceback."""

from __future__ import annotations

import re
from dataclasses import dataclass

from noclobber.model.units import counted
from noclobber.rules import Rule, catalogue, rule_of
from noclobber.rules.shared.keeps import row_of
from noclobber.rules.shared.texts import codes_of_piece, is_in, joined
from noclobber.rules.shared.wording import node_in_words, shape_in_words, stem

_STALE = re.compile(
    r"one of the variables needed for gradient computation has been modified by an inplace operation"
    r"(?:: \[(?P<type>[\w.]+) \[(?P<sizes>[\d, ]*)\]\]"
    r"(?:, which is output \d+ of (?P<node>[\w:<>]+),)?"
    r",? is at version (?P<version>\d+); expected version (?P<expected>\d+) instead)?"
)
_VIEWS_OF_WEIGHTS = ("AsStrided", "T", "Transpose")
_COMMAND = "noclobber run train.py"


@dataclass(frozen=True, slots=True)
class StaleMessage:
    """What PyTorch's stale-save message says. `type` is None for the text of releases before 1.2, which named nothing.

    `node` is spelt as PyTorch did: "Exp", "ExpBackward" or "ExpBackward0"; empty where the tensor is a leaf, as a
    parameter and a buffer are. `writes` is how often the tensor was written between its save and its read.
    """

    type: str | None = None
    sizes: tuple[int, ...] = ()
    node: str = ""
    version: int = 0
    expected: int = 0

    @property
    def writes(self) -> int:
        return self.version - self.expected


def parse(text: str) -> StaleMessage | None:
    """Find the stale-save message in a text, which may be a traceback, wrapped, or prefixed by `[rank0]:`.

    Numbers that are longer than Python reads are none of PyTorch's: then the message says no more than before 1.2.
    """
    found = _STALE.search(joined(text))
    if found is None:
        return None
    if found["type"] is None:
        return StaleMessage()
    try:
        sizes = tuple(int(size) for size in found["sizes"].replace(",", " ").split())
        version, expected = int(found["version"]), int(found["expected"])
    except ValueError:
        return StaleMessage()
    return StaleMessage(found["type"], sizes, found["node"] or "", version, expected)


def explanation(text: str) -> str | None:
    """Plain words for an error text or a whole traceback: what it says, the page of its rule, the next command.

    A piece of an error text is enough. If it is a piece of several texts, they are listed. None for a text that is not
    one of PyTorch's in-place errors.
    """
    message = parse(text)
    pieces = codes_of_piece(text, [(rule.code, one) for rule in catalogue() for one in rule.texts])
    if message is None and (_IN_SHORT.search(joined(text)) or pieces == ("NC101",)):
        message = StaleMessage()
    if message is not None:
        likely = rule_of("NC103" if _weight_like(message) else "NC101")
        said = _said(message)
    else:
        likely = rule_of_message(text)
        said = []
    possible = [] if said else [rule for rule in catalogue() if rule.code in pieces]
    if possible and likely not in possible:
        likely = possible[0] if len(possible) == 1 else None
    others = [rule for rule in possible if rule is not likely]
    if likely is None and not others:
        return None
    paragraphs = [*said, *([likely.text] if likely is not None else []), *_listed(others, alone=likely is None)]
    return "\n\n".join([*paragraphs, f"run the program for the exact lines: `{_COMMAND}`"])


def rule_of_message(text: str) -> Rule | None:
    """The rule that explains an error text, which may be a whole traceback."""
    return next((rule for rule in catalogue() if any(is_in(one, text) for one in rule.texts)), None)


def _listed(rules: list[Rule], *, alone: bool) -> list[str]:
    """The rules whose texts have the piece that was given, and how to tell which one it is."""
    if not rules:
        return []
    opening = "this piece of a text may be" if alone else "the text seems cut short; it may also be"
    lines = [f"  {one.title}" for one in rules]
    return ["\n".join([f"{opening} one of", *lines]), "give more of the text, or the code: `noclobber explain CODE`"]


_IN_SHORT = re.compile(r"modified by an in-?place operation", re.IGNORECASE)
"""The part of the message that people type."""


def _weight_like(message: StaleMessage) -> bool:
    """Return True for a matrix saved transposed, or a leaf written before its save: both look like weights."""
    if message.node:
        return stem(message.node) in _VIEWS_OF_WEIGHTS and len(message.sizes) in (0, 2)
    return message.expected >= 1


def _said(message: StaleMessage) -> list[str]:
    if message.type is None:
        return [
            "what it says: a tensor that backward needs was written in place after it was saved; the message does not "
            "say which"
        ]
    shape = f"shape {shape_in_words(message.sizes)}" if message.sizes else "one element"
    times = counted(message.writes, "time")
    versions = f"saved at version {message.expected}, found at version {message.version}"
    written = f"was written {times} between its save and backward ({versions})"
    what = f"what it says: a tensor of type {message.type} and {shape} {written}"
    return [what, _producer(message), *_suspicion(message)]


def _producer(message: StaleMessage) -> str:
    if not message.node:
        return "no producing operation is named: the tensor is a parameter, a buffer or another leaf"
    name, node = message.node, f"{stem(message.node)}Backward0"
    operation, row = node_in_words(node), row_of(node)
    if row is not None and row.fields == "result":
        return (
            f"`{name}` produced the tensor, and most likely needs it too: {operation} keeps its own result, so the "
            f"write came after it; {row.why}"
        )
    return (
        f"`{name}` ({operation}) produced the tensor as it is now; this is often the last operation that wrote to it, "
        "and seldom the operation that failed"
    )


def _suspicion(message: StaleMessage) -> list[str]:
    if not _weight_like(message):
        return []
    ground = (
        "linear saves its weight transposed"
        if message.node
        else "the tensor was written before it was saved, as every step writes a weight"
    )
    words = (
        f"most likely an optimizer: {ground}; of the questions that quote only this message and whose cause is known, "
        "62 % had an `optimizer.step()` before a backward that still needed the weights; if no optimizer has stepped "
        "yet, look for a tensor that is filled part by part (NC101, NC102)"
    )
    return [words]
