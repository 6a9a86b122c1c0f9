"""The catalogue of all rules. A rule is one module in a folder of its kind, and it imports no other rule.

A rule module holds
- its docstring: the page that `noclobber explain CODE` prints, with a bad and a good example. Its first line begins
  with the code and the name: `NC101 stale-save: `;
- `SEVERITY`, for a rule whose findings are no errors;
- `find(event) -> Finding | None`: a pure function; None if the rule does not explain this event. The finding has no
  rule yet;
- `MESSAGES`, if it explains an error of PyTorch: its texts (`rules/shared/texts.py`).

A rule about a refused write needs only its page and `TEXTS`: what is said of each text of PyTorch
(`rules/shared/refusing.py`). It has `find` only where more than the text decides.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from types import ModuleType

from noclobber.model.reports.finding import Finding
from noclobber.model.reports.page import Page
from noclobber.model.seen.silent import Event


@dataclass(frozen=True, slots=True)
class Rule(Page):
    """A page, and the function that finds what the page is about."""

    texts: Sequence[str]
    """Those of PyTorch that it explains (`rules/shared/texts.py`)."""
    find: Callable[[Event], Finding | None]


@cache
def catalogue() -> tuple[Rule, ...]:
    """Return every rule, sorted by code. NC399 takes refusals that no other rule takes, so it comes last."""
    names = [module.name for module in pkgutil.walk_packages(__path__, f"{__name__}.")]
    rules = [_rule(importlib.import_module(name)) for name in names if name.rpartition(".")[2].startswith("nc")]
    return tuple(sorted(rules, key=lambda rule: rule.code))


def _rule(module: ModuleType) -> Rule:
    from noclobber.rules.shared.refusing import refused

    text = (module.__doc__ or "").strip()
    code, name = text.partition(":")[0].split()
    told = getattr(module, "TEXTS", ())
    texts = getattr(module, "MESSAGES", [each for one in told for each in one.texts])
    find = getattr(module, "find", partial(refused, told))
    return Rule(code, name, getattr(module, "SEVERITY", "error"), text, tuple(texts), find)


def explain(event: Event) -> Finding | None:
    """Return the finding of the first rule that explains an event; None if no rule does."""
    for rule in catalogue():
        if (found := rule.find(event)) is not None:
            named = replace(found, code=rule.code, rule=rule.name, severity=rule.severity)
            return named.about(found.event or event)
    return None


def rule_of(code: str) -> Rule | None:
    """The rule of a code ("NC101", any case) or a name ("stale-save")."""
    return next((rule for rule in catalogue() if code.upper() == rule.code or code.lower() == rule.name), None)


def pages(findings: Sequence[Finding]) -> tuple[Page, ...]:
    """Return the pages of the rules of findings. A finding of another release may have none."""
    codes = {finding.code for finding in findings}
    return tuple(rule for rule in catalogue() if rule.code in codes) if codes else ()
