"""Where in the program a line runs: the modules that are being called, and the calls that lead to it."""

from __future__ import annotations

import functools
import os
import sysconfig
from types import CodeType, FrameType

import torch

from noclobber.model.seen.events import MOST_CALLS
from noclobber.model.source import Owner, Site, is_plumbing, owner_of
from noclobber.observe.describe.reachable import variables
from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.frames import outward

_SCRIPTS = sysconfig.get_path("scripts")
"""Where pip puts commands such as `noclobber` and `pytest`: they start the program, and are no part of it."""


@functools.cache
def _module_call() -> CodeType:
    """Return the code by which every module is called; its frames hold the module as `self`."""
    code: CodeType = private.lookup("nn.Module._call_impl").__code__
    return code


def modules_called(frame: FrameType | None) -> list[tuple[torch.nn.Module, FrameType]]:
    """Return the modules that are being called and the frames that call them, the outermost first."""
    call = _module_call()
    return [(one.f_locals["self"], one) for one in outward(frame) if one.f_code is call][::-1]


def module_path(frame: FrameType) -> str:
    """Return the innermost module that is being called, as the program calls it: "net.blocks.0.conv1"; empty for none.

    A whole model that no variable holds goes by the name of its class.
    """
    called = modules_called(frame)
    if not called:
        return ""
    (root, at), inner = called[0], called[-1][0]
    within = next((name for name, one in root.named_modules() if one is inner), type(inner).__name__)
    return ".".join(filter(None, (_name_of(root, at), within)))


def _name_of(root: torch.nn.Module, call: FrameType) -> str:
    """Return the variable of the line that calls a module, or the attribute of its `self`, that holds the module."""
    callers = outward(call.f_back)
    frame = next((one for one in callers if owner_of(one.f_code.co_filename) is not Owner.TORCH), None)
    if frame is not None:
        own = variables(frame)
        within = getattr(own.get("self"), "__dict__", {})
        for prefix, scope in (("", own), ("self.", within), ("", frame.f_globals)):
            for name, value in list(scope.items()):
                if value is root and isinstance(name, str):
                    return prefix + name
    return type(root).__name__


def calls_to(frame: FrameType | None) -> tuple[Site, ...]:
    """Return the places from the program's first line to the one that a frame runs, without those in torch.

    Of more than `MOST_CALLS`, the first one and the last ones.
    """
    found: list[tuple[Site, bool]] = []
    for one in outward(frame):
        path = one.f_code.co_filename
        is_users = owner_of(path) is Owner.USER and os.path.dirname(path) != _SCRIPTS
        if is_users or (owner_of(path) is Owner.LIBRARY and not is_plumbing(path)):
            found.append((Site(one.f_code, one.f_lasti), is_users))
    while found and not found[-1][1]:
        found.pop()
    sites = [site for site, _ in reversed(found)]
    return tuple(sites if len(sites) <= MOST_CALLS else sites[:1] + sites[-MOST_CALLS:])
