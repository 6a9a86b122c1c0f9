"""A report shows a change only where applying it as it stands gives the right program; elsewhere it shows words."""

from __future__ import annotations

import linecache
import warnings
from dataclasses import replace

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

import noclobber
from noclobber.mend import cures
from noclobber.mend.cures import candidates
from noclobber.mend.scene import KEEPS_TYPE, Scene, as_it_ran
from noclobber.mend.shown import advised
from noclobber.model.plain import built
from noclobber.model.reports.finding import Finding
from noclobber.model.reports.report import Report, finding_out
from tests.cli.running import noclobber as noclobber_runs
from tests.mend.programs import END, HEAD, READ_ELSEWHERE, REFUSED, SCRIPTS, SOUND, WORDS
from tests.tensors import all_equal

pytestmark = pytest.mark.usefixtures("looks_anew")


class Program:
    """A program in a file. `gradients` runs it as it is, or as it is after edits."""

    def __init__(self, folder, body):
        self.path, self.text = str(folder / "program.py"), HEAD + body + END

    def names(self, text):
        with open(self.path, "w") as file:
            file.write(text)
        linecache.checkcache(self.path)
        names = {"__name__": "program"}
        exec(compile(text, self.path, "exec"), names)
        return names

    def gradients(self, text=None, around=None):
        names = self.names(text or self.text)
        if around is None:
            names["run"]()
        else:
            with around:
                names["run"]()
        return names["gradients"]()

    def findings(self):
        names, seen = self.names(self.text), noclobber.watch(contents=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with seen:
                    names["run"]()
            except RuntimeError:
                pass
        return seen.findings


def applied(text, edits):
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)

    def at(line, column):
        return starts[line - 1] + column - 1

    for edit in sorted(edits, key=lambda one: (one.span.line, one.span.column), reverse=True):
        span = edit.span
        text = text[: at(span.line, span.column)] + edit.replacement + text[at(span.end_line, span.end_column) :]
    return text


def first_changes(findings):
    assert findings
    return [one.suggestions[0].edits for one in findings if one.severity == "error"]


@pytest.mark.parametrize("body", [*SOUND.values(), *READ_ELSEWHERE.values()], ids=[*SOUND, *READ_ELSEWHERE])
def test_a_change_gives_the_right_gradients_and_nothing_else_to_find(tmp_path, body):
    program = Program(tmp_path, body)
    findings = program.findings()
    assert_goes_by_no_words_and_sound_first(findings)
    for edits in first_changes(findings):
        assert edits
        changed = applied(program.text, edits)
        clones = saved_tensors_hooks(lambda saved: saved.detach().clone(), lambda saved: saved.clone())
        right = program.gradients(_seen_by_hooks(program.text), clones)
        assert all_equal(program.gradients(changed), right)
        mended = Program(tmp_path, body)
        mended.text = changed
        assert not mended.findings()


@pytest.mark.parametrize("body", SCRIPTS.values(), ids=SCRIPTS)
def test_a_change_of_a_script_is_right_and_not_shown_where_its_functions_are_called_from_elsewhere(tmp_path, body):
    program = Program(tmp_path, body)
    (tmp_path / "script.py").write_text(f"{program.text}\nrun()\n")
    noclobber_runs(["run", "--format", "json", "-o", "report.json", "script.py"], tmp_path)
    finding, *_ = Report.from_json((tmp_path / "report.json").read_text()).findings
    edits = finding.suggestions[0].edits
    assert edits
    clones = saved_tensors_hooks(lambda saved: saved.detach().clone(), lambda saved: saved)
    assert all_equal(program.gradients(applied(program.text, edits)), program.gradients(around=clones))
    assert edits not in first_changes(program.findings())


@pytest.mark.parametrize(
    ("made", "is_known"),
    [
        ("", True),
        ("wide = torch.ones(4, dtype=torch.float64)", False),
        ("kept = {'wide': [torch.ones(4, dtype=torch.float64)]}", False),
        ("h += torch.ones(4, dtype=torch.float64)", False),
        ("wide = torch.float64\n    h += torch.ones(4, dtype=wide)", False),
        ("h += made()", False),
    ],
)
def test_out_of_place_the_type_stays_unless_a_wider_one_is_in_reach(tmp_path, made, is_known):
    body = f"""
def run():
    {made}
    h = (x @ w).tanh()
    h += 1
    h.sum().backward()
def made():
    return torch.ones(4, dtype=torch.double)
def told():
    return w.grad.double().norm()
"""
    program = Program(tmp_path, body)
    program.text = program.text.replace(made, "").replace("    h += 1", f"    {made}") if "+=" in made else program.text
    program.text = program.text.replace(", dtype=torch.float64, requires_grad", ", requires_grad")
    ((edit,),) = first_changes(program.findings())
    assert ("clone" not in edit.replacement) is is_known


def test_memory_of_a_pack_hook_that_the_file_itself_fills(tmp_path):
    (tmp_path / "script.py").write_text("""
import torch
slot = torch.empty(3)
def pack(saved):
    return slot.copy_(saved)
w = torch.ones(3, requires_grad=True)
with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept):
    y = (w * w).exp()
slot.add_(1)
y.sum().backward()
""")
    done = noclobber_runs(["run", "--format", "json", "-o", "report.json", "script.py"], tmp_path)
    assert "internal error" not in done.stderr
    report = Report.from_json((tmp_path / "report.json").read_text())
    assert {one.code for one in report.findings} == {"NC204"}
    assert report.coverage.lost == ()


@pytest.mark.parametrize(("filled", "is_shown"), [("torch.full((1,), 2.0)", True), ("torch.empty(1)", False)])
def test_a_write_under_no_grad_is_not_shown_where_another_file_has_one_that_pytorch_refuses_next(
    tmp_path, filled, is_shown
):
    more = "" if is_shown else "\n        for _ in range(1):\n            self.gain.fill_(2.0)"
    (tmp_path / "layers.py").write_text(f"""
import torch
class Gain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = torch.nn.Parameter({filled}){more}
    def forward(self, h):
        kept = [h]
        kept[0] = h * self.gain
        return kept[0]
""")
    (tmp_path / "script.py").write_text("""
import torch
from layers import Gain
fc = torch.nn.Linear(4, 4)
fc.bias.fill_(0.1)
Gain()(fc(torch.ones(3, 4))).sum().backward()
""")
    done = noclobber_runs(["run", "--format", "json", "-o", "report.json", "script.py"], tmp_path)
    assert "internal error" not in done.stderr
    (finding,) = Report.from_json((tmp_path / "report.json").read_text()).findings
    assert bool(finding.suggestions[0].edits) is is_shown


def reworded(finding):
    """The finding as a report brings it back, with other words everywhere."""
    told = built(Finding, finding_out(finding))
    return replace(
        told,
        message="other words",
        labels=tuple(replace(one, text="other words") for one in told.labels),
        notes=("other words",),
        suggestions=tuple(replace(one, message="other words", edits=()) for one in told.suggestions),
    )


def assert_goes_by_no_words_and_sound_first(found):
    findings = [replace(one, suggestions=tuple(replace(help, edits=()) for help in one.suggestions)) for one in found]
    told = [reworded(one) for one in findings]
    changes = [[help.edits for help in one.suggestions if help.edits] for one in advised(findings)]
    assert [[help.edits for help in one.suggestions if help.edits] for one in advised(told)] == changes
    tried = [[(one.edits, one.cost, one.way) for one in candidates(each, as_it_ran)] for each in findings]
    assert [[(one.edits, one.cost, one.way) for one in candidates(each, as_it_ran)] for each in told] == tried
    for finding in found:
        ordered = candidates(finding, as_it_ran)
        for at, one in enumerate(ordered):
            assert not (one.is_sound and any({*one.edits} < {*more.edits} for more in ordered[:at]))
        for cure in cures.CURES:
            sound = [one.is_sound for one in cure(Scene(finding, as_it_ran))]
            assert sound[:1] == [True] or finding.writes[1:] or not any(sound), cure


def _seen_by_hooks(text):
    """What a hook on a gradient writes is no save, nor is an attribute of a `ctx`, what a pack hook returns, or what a
    backward writes into a save for the next one: there the program is written as it should have been. What a region of
    a checkpoint reads again is none either: there the region runs once."""
    text = text.replace("gradient.mul_(3)", "gradient * 3").replace("gradient.mul_(2)", "gradient = gradient * 2")
    text = text.replace("gradient = handed", "gradient = handed.clone()").replace("ctx.a = a", "ctx.a = a.clone()")
    text = text.replace("ctx.plan, ctx.by = plan,", "ctx.plan, ctx.by = plan.clone(),")
    text = text.replace("return slot, saved.shape", "return saved.detach().clone(), saved.shape")
    text = text.replace("    return slot\n", "    return saved.detach().clone()\n")
    text = text.replace("slope = s.mul_(1 - s)", "slope = s * (1 - s)").replace(
        "from torch.utils.checkpoint import checkpoint",
        "def checkpoint(region, *given, use_reentrant):\n    return region(*given)",
    )
    return text.replace("        handed[:, 0] *", "        handed = handed.clone()\n        handed[:, 0] *")


@pytest.mark.parametrize(("body", "right"), REFUSED.values(), ids=REFUSED)
def test_a_change_makes_what_was_refused_right(tmp_path, body, right):
    program = Program(tmp_path, body)
    findings = program.findings()
    assert_goes_by_no_words_and_sound_first(findings)
    (edits,) = set(first_changes(findings))
    names = program.names(program.text)
    expected = [one if one is None else one.detach() for one in right(names["x"], names["w"])]
    found = program.gradients(applied(program.text, edits))
    assert all_equal(found, expected, torch.allclose)


@pytest.mark.parametrize("body", WORDS.values(), ids=WORDS)
def test_where_no_change_is_sound_there_are_words(tmp_path, body):
    findings = Program(tmp_path, body).findings()
    assert findings
    assert_goes_by_no_words_and_sound_first(findings)
    assert all(one.suggestions for one in findings)
    assert not any(help.edits for one in findings for help in one.suggestions)


@pytest.mark.parametrize(("below", "is_known"), [("", True), ("print(z.sum())", False)])
def test_a_variable_of_the_file_holds_what_is_written_only_if_it_is_read_again(tmp_path, below, is_known):
    body = f"""
def coupled(h):
    a, b = h.chunk(2, dim=1)
    b *= a.exp()
    return torch.cat([a, b], dim=1)
z = x @ w
coupled(z).sum().backward()
{below}
"""
    program, seen = Program(tmp_path, body), noclobber.watch()
    with pytest.raises(RuntimeError), seen:
        program.names(program.text)
    (finding,) = seen.findings
    assert bool(finding.suggestions[0].edits) is is_known
    if is_known:
        changed = program.names(applied(program.text, finding.suggestions[0].edits))
        a, b = (changed["x"] @ changed["w"]).detach().chunk(2, dim=1)
        slopes = torch.cat([1 + b * a.exp(), a.exp()], dim=1)
        assert torch.allclose(changed["w"].grad, changed["x"].detach().T @ slopes)


@pytest.mark.parametrize(
    ("each", "last", "is_tried"),
    [
        ("kept.append(t.shape)", "pass", True),
        ("t = t + 0", "kept.append(t)", False),
        ("kept.append(t.sum())", "pass", False),
        ("pass", "kept.append(t.sum())", False),
    ],
)
def test_a_new_tensor_is_tried_only_where_no_other_function_reads_the_old_one(tmp_path, each, last, is_tried):
    body = f"""
def centred(t):
    y = (t @ w).sum()
    t -= t.mean()
    return y + t[0, 0].item()
def run():
    kept = []
    for turn in range(3):
        t = x.detach().clone()
        centred(t).backward()
        {each}
    {last}
"""
    (finding,) = Program(tmp_path, body).findings()
    texts = [edit.replacement for one in candidates(finding, as_it_ran) for edit in one.edits]
    assert ("t = t - t.mean()" in texts) is is_tried
    assert ".clone()" in texts


def test_where_one_finding_has_no_change_the_others_show_none(tmp_path):
    first = SOUND["added onto"].replace("def run", "def first")
    last = WORDS["a captured result"].replace("def run", "def last")
    both = "\ndef run():\n    try:\n        first()\n    except RuntimeError:\n        last()\n"
    findings = Program(tmp_path, first + last + both).findings()
    assert len(findings) == 2
    assert not any(help.edits for one in findings for help in one.suggestions)


def test_findings_of_one_backward_show_one_change(tmp_path):
    body = """
def run():
    h, k = (x @ w).exp(), (x @ w).tanh()
    y = h + k
    h += 1
    k += 1
    (y + h * k).sum().backward()
"""
    program = Program(tmp_path, body)
    findings = program.findings()
    assert len(findings) == 2
    first, last = (one.suggestions[0].edits for one in findings)
    assert set(first) == set(last)
    clones = saved_tensors_hooks(lambda saved: saved.detach().clone(), lambda saved: saved)
    assert all_equal(program.gradients(applied(program.text, first)), program.gradients(around=clones))


def test_each_finding_shows_its_own_change(tmp_path):
    first = SOUND["added onto"].replace("def run", "def first")
    last = SOUND["added onto"].replace("def run", "def last")
    both = "\ndef run():\n    try:\n        first()\n    except RuntimeError:\n        last()\n"
    program = Program(tmp_path, first + last + both)
    findings = program.findings()
    assert len(findings) == 2
    lines = [{edit.span.line for edit in one.suggestions[0].edits} for one in findings]
    assert all(lines)
    assert lines[0].isdisjoint(lines[1])


CAST = """
import torch
net = torch.nn.Linear(3, 1)
def run():
    with {}:
        for _ in range(2):
            net.weight.grad = None
            net(torch.ones(2, 3)).sum().backward()
            with torch.no_grad():
                net.weight.sub_(0.5)
"""


@pytest.mark.parametrize(
    ("entered", "mended"),
    [
        ('torch.autocast("cpu", dtype=torch.bfloat16)', True),
        ('torch.autocast("cpu", torch.bfloat16, True)', False),
        ('torch.autocast("cpu", dtype=torch.bfloat16, **{"enabled": True})', False),
        (
            'torch.autocast("cpu", dtype=torch.bfloat16), torch.autocast("cpu", enabled=False), torch.autocast("cpu")',
            False,
        ),
    ],
)
def test_an_autocast_that_is_known_keeps_no_cast(tmp_path, entered, mended):
    program = Program(tmp_path, CAST.format(entered))
    stale = [one for one in program.findings() if one.code == "NC211"]
    assert stale
    edits = {edit for one in stale for help in one.suggestions for edit in help.edits}
    assert bool(edits) is mended
    if mended:
        again = Program(tmp_path, CAST.format(entered))
        again.text = applied(program.text, edits)
        assert "cache_enabled=False" in again.text
        assert not again.findings()


@pytest.mark.parametrize("name", sorted(KEEPS_TYPE))
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16])
def test_the_result_has_the_type_of_the_tensor_whatever_is_given(name, dtype):
    """A fact of PyTorch on which diffs rest that write a mask or indices out of place."""
    tensor, at, mask = torch.ones(2, 2).to(dtype), torch.tensor([0]), torch.ones(2, 2, dtype=torch.bool)
    row, wide = torch.ones(1, 2).to(dtype), torch.ones((), dtype=torch.int64 if dtype is torch.bool else torch.float64)
    given = {
        "index_add_": (0, at, row),
        "index_copy_": (0, at, row),
        "index_fill_": (0, at, 1),
        "masked_fill_": (mask, wide),
        "masked_scatter_": (mask, tensor),
        "scatter_": (1, at[:, None], 1),
        "scatter_add_": (1, at[:, None], row),
        "scatter_reduce_": (1, at[:, None], row, "amax"),
    }
    assert getattr(tensor, name.removesuffix("_"))(*given[name]).dtype is dtype
