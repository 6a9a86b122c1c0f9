"""Runs a program and gives the events that were recorded, before any rule explains them."""

import torch

from noclobber.model.source import source_line
from noclobber.observe.arming import recorder


class Heard:
    """A listener that keeps what it is told."""

    watching = True
    keeping = False
    on_write = "record"
    account = allocations = None
    everywhere = False

    def __init__(self, contents):
        self.contents = contents
        self.clobbers, self.events, self.failures = [], [], []

    def clobbered(self, clobbers, error):
        self.clobbers += clobbers

    def noticed(self, event):
        self.events.append(event)

    def refused(self, error, refusal):
        pass

    def checked(self, *, raised):
        pass

    def failed(self, lost):
        self.failures.append(lost)


def hear(program, contents=True):
    """What was heard while `program()` ran, and what it returned."""
    heard = Heard(contents)
    recorder.subscribe(heard)
    try:
        torch.default_generator.manual_seed(0)
        result = program()
    finally:
        recorder.unsubscribe(heard)
    assert not heard.failures
    return heard, result


def bare(program):
    """What a program returns without noclobber."""
    torch.default_generator.manual_seed(0)
    return program()


def is_marked(site, mark):
    """Whether a site's line ends with `# mark`."""
    span = site.span()
    return source_line(span.path, span.line).endswith(f"# {mark}")
