"""A release without one of the private names that noclobber uses: a person is told, and the program is as it is bare.

The names are found by walking the source, and each is taken away in a process that has not looked it up.
"""

import ast
import json
import operator
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.utils.checkpoint

import noclobber.observe

ROOT = Path(noclobber.observe.__file__).parent


def chain(node):
    """`torch._C._autograd` as ["torch", "_C", "_autograd"]; empty for anything else."""
    names = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return [node.id, *names] if isinstance(node, ast.Name) else []


def called(function):
    """The last name of what is called."""
    return getattr(function, "attr", getattr(function, "id", ""))


def looked_up(node):
    """The names that a call of `private.lookup` asks for; empty for anything else."""
    is_lookup = isinstance(node, ast.Call) and called(node.func) == "lookup"
    return [one.value for one in node.args if isinstance(one, ast.Constant)] if is_lookup else []


def at_import(path):
    """The nodes of a file that run when it is imported."""
    for statement in ast.parse(path.read_text()).body:
        if not isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            yield from ast.walk(statement)


def names_at_import():
    """What the package looks up when its modules are imported."""
    return [name for path in sorted(ROOT.rglob("*.py")) for node in at_import(path) for name in looked_up(node)]


def names_used():
    """What the package asks of torch by a private name, as a path from `torch`, with where it does."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and chain(node)[:1] == ["torch"]:
                found.setdefault(".".join(chain(node)[1:]), path.name)
            found |= dict.fromkeys(looked_up(node), path.name)
    return {name: where for name, where in found.items() if any(map(is_private, name.split(".")))}


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


PROGRAM = """
import importlib, json, operator, os, pkgutil, sys, warnings
import torch, torch.utils.checkpoint, torch.multiprocessing.reductions, torch.jit._builtins, torch.utils._device
def values():
    torch.manual_seed(0)
    x, w = torch.ones(3, requires_grad=True), torch.ones(3)
    y = torch.utils.checkpoint.checkpoint(lambda x: (x * w).sigmoid(), x * 1, use_reentrant=False)
    z = x.exp()
    z.data.mul_(2)
    (y.sum() + z.sum()).backward()
    return x.grad.tolist()
def without(name):
    owner, _, last = name.rpartition(".")
    owner = operator.attrgetter(owner)(torch) if owner else torch
    try:
        delattr(owner, last)
    except (TypeError, AttributeError):
        return "can't be taken away"
    try:
        bare = values()
        vars(torch.ops.aten).pop("exp", None)
        torch.ops.aten.exp.default  # as a program that is the first to ask for an operator
    except Exception:
        return "torch itself needs it"
    warnings.simplefilter("ignore")
    try:
        with noclobber.watch(contents=True) as seen:
            watched = values()
    except noclobber.UnsupportedTorch as told:
        return "told" if name in str(told) and "are supported" in str(told) else f"puzzling: {told}"
    coverage = seen.report.coverage
    lost = any(name in one.why for one in coverage.lost)
    return ("same" if watched == bare else f"changed: {watched}") + (", lost" if lost else f", untold {coverage.lost}")
def try_each(names):
    for name in names:
        sys.stdout.flush()
        if not os.fork():
            print(json.dumps([name, without(name)]), flush=True)
            os._exit(0)
        os.wait()
values()  # torch imports much for the first backward and the first region: a second, in each fork
import noclobber
first, later = map(json.loads, sys.argv[1:])
try_each(first)
import noclobber.observe
for one in pkgutil.walk_packages(noclobber.observe.__path__, "noclobber.observe."):
    if ".fake" not in one.name and ".native" not in one.name:
        importlib.import_module(one.name)
try_each(later)
"""


def outcomes(names):
    """What happens in a process where a name is taken away before it is looked up, for each name."""
    first = [name for name in names if name in names_at_import()]
    lists = [json.dumps(some) for some in (first, [name for name in names if name not in first])]
    run = subprocess.run([sys.executable, "-c", PROGRAM, *lists], capture_output=True, text=True, check=True)
    return dict(json.loads(line) for line in run.stdout.splitlines())


def is_there(name):
    try:
        operator.attrgetter(name)(torch)
    except AttributeError:
        return False
    return True


OF_EVERYONE = ("torch.utils._python_dispatch", "torch.utils._pytree")
"""Modules that PyTorch's own pages on modes and subclasses import."""


def imported(statement):
    """The modules that a statement imports."""
    if isinstance(statement, ast.Import):
        return [one.name for one in statement.names]
    return [f"{statement.module}.{one.name}" for one in statement.names]


def test_no_name_is_asked_for_when_a_module_is_imported():
    """But in functions, and by `private.lookup` in torch_api/ for what everything needs: so that a name that is missing
    is told in plain words."""
    for path in sorted(ROOT.rglob("*.py")):
        assert "torch_api" in path.parts or not any(map(looked_up, at_import(path))), path.name
        for statement in ast.parse(path.read_text()).body:
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                for name in imported(statement):
                    private = name.startswith("torch.") and any(map(is_private, name.split(".")))
                    assert not private or name.startswith(OF_EVERYONE) or name == "torch._C", f"{path.name}: {name}"
            if isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)):
                continue
            for node in ast.walk(statement):
                names = chain(node)
                private = names[:1] == ["torch"] and any(map(is_private, names[1:]))
                assert not private or names == ["torch", "_C"], f"{path.name}: {'.'.join(names)}"


def noclobber_without(name, module, words, folder):
    """What a command of noclobber ends with where `torch._C` lacks a name when a module of noclobber is imported."""
    (folder / "program.py").write_text("import torch\nprint(torch.ones(1).tolist())\n")
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == '{module}':\n"
        f"            import torch; vars(torch._C).pop('{name}', None)\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    command = [sys.executable, "-m", "noclobber", *words]
    environ = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, env=environ, cwd=folder, check=False)


def test_noclobber_run_says_why_nothing_was_watched(tmp_path):
    words = ["run", "program.py"]
    run = noclobber_without("_current_autograd_node", "noclobber.observe.arming.recorder", words, tmp_path)
    assert (run.returncode, run.stdout) == (0, "[1.0]\n")
    assert run.stderr.startswith("noclobber: nothing was watched: torch ")
    assert "has no `torch._C._current_autograd_node`" in run.stderr
    assert len(run.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "name", "module"),
    [
        (["explain", "relu"], "_dispatch_get_all_op_names", "noclobber.observe.torch_api.dispatch.registry"),
        (["fix", "program.py"], "_current_autograd_node", "noclobber.observe.torch_api.autograd.engine_state"),
    ],
)
def test_other_verbs_say_which_name_is_missing(words, name, module, tmp_path):
    run = noclobber_without(name, module, words, tmp_path)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith(f"noclobber: error: torch {torch.__version__} has no `torch._C.{name}`; torch ")
    assert len(run.stderr.splitlines()) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each name is taken away in a fork")
def test_each_name_is_told_of_when_it_is_missing():
    names = [name for name in names_used() if is_there(name) and name != "_C"]
    seen = outcomes(names)
    assert seen.keys() == set(names)
    fine = ("told", "same", "can't be taken away", "torch itself")
    assert not {name: told for name, told in seen.items() if not told.startswith(fine)}
    assert sum(told in ("told", "same, lost") for told in seen.values()) > 20
