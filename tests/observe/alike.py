"""What a program does, bare and in every mode of noclobber: it must be the same."""

import functools
import warnings

import torch

import noclobber

MODES = {
    "install": noclobber.install,
    "versions": functools.partial(noclobber.watch, contents=False),
    "contents": noclobber.watch,
    "preserve": noclobber.preserve,
}


def outcome(program):
    """What a program returns, or the type and the first line of what it raises: a ClobberError stands for PyTorch's."""
    torch.default_generator.manual_seed(0)
    try:
        return "returned", program()
    except Exception as error:
        kind = "RuntimeError" if isinstance(error, noclobber.ClobberError) else type(error).__name__
        return "raised", kind, str(error).partition("\n")[0]


def outcome_in(mode, program):
    """The same under noclobber, which must not have failed itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", noclobber.ClobberWarning)
        with MODES[mode]() as around:
            result = outcome(program)
    assert around._session.report().coverage.lost == ()
    return result


def differing(program, modes=tuple(MODES)):
    """The modes in which a program does something else than bare, with what that is; empty where there is none."""
    bare = outcome(program)
    found = {mode: result for mode in modes if (result := outcome_in(mode, program)) != bare}
    return found | {"bare": bare} if found else {}
