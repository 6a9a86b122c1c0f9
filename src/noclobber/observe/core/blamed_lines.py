"""Makes warnings blame the program's lines, and not noclobber's."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.torch_api.frames import led_to


def arm(_: Context, way: Way) -> None:
    """Make a warning that blames a line of noclobber blame the line of the program that led there.

    A warning from C++ inside a wrapper blames the innermost Python frame. Since torch 2.15 an operator that a kernel
    calls collects its own warnings and blames the kernel (tests/observe/core/test_warnings.py). Filters that name a
    module also see noclobber's module: a warning that they drop there is not shown.
    """
    show: Callable[[warnings.WarningMessage], None] = warnings._showwarnmsg  # type: ignore[attr-defined]

    def _showwarnmsg(message: warnings.WarningMessage) -> None:
        blamed = way.guarded(led_to, message)
        if blamed is None:
            show(message)
            return
        names = blamed.f_globals
        warnings.warn_explicit(
            message.message,
            message.category,
            blamed.f_code.co_filename,
            blamed.f_lineno,
            names.get("__name__", "<string>"),
            names.setdefault("__warningregistry__", {}),
            source=message.source,
        )

    way.patches.put(warnings, "_showwarnmsg", _showwarnmsg)
