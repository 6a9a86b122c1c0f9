"""The IPython extension, in real notebooks with a real kernel."""

from __future__ import annotations

import re
from typing import Any

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from nbclient import NotebookClient

from noclobber.integrations.notebook import load, unload

SETUP = """\
import torch, noclobber
%load_ext noclobber
def kept():
    x = torch.ones(3, requires_grad=True)
    return x, x.exp()
"""
CELLS = {
    "setup": SETUP,
    "silent": "%%noclobber\nx, y = kept()\ny.data.mul_(2)\ny.sum().backward()\nx.grad",
    "raised": "%%noclobber\nx, y = kept()\ny.mul_(2)\ny.sum().backward()",
    "leaf": "%%noclobber\nx = torch.ones(3, requires_grad=True)\nx.mul_(2)",
    "other error": "%%noclobber\n1 / 0",
    "plain": "%%noclobber\nx, y = kept()\ny.sum().backward()\nx.grad",
    "waits": "%%noclobber\nimport asyncio\nawait asyncio.sleep(0)\nprint('waited')",
    "ledger": "%%noclobber --ledger\nx, y = kept()\ny.sum().backward()",
    "wrong option": "%%noclobber --bogus\nprint('ran')",
    "not on": "%noclobber off",
    "alone": "%noclobber",
    "wrong word": "%noclobber foo",
    "exits": "%%noclobber\nraise SystemExit(3)",
    "timed": "%%time\n\n%%noclobber\nx, y = kept()\ny.data.mul_(2)\ny.sum().backward()\nx.grad",
    "times": "%%noclobber\n\n%%time\nx, y = kept()\ny.data.mul_(2)\ny.sum().backward()\nprint('ran')",
    "captured": "%%noclobber\n%%capture said\nx, y = kept()\ny.data.mul_(2)\ny.sum().backward()\nprint('ran')",
    "help": "%%noclobber?",
    "help of the line": "%noclobber?",
    "first line": "%%noclobber --ledger\nraise ValueError('a')",
    "on": "%noclobber on\nx, y = kept()",
    "a write": "y.data.mul_(2);",
    "backward": "y.sum().backward()",
    "nothing new": "y.sum()",
    "one while on": "%%noclobber\nx, y = kept()\ny.data.mul_(2)\ny.sum().backward()\nx.grad",
    "told before": "x.grad",
    "right while on": "%%noclobber\nx, y = kept()\ny.sum().backward()",
    "raised while on": "%%noclobber\nx, y = kept()\ny.mul_(2)\ny.sum().backward()",
    "off": "%noclobber off",
    "no longer": "x, y = kept()\ny.data.mul_(2)\ny.sum().backward()",
    "block": (
        "import warnings; warnings.simplefilter('ignore')\n"
        "with noclobber.watch() as seen:\n    x, y = kept()\n    y.data.mul_(2)\n    y.sum().backward()\nseen"
    ),
    "findings": "seen.findings",
    "unused": "noclobber.watch()",
    "warned": (
        "warnings.simplefilter('default')\nwith noclobber.watch():\n"
        "    x, y = kept()\n    y.data.mul_(2)\n    y.sum().backward()"
    ),
    "warned of a function": (
        "@noclobber.watch()\ndef f():\n    x, y = kept()\n    y.data.mul_(2)\n    y.sum().backward()\nf()"
    ),
    "installed": "handle = noclobber.install()",
    "raised when installed": "x, y = kept()\ny.mul_(2)\ny.sum().backward()",
    "uninstalled": "handle.uninstall()",
    "unload": "%unload_ext noclobber",
    "gone": "%noclobber on",
    "as it was": (
        "from noclobber.observe.arming import recorder\nfrom IPython import get_ipython\n"
        "recorder.is_armed(), get_ipython().custom_exceptions"
    ),
}


NOTHING = "noclobber: nothing found in 1 backward call"


@pytest.fixture(scope="module")
def outputs() -> dict[str, list[Any]]:
    """What each cell showed; the number of a cell is its place among them."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS.values()])
    NotebookClient(notebook, allow_errors=True, kernel_name="python3").execute()
    return {name: cell.outputs for name, cell in zip(CELLS, notebook.cells, strict=True)}


def number(name: str) -> int:
    return list(CELLS).index(name) + 1


def shown(outputs: list[Any], kind: str = "text/plain") -> str:
    """What noclobber showed below a cell."""
    return "".join(one.data[kind] for one in outputs if one.output_type == "display_data")


def traceback(outputs: list[Any]) -> str:
    (error,) = (one for one in outputs if one.output_type == "error")
    return re.sub(r"\x1b\[[\d;]*m", "", "\n".join(error.traceback))


def values(outputs: list[Any]) -> list[str]:
    return [one.data["text/plain"] for one in outputs if one.output_type == "execute_result"]


def streams(outputs: list[Any]) -> str:
    return "".join(one.text for one in outputs if one.output_type == "stream")


def test_a_cell_is_watched_and_keeps_its_value_and_its_lines(outputs):
    text = shown(outputs["silent"])
    assert text.startswith("error[NC201]: ")
    assert f"--> Cell In[{number('silent')}], line 3\n" in text
    assert f"::: Cell In[{number('setup')}], line 5\n" in text
    assert "/tmp" not in text
    assert values(outputs["silent"]) == ["tensor([5.4366, 5.4366, 5.4366])"]


def test_the_report_is_html_too(outputs):
    page = shown(outputs["silent"], "text/html")
    assert re.sub(r"<[^>]+>", "", page).replace("&gt;", ">").replace("&#x27;", "'").startswith("error[NC201]: silent")
    assert "<script" not in page
    assert "y.data.mul_(2)" in page


def test_an_error_is_explained_once_without_frames_of_noclobber(outputs):
    text = traceback(outputs["raised"])
    assert text.count("error[NC101]") == 1
    assert f"--> Cell In[{number('raised')}], line 3\n" in text
    assert "noclobber/" not in text
    assert shown(outputs["raised"]) == ""


def test_a_refused_write_is_explained(outputs):
    text = traceback(outputs["leaf"])
    assert text.count("error[NC301]") == 1
    assert "noclobber/" not in text


def test_no_frame_of_what_is_installed_is_shown(outputs):
    text = traceback(outputs["raised when installed"])
    assert text.count("error[NC101]") == 1
    assert "hidden" not in text
    assert "<noclobber" not in text


def test_another_error_is_as_it_is(outputs):
    text = traceback(outputs["other error"])
    assert "ZeroDivisionError: division by zero" in text
    assert "noclobber/" not in text
    assert shown(outputs["other error"]) == ""
    assert shown(outputs["exits"]) == ""


def test_a_right_cell_says_so(outputs):
    assert shown(outputs["plain"]) == NOTHING
    assert values(outputs["plain"]) == ["tensor([2.7183, 2.7183, 2.7183])"]
    assert streams(outputs["waits"]) == "waited\n"


def test_a_cell_has_a_ledger(outputs):
    assert f"kept for backward at the peak: 12 B in 1 storage; reached at Cell In[{number('setup')}], line 5" in (
        shown(outputs["ledger"])
    )
    assert "kept for backward" in shown(outputs["ledger"], "text/html")


def test_a_wrong_option_is_one_line_and_runs_nothing(outputs):
    assert streams(outputs["wrong option"]) == (
        "UsageError: unrecognized arguments: --bogus; `%%noclobber?` says what there is\n"
    )
    assert streams(outputs["not on"]).startswith("UsageError: noclobber is off; ")


def test_on_watches_from_cell_to_cell_and_tells_once(outputs):
    for name in ("on", "a write", "nothing new"):
        assert shown(outputs[name]) == ""
    text = shown(outputs["backward"])
    assert f"--> Cell In[{number('a write')}], line 1\n" in text
    assert f"::: Cell In[{number('backward')}], line 1\n" in text
    assert "`y` is saved here" in text
    assert shown(outputs["off"]).count("error[NC201]") == 2
    assert " cells\n" in shown(outputs["off"])
    assert outputs["no longer"] == []


def test_a_block_and_its_findings_show_themselves(outputs):
    (seen,) = (one for one in outputs["block"] if one.output_type == "execute_result")
    assert seen.data["text/plain"] == "<noclobber.watch: 1 finding in 1 backward call>"
    assert "error[NC201]" in seen.data["text/html"]
    (findings,) = values(outputs["findings"])
    assert findings.startswith(f"(<error NC201 [silent-write] at line 4 of Cell In[{number('block')}]: silent ")


def test_unloading_leaves_the_shell_as_it_was(outputs):
    assert streams(outputs["gone"]).startswith("UsageError: Line magic function `%noclobber` not found")
    assert values(outputs["as it was"]) == ["(False, ())"]


def test_a_cell_may_ask_while_all_are_watched(outputs):
    assert shown(outputs["one while on"]).count("error[NC201]") == 1
    assert values(outputs["one while on"]) == ["tensor([5.4366, 5.4366, 5.4366])"]
    assert shown(outputs["told before"]) == ""
    assert shown(outputs["right while on"]) == NOTHING
    assert traceback(outputs["raised while on"]).count("error[NC101]") == 1
    assert shown(outputs["raised while on"]) == ""


def test_it_stands_below_and_above_other_magics(outputs):
    text = shown(outputs["timed"])
    assert f"--> Cell In[{number('timed')}], line 5\n" in text
    assert values(outputs["timed"]) == ["tensor([5.4366, 5.4366, 5.4366])"]
    assert "Wall time" in streams(outputs["timed"])
    assert f"--> Cell In[{number('times')}], line 5\n" in shown(outputs["times"])
    assert streams(outputs["times"]).startswith("ran\n")
    assert "Wall time" in streams(outputs["times"])
    assert shown(outputs["captured"]).count("error[NC201]") == 1


def test_the_line_of_the_magic_is_shown_as_it_is(outputs):
    text = traceback(outputs["first line"])
    assert "%%noclobber --ledger" in text
    assert "run_line_magic" not in text


def test_the_words_of_the_line_magic_are_named(outputs):
    assert streams(outputs["alone"]) == (
        "UsageError: `%noclobber` takes on, off or report; `%%noclobber` watches one cell\n"
    )
    assert streams(outputs["wrong word"]) == (
        "UsageError: `%noclobber` takes on, off or report, not 'foo'; `%%noclobber` watches one cell\n"
    )


def test_a_watch_that_watched_nothing_says_so(outputs):
    (unused,) = (one for one in outputs["unused"] if one.output_type == "execute_result")
    assert "nothing found, because nothing was watched" in re.sub(r"<[^>]+>", "", unused.data["text/html"])


def test_the_cell_magic_is_whole_after_an_empty_line_and_has_help():
    shell = InteractiveShell()
    load(shell)
    try:
        assert shell.check_complete("%%noclobber")[0] == "incomplete"
        assert shell.check_complete("%%noclobber\nx = 1\n")[0] == shell.check_complete("%%time\nx = 1\n")[0]
        for kind, name in (("cell", "%%noclobber"), ("line", "%noclobber")):
            words = str(shell.magics_manager.magics[kind]["noclobber"].__doc__)
            assert name in words
            assert "%%%" not in words
            assert "--ledger" in words
    finally:
        unload(shell)


def test_a_warning_names_the_cell(outputs):
    for name, line in (("warned", 2), ("warned of a function", 1)):
        text = streams(outputs[name])
        assert text.startswith(f"Cell In[{number(name)}]:{line}: ClobberWarning: error[NC201]: silent")
        assert "/tmp" not in text
        assert "with noclobber" not in text
