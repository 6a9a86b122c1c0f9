"""`noclobber explain`: the page of a rule or of an operator, what an error text means, or the list of rules."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from difflib import get_close_matches

from noclobber.cli.parser import Verbs
from noclobber.cli.printing import out, refuse, say
from noclobber.render.tables.page import page
from noclobber.render.text import filled
from noclobber.render.window.color import width_of
from noclobber.rules import Rule, catalogue, rule_of
from noclobber.session.imports import torch_needed
from noclobber.settings.meant import asked, close
from noclobber.settings.reading import Unreadable, text_of


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "explain",
        help="explain a code, an operator, or an error of PyTorch",
        description="Print the page of a rule; say what an operator, a module or a custom operator keeps for backward, "
        "and what may be overwritten; or say what an error text means. Without an argument, list the rules.",
        epilog="examples: noclobber explain NC101; noclobber explain relu; noclobber explain nn.BatchNorm2d; "
        "python train.py 2>&1 | noclobber explain -",
    )
    parser.add_argument(
        "what",
        nargs="*",
        metavar="CODE... | OPERATOR... | ERROR TEXT | -",
        help="NC1 lists the codes that begin so; `-` reads a traceback from stdin",
    )
    parser.add_argument(
        "--operators", action="store_true", help="print what every function of torch and torch.nn.functional keeps"
    )
    parser.add_argument("--markdown", action="store_true", help="with --operators: print a table of Markdown")
    parser.set_defaults(carry_out=carry_out)


def carry_out(options: argparse.Namespace) -> int:
    words: list[str] = options.what
    if options.operators:
        if words:
            options.parser.error("`--operators` prints all operators, and takes no name")
        return _operators(options)
    if options.markdown:
        options.parser.error("`--markdown` needs `--operators`: give both")
    width = width_of(sys.stdout)
    if not words:
        out(_list(catalogue(), width))
        return 0
    if words == ["-"] or " " in " ".join(words):
        explained = _error(words, width)
        if explained is not None:
            return explained
    pages, unknown = [], ""
    for word in words:
        if (rule := rule_of(word)) is not None:
            pages.append(page(rule.text, width))
        elif word[:2].upper() == "NC" and (some := [one for one in catalogue() if one.code.startswith(word.upper())]):
            pages.append(_list(some, width))
        elif " " not in word and (shown := _operator(word, width)):
            pages.append(shown)
        else:
            unknown = unknown or word
    if unknown and not pages and " " in " ".join(words):
        return _no_error()
    if pages:
        out("\n".join(pages))
    return _unknown(unknown) if unknown else 0


def _list(rules: Iterable[Rule], width: int | None) -> str:
    texts = (f"{one.code}  {one.name:<22} {one.headline}" for one in rules)
    return "".join(f"{line}\n" for text in texts for line in filled(text, width, below=" " * 8))


def _error(words: list[str], width: int | None) -> int | None:
    """Say what an error text means, given as words or on stdin (`-`); return None if the words are no such text."""
    from noclobber.rules.shared.message import explanation

    on_stdin = words == ["-"]
    try:
        text = explanation(text_of("-", "error of PyTorch", errors="replace") if on_stdin else " ".join(words))
    except Unreadable as reason:
        return refuse(f"cannot read `-`: {reason}")
    if text is not None:
        out(page(text, width))
        return 0
    return _no_error() if on_stdin else None


def _no_error() -> int:
    say("noclobber: this is not one of PyTorch's in-place errors")
    run = "noclobber run train.py"
    say(f"Paste the error from `RuntimeError:` to its end, or run the program for the exact lines: {run}")
    return 1


def _operators(options: argparse.Namespace) -> int:
    """`noclobber explain --operators`: the table of all. Raises NoTorch."""
    with torch_needed():
        from noclobber.ops.explaining import cases_of_all
    from noclobber.render.tables.operator import operators

    out(operators(cases_of_all(), width_of(sys.stdout), markdown=options.markdown))
    return 0


def _operator(word: str, width: int | None) -> str:
    """Return the page of an operator; empty if there is none of that name. Raises NoTorch."""
    with torch_needed():
        from noclobber.ops.explaining import page_of
    from noclobber.render.tables import operator

    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -c` has it: a custom operator may be defined in a file here
    found = page_of(word)
    return operator.page(found, width) if found is not None else ""


def _unknown(word: str) -> int:
    """Refuse a word that is neither a rule nor an operator, with what is close to it. Raises NoTorch."""
    with torch_needed():
        from noclobber.ops.explaining import names
    operators = {one.rpartition(".")[2]: one for one in names()}
    last = word.rpartition(".")[2]
    near = [
        *close(word.upper(), (one.code for one in catalogue())),
        *get_close_matches(word.lower(), [one.name for one in catalogue()]),
        *(operators[one] for one in get_close_matches(last, operators, cutoff=0.7)),
    ][:3]
    hint = asked(near) or "; `noclobber explain` lists the rules"
    return refuse(f"no rule `{word}`, and no operator of this name that can be tried{hint}")
