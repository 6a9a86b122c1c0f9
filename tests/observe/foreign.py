"""How tests of foreign writes run a program: what was found about it, and the lines that it marks with comments."""

import inspect
import warnings
from typing import NamedTuple

import noclobber
from noclobber.observe.arming.recorder import CONTEXT


class Found(NamedTuple):
    """The writes of all clobbers that were told, what the block reports, and what the program returned."""

    writes: list
    report: object
    value: object


def watched(program, *args):
    """Run a program under `watch(contents=True)`."""
    writes = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", noclobber.ClobberWarning)
        with noclobber.watch(contents=True) as watch:
            CONTEXT.bus.listeners.append(_Listener(writes))
            value = program(*args)
    return Found(writes, watch.report, value)


class _Listener:
    def __init__(self, writes):
        self.writes = writes

    def clobbered(self, clobbers, error):
        self.writes += [write for clobber in clobbers for write in clobber.writes]

    def noticed(self, event):
        raise AssertionError(event)

    def refused(self, error, refusal):
        raise AssertionError(refusal)

    def checked(self, *, raised):
        pass

    def failed(self, lost):
        raise AssertionError(lost)


def marked(program, mark):
    """The lines of a program, and of the functions inside it, that end with `# mark`."""
    lines, start = inspect.getsourcelines(program)
    return {start + number for number, line in enumerate(lines) if line.rstrip().endswith(f"# {mark}")}


def line(site):
    """The line of a site, None without one."""
    return None if site is None else site.span().line
