"""The derivative formulas of the installed torch: its file derivatives.yaml, which the wheel brings with torchgen."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_ENTRY = re.compile(r"^- name: ", re.MULTILINE)
_NODE = re.compile(r"(?P<camel>\w+?)Backward(?P<index>\d+)$")
_GRADIENT = re.compile(r"^ {2,}(?P<names>[\w, ]+): *(?P<formula>.*(?:\n {4,}(?![\w, ]+: ).*)*)", re.MULTILINE)
_TENSOR = re.compile(r"\bTensor(?:\([^)]*\))?(?:\[\d*\])?\??(?:\[\])? (\w+)")
_ABOUT = r"(?:sym_)?(?:sizes?|numel|strides?|storage_offset)|options|scalar_type|dim|layout|device|is_\w+|defined"
"""What a formula may ask of a tensor without keeping its bytes (tools/autograd/load_derivatives.py, torch 2.13)."""


@cache
def _entries() -> Mapping[str, list[str]]:
    """Return the entries by the names of their nodes without "Backward0"; empty if the file is missing."""
    found = find_spec("torchgen")
    path = Path(found.origin or "").parent / "packaged" / "autograd" / "derivatives.yaml" if found else Path()
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return {}
    entries: dict[str, list[str]] = {}
    for entry in _ENTRY.split(text)[1:]:
        lines = [line for line in entry.splitlines() if not line.lstrip().startswith("#")]
        base = re.split(r"[.(]", lines[0])[0]
        camel = "".join(word.title() for word in base.split("_"))
        entries.setdefault(camel, []).append("\n".join(lines).rstrip())
    return entries


def formula_of(node: str) -> str:
    """Return the entry behind a node such as "PowBackward1", its schema first; empty if there is none."""
    match = _NODE.match(node)
    entries = _entries().get(match["camel"], []) if match else []
    index = int(match["index"]) if match else 0
    return entries[index] if index < len(entries) else ""


def kept_by_formula(entry: str) -> frozenset[str]:
    """Return the tensors of the schema that the gradient formulas compute with, by their names in the schema."""
    schema, _, body = entry.partition("\n")
    arguments, _, returns = schema.rpartition(" -> ")
    outputs = set(_TENSOR.findall(returns)) | {"result", *(f"result{number}" for number in range(8))}
    kept: set[str] = set()
    for line in _GRADIENT.finditer(body):
        names = {name.strip() for name in line["names"].split(",")}
        if names & (outputs | {"output_differentiability", "dispatch"}):
            continue  # what follows is about forward mode
        formula = re.sub(r"\bto_args_\w+\(\w+\)", "", line["formula"])
        for name in {*_TENSOR.findall(arguments), *outputs}:
            if re.search(rf"\b{name}\b(?!(?:\.|->)(?:{_ABOUT})\b)", formula):
                kept.add(name)
    return frozenset(kept)
