"""The parser of the command line, and where the program begins in it."""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any, NoReturn, TypeAlias

from noclobber.cli.printing import REFUSED, cut, out, say
from noclobber.settings.meant import like


def split(words: list[str], verb: Parser) -> tuple[list[str], list[str]]:
    """Split a command line into a verb's options and the program, which begins at the first word that is no option."""
    with_value = {name for name, option in verb._option_string_actions.items() if option.nargs != 0}
    index = 1
    while index < len(words):
        word = words[index]
        if word == "--":
            return words[:index], words[index + 1 :]
        if word.startswith(("-m", "-c")):
            joined = [word[:2], word[2:]] if len(word) > 2 else [word]
            return words[:index], joined + words[index + 1 :]
        if word == "-" or not word.startswith("-"):
            break
        index += 2 if word in with_value else 1
    return words[:index], words[index:]


def whole(text: str) -> int:
    """Return the whole number above 0 that a text is, as the type of an option."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


class Parser(argparse.ArgumentParser):
    """argparse's own, whose help and errors go where all else goes. What it has read knows it as `parser`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)
        self.set_defaults(parser=self)

    def print_help(self, file: object = None) -> None:
        out(self.format_help())

    def error(self, message: str) -> NoReturn:
        if sys.stderr is not None:
            self.print_usage(sys.stderr)
        say(f"{self.prog}: error: {cut(message)}{self._meant(message)}")
        raise SystemExit(REFUSED)

    def refuse_together(self, options: argparse.Namespace, one: str, *others: str) -> None:
        for other in others if getattr(options, one) else ():
            if getattr(options, other):
                self.error(f"--{one} and --{other.replace('_', '-')} do not go together")

    def _meant(self, message: str) -> str:
        """Ask for the option or the choice that is close to what argparse does not know."""
        if option := re.match(r"unrecognized arguments: (-[^\s=]+)", message):
            return like(option[1], self._option_string_actions)
        if choice := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
            return like(choice[1], re.findall(r"[\w-]+", choice[2]))
        return ""


Verbs: TypeAlias = "argparse._SubParsersAction[Parser]"
"""What a verb adds its own parser to."""
