"""`noclobber doctor`: what works here, on one screen."""

from __future__ import annotations

import argparse
import sys

from noclobber.cli.parser import Verbs
from noclobber.cli.printing import out, refuse, say
from noclobber.render.text import visible
from noclobber.render.window.color import width_of
from noclobber.session.imports import torch_needed


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "doctor",
        help="say what works here",
        description="Say which versions are installed, which ways of seeing work with them, and whether a small silent "
        "error is found: what a bug report needs. The exit status is 0 if it is found.",
    )
    parser.add_argument(
        "--build-native",
        action="store_true",
        help="first build the native part, which makes watching cheaper; it takes a C++ compiler and about a minute, "
        "once for each torch and each Python",
    )
    parser.add_argument(
        "--clean",
        action="store_true",
        help="instead remove what noclobber keeps outside of its package: its cache with the native part, and the "
        "files of runs that are over",
    )
    parser.set_defaults(carry_out=carry_out)


def carry_out(options: argparse.Namespace) -> int:
    """`noclobber doctor`: one screen on stdout; before it, the progress of building the native part on stderr."""
    if options.clean:
        if options.build_native:
            options.parser.error("`--clean` removes what `--build-native` builds: leave one of them out")
        return _clean()
    from noclobber.cli.verbs.examination import examine

    if options.build_native:
        with torch_needed():
            from noclobber.observe.native import build
        try:
            file = build.build(lambda step: say(f"native part: {step} ..."))
        except build.NotBuilt as reason:
            return refuse(f"the native part is not built: {reason}")
        say(f"native part: built as {file}")
    done = examine()
    out(done.text(width_of(sys.stdout)))
    return 0 if done.works else 1


def _clean() -> int:
    """Remove what noclobber keeps, and say what was removed and what stays; return 1 if something stays."""
    from noclobber.processes.cleaning import clean

    removed, left = clean()
    for folder in removed:
        out(f"removed {visible(folder)}\n")
    for folder in left:
        say(f"noclobber: `{folder}` stays: a run uses it, or it may not be removed")
    if not removed and not left:
        out("nothing to remove\n")
    return 1 if left else 0
