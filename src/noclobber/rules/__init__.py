"""The catalogue of all rules in this folder. A rule is one module, and it imports no other rule.

A rule module holds
- its docstring: the page that `noclobber explain CODE` prints, with a bad and a good example;
- `CODE`, `NAME`, `SEVERITY`;
- `MESSAGES`: patterns of PyTorch's error texts that this rule explains, of this and older releases (may be empty);
- `find(event) -> Finding | None`: a pure function; None if the rule does not explain this event.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Sequence
from functools import cache
from typing import Protocol

from noclobber.model.finding import Finding, Severity
from noclobber.model.page import Page
from noclobber.model.silent import Event


class Rule(Protocol):
    """What a rule module provides."""

    __doc__: str | None
    CODE: str
    NAME: str
    SEVERITY: Severity
    MESSAGES: Sequence[re.Pattern[str]]

    def find(self, event: Event) -> Finding | None:
        """Return the finding for an event, None if this rule does not explain it."""
        ...


@cache
def catalogue() -> tuple[Rule, ...]:
    """Return every rule, sorted by code. NC399 takes refusals that no other rule takes, so it comes last."""
    names = [module.name for module in pkgutil.iter_modules(__path__) if module.name.startswith("nc")]
    rules: list[Rule] = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return tuple(sorted(rules, key=lambda rule: rule.CODE))


def explain(event: Event) -> Finding | None:
    """Return the finding of the first rule that explains an event; None if no rule does."""
    for rule in catalogue():
        finding = rule.find(event)
        if finding is not None:
            return finding.about(event)
    return None


def rule_of(code: str) -> Rule | None:
    """The rule of a code ("NC101", any case) or a name ("stale-save")."""
    return next((rule for rule in catalogue() if code.upper() == rule.CODE or code.lower() == rule.NAME), None)


def page(rule: Rule) -> Page:
    """Return the page of a rule."""
    return Page(rule.CODE, rule.NAME, rule.SEVERITY, (rule.__doc__ or "").strip())


def pages(findings: Sequence[Finding]) -> tuple[Page, ...]:
    """Return the pages of the rules of findings. A finding of another release may have none."""
    codes = {finding.code for finding in findings}
    return tuple(page(rule) for rule in catalogue() if rule.CODE in codes) if codes else ()


def rule_of_message(text: str) -> Rule | None:
    """The rule whose patterns recognise an error text, which may be a whole traceback."""
    return next((rule for rule in catalogue() if any(pattern.search(text) for pattern in rule.MESSAGES)), None)
