"""`noclobber explain`: the page of a rule or of an operator, what an error text means, or the list of rules."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator

from noclobber.cli.parser import Verbs
from noclobber.cli.printing import out, refuse, say
from noclobber.render.text import filled


def add(verbs: Verbs) -> None:
    """Add the verb to the parser."""
    parser = verbs.add_parser(
        "explain",
        help="explain a code, an operator, or an error of PyTorch",
        description="Print the page of a rule; say what an operator, a module or a custom operator keeps for backward, "
        "and what may be overwritten; or say what an error text means. Without an argument, list the rules.",
        epilog="examples: noclobber explain NC101; noclobber explain relu; noclobber explain nn.BatchNorm2d; "
        "python train.py 2>&1 | noclobber explain -",
        allow_abbrev=False,
    )
    parser.add_argument(
        "what", nargs="*", metavar="CODE... | OPERATOR | ERROR TEXT | -", help="`-` reads a traceback from stdin"
    )
    parser.add_argument(
        "--operators", action="store_true", help="print what every function of torch and torch.nn.functional keeps"
    )
    parser.add_argument("--markdown", action="store_true", help="with --operators: print a table of Markdown")
    parser.set_defaults(carry_out=carry_out, parser=parser)


def carry_out(options: argparse.Namespace) -> int:
    """`noclobber explain`: the page of a rule or of an operator, what an error text means, or the list of rules."""
    from noclobber.render.color import width_of
    from noclobber.render.page import page
    from noclobber.rules import catalogue, rule_of

    what = " ".join(options.what)
    if options.operators:
        if what:
            options.parser.error("`--operators` prints all operators, and takes no name")
        return _operators(options)
    if options.markdown:
        options.parser.error("`--markdown` needs `--operators`: give both")
    width = width_of(sys.stdout, os.environ)
    if not what:
        for one in catalogue():
            headline = (one.__doc__ or "").strip().partition("\n")[0].removeprefix(f"{one.CODE} {one.NAME}: ")
            line = f"{one.CODE}  {one.NAME:<22} {headline}"
            out("".join(f"{part}\n" for part in ([line] if width is None else filled(line, width, below=" " * 8))))
        return 0
    rules = [rule for one in options.what if (rule := rule_of(one)) is not None]
    if len(rules) == len(options.what):
        out("\n".join(page(rule.__doc__ or "", width) for rule in rules))
        return 0
    if what == "-" or " " in what:
        from noclobber.reading import Unreadable, text_of
        from noclobber.rules.shared.message import explanation

        try:
            words = explanation(text_of("-", "error of PyTorch", errors="replace") if what == "-" else what)
        except Unreadable as reason:
            return refuse(f"cannot read `-`: {reason}")
        if words is None:
            for line in _NO_ERROR_OF_PYTORCH:
                say(line)
            return 1
        out(page(words, width))
        return 0
    return _operator(what)


def _operators(options: argparse.Namespace) -> int:
    """`noclobber explain --operators`: the table of all. Raises NoTorch."""
    with torch_needed():
        from noclobber.ops.explaining import names, page_of
    from noclobber.render.operator import operators

    pages = [page for name in names() if (page := page_of(name)) is not None]
    out(operators(pages, markdown=options.markdown))
    return 0


class NoTorch(Exception):
    """What was asked for needs PyTorch, which cannot be imported. Its text says why."""


@contextlib.contextmanager
def torch_needed() -> Iterator[None]:
    try:
        yield
    except (Exception, SystemExit) as failure:
        raise NoTorch(f"torch cannot be imported: {type(failure).__name__}: {failure}") from None


def _operator(what: str) -> int:
    """The page of an operator, or what is close to a word that means nothing. Raises NoTorch."""
    with torch_needed():
        from noclobber.ops.explaining import names as operator_names
        from noclobber.ops.explaining import page_of
    from noclobber.render.color import width_of
    from noclobber.render.operator import page
    from noclobber.rules import catalogue

    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -c` has it: a custom operator may be defined in a file here
    found = page_of(what)
    if found is not None:
        out(page(found, width_of(sys.stdout, os.environ)))
        return 0
    from difflib import get_close_matches

    names = [name for one in catalogue() for name in (one.CODE, one.NAME)]
    close = get_close_matches(what.upper(), names, cutoff=0.7) + get_close_matches(what.lower(), names)
    operators = {one.rpartition(".")[2]: one for one in operator_names()}
    close += [operators[one] for one in get_close_matches(what.rpartition(".")[2], operators, cutoff=0.7)]
    hint = f"; close to it: {', '.join(close[:3])}" if close else "; `noclobber explain` lists the rules"
    return refuse(f"no rule `{what}`, and no operator of this name that can be tried{hint}")


_NO_ERROR_OF_PYTORCH = (
    "noclobber: this is not one of PyTorch's in-place errors",
    "Paste the error from `RuntimeError:` to its end, or run the program for the exact lines: noclobber run train.py",
)
