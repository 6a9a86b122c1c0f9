"""What `watch` tells: one note for an error, and a warning at the line or the function that it is about."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import random
import re
import threading
import warnings

import pytest
import torch

import noclobber
from noclobber import render
from noclobber.observe.arming import recorder


def silent():
    h = torch.ones(3, requires_grad=True).sigmoid()
    h.data.mul_(2)
    h.sum().backward()


def another():
    silent()
    another = torch.ones(3, requires_grad=True).exp()
    another.data.mul_(3)
    another.sum().backward()


def product_of_one(h):
    y = h * h
    h += 1
    return y


def three_parts():
    parts = [torch.ones(3, requires_grad=True).exp() for _ in range(3)]
    for part in parts:
        part += 1
    sum(part.sum() for part in parts).backward()


def warned(watched):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        watched()
    (one,) = told
    assert one.category is noclobber.ClobberWarning
    return one.filename, one.lineno


def test_an_error_has_one_note_that_counts_all_saves():
    parts = noclobber.watch()(three_parts)
    with pytest.raises(noclobber.ClobberError) as raised:
        parts()
    (note,) = raised.value.__notes__
    assert note.count("error[NC101]") == 1
    assert "seen 3 times at these lines" in note


def test_a_block_is_warned_about_at_its_line():
    def block():
        with noclobber.watch():
            silent()

    start = block.__code__.co_firstlineno
    assert warned(block) == (__file__, start + 1)


def test_a_function_is_warned_about_where_it_is_and_not_at_its_caller():
    @noclobber.watch()
    def function():
        silent()

    assert warned(function) == (__file__, function.__wrapped__.__code__.co_firstlineno)


def test_a_function_is_warned_about_once_by_default():
    function = noclobber.watch()(silent)
    function.__wrapped__.__globals__.pop("__warningregistry__", None)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        function()
        function()
    assert len(told) == 1


def test_blocks_leave_python_with_what_it_knows_of_the_warnings_that_it_has_shown():
    with noclobber.watch():
        pass  # the first one registers its kernels
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for _ in range(2):
            warnings.warn("of the program", stacklevel=1)
            with noclobber.watch():
                pass
    assert len(told) == 1


@pytest.mark.smoke
def test_a_line_that_saves_two_tensors_is_one_finding_with_both_fields():
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(noclobber.ClobberError), noclobber.watch() as seen:
        product_of_one(x * 1).sum().backward()
    (finding,) = seen.findings
    assert sorted(finding.fields) == ["other", "self"]
    assert [edit.replacement for edit in finding.suggestions[0].edits] == [".clone()", ".clone()"]


def meant():
    h = torch.ones(3, requires_grad=True).sigmoid()
    h.data.mul_(2)  # noclobber: ignore[NC201] as meant
    h.sum().backward()


def test_a_comment_on_the_line_keeps_a_finding_out():
    function = noclobber.watch()(meant)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        function()
        with noclobber.watch() as seen:
            meant()
    assert seen.findings == ()
    (suppressed,) = seen.report.suppressed
    assert (suppressed.finding.code, suppressed.kind, suppressed.reason) == ("NC201", "inSource", "as meant")


def test_a_comment_keeps_a_finding_out_of_the_news_of_steps():
    seen = noclobber.watch(every=10)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for function in (silent, meant, silent):
            with seen:
                function()
    assert len(told) == 1
    assert (len(seen.findings), len(seen.report.suppressed)) == (1, 1)


def steps(watched, n, wrong=()):
    """Run n steps, of which some are wrong; return the numbers of those that warned."""
    told = []
    for step in range(1, n + 1):
        with warnings.catch_warnings(record=True) as here:
            warnings.simplefilter("always")
            with watched:
                (silent if step in wrong else torch.ones)(*() if step in wrong else (3,))
        told += [step] * len(here)
    return told


@pytest.mark.smoke
def test_every_watches_the_first_steps_and_then_some():
    seen = noclobber.watch(every=10)
    assert steps(seen, 45, wrong=(5, 15, 29)) == []
    assert seen.findings == ()
    assert seen.report.coverage.unseen[-1] == "38 of 45 steps (`every=10` watches the others)"


def test_every_warns_once_of_a_finding_and_counts_it():
    seen = noclobber.watch(every=10)
    assert steps(seen, 45, wrong=range(45)) == [1]
    (finding,) = seen.findings
    assert (finding.code, finding.count) == ("NC201", 7)


def test_every_leaves_torch_as_it_is_between_watched_steps():
    seen = noclobber.watch(every=10)
    for step in range(1, 15):
        with seen:
            assert recorder.is_armed() is (step in (1, 2, 3, 10))
        assert not recorder.is_armed()


def test_every_explains_an_error_of_a_watched_step_only():
    function = noclobber.watch(every=10)(three_parts)
    for step in range(1, 11):
        with pytest.raises(RuntimeError) as raised:
            function()
        assert isinstance(raised.value, noclobber.ClobberError) is (step in (1, 2, 3, 10))


def test_every_finds_what_happens_in_every_second_step_only():
    for odd in (0, 1):
        seen = noclobber.watch(every=10)
        steps(seen, 300, wrong=range(4 + odd, 300, 2))
        (finding,) = seen.findings
        assert 5 <= finding.count <= 25, odd


def test_every_draws_with_a_generator_of_its_own():
    random.seed(3)
    alone = [random.random() for _ in range(20)]
    random.seed(3)
    seen, drawn = noclobber.watch(every=2), []
    for _ in range(20):
        with seen:
            drawn.append(random.random())
    assert drawn == alone


def test_every_watches_no_step_inside_a_watched_one():
    seen = noclobber.watch(every=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(10):
            with seen, seen:
                silent()
    (finding,) = seen.findings
    assert finding.count <= 10
    missed, steps = (int(one) for one in re.match(r"(\d+) of (\d+)", seen.report.coverage.unseen[-1]).groups())
    assert (steps, missed + finding.count) == (20, 20)


def in_threads(function):
    """Call a function of no arguments 90 times in all, in three threads."""
    failed = []

    def thread():
        try:
            for _ in range(30):
                function()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=thread) for _ in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert failed == []
    assert not recorder.is_armed()


def test_every_counts_a_finding_once_where_threads_share_the_object():
    seen = noclobber.watch(every=3, contents=False)
    in_threads(seen(silent))
    (finding,) = seen.findings
    assert finding.count <= 90
    assert "of 90 steps" in seen.report.coverage.unseen[-1]


def test_each_thread_ends_its_own_block():
    """Each thread waits for the other two inside its block, so they end in another order than they began."""
    seen, inside = noclobber.watch(), threading.Barrier(3)

    def block():
        with seen:
            inside.wait(10)
            silent()
        inside.wait(10)

    in_threads(block)
    assert [one.count for one in seen.findings] == [90]


def test_what_a_sampled_step_writes_is_known_where_threads_share_the_object():
    """A thread that starts in a watched step of another one goes on watched, now and then without its steps."""
    seen = noclobber.watch(every=3)
    for _ in range(8):
        in_threads(seen(silent))
    codes = {one.code for one in seen.findings}
    assert codes - {"NC208"} == {"NC201"}  # NC208 where only the write is in a watched step of another thread


def test_a_large_tensor_may_change_between_two_blocks_while_an_older_save_of_it_lives():
    seen, weight, kept = noclobber.watch(), torch.ones(200, 200, requires_grad=True), []
    for _ in range(3):
        with seen:
            kept.append((torch.ones(1, 200) @ weight).sum())
            kept[-1].backward(retain_graph=True)
        weight.data.add_(1)
    assert seen.findings == ()


def test_a_watch_that_is_entered_again_goes_on():
    seen = noclobber.watch()
    assert steps(seen, 5, wrong=(2, 4)) == [2]
    (finding,) = seen.findings
    assert (finding.count, seen.report.coverage.backwards) == (2, 2)


def test_what_changed_between_two_blocks_is_not_blamed_on_code_outside_of_torch():
    """The write was not watched, whatever made it."""
    seen = noclobber.watch()
    with seen:
        h = torch.ones(3, requires_grad=True).sigmoid()
        loss = h.sum()
    h.data.mul_(2)
    with seen:
        loss.backward()
    assert seen.findings == ()
    assert "what changed saved bytes between two watched blocks" in seen.report.coverage.unseen


def test_a_new_finding_of_a_later_block_is_warned_of_alone():
    seen = noclobber.watch()
    with pytest.warns(noclobber.ClobberWarning, match="1 error, at 1 line"), seen:
        silent()
    with pytest.warns(noclobber.ClobberWarning, match="1 error, at 1 line") as told, seen:
        another()
    (one,) = told
    assert "another.data.mul_(3)" in str(one.message)
    assert [one.count for one in seen.findings] == [2, 1]


def test_a_block_inside_one_of_the_same_watch_hears_each_event_once():
    seen = noclobber.watch(ledger=True)
    with pytest.warns(noclobber.ClobberWarning) as told, seen:
        seen(silent)()
    assert len(told) == 1
    assert [one.count for one in seen.findings] == [1]
    assert seen.ledger().bytes == 12


def test_what_an_earlier_block_could_not_see_stays_in_the_report():
    seen = noclobber.watch()
    with seen:
        torch.func.grad(lambda x: x.exp().sum())(torch.ones(3))
    with seen:
        assert "saves inside torch.func transforms" in seen.report.coverage.unseen


def test_saves_where_the_program_disables_hooks_are_named():
    with noclobber.watch() as seen, torch.autograd.graph.disable_saved_tensors_hooks("none here"):
        torch.ones(3, requires_grad=True).exp().sum().backward()
    assert seen.report.coverage.unseen == ("saves inside `disable_saved_tensors_hooks`",)


def test_the_ledger_of_several_blocks_is_that_of_the_highest_peak():
    seen, x = noclobber.watch(ledger=True), torch.ones(100, requires_grad=True)
    for size in (10, 100, 50):
        with seen:
            x[:size].exp().sum().backward()
    assert seen.ledger().bytes == 400


@noclobber.watch
def watched_without_parentheses(x, *, times=1):
    """Its words."""
    for _ in range(times):
        silent()
    return x


class Model(torch.nn.Module):
    @noclobber.watch
    def forward(self, x):
        return watched_without_parentheses(x)


def test_the_decorators_need_no_parentheses():
    with pytest.warns(noclobber.ClobberWarning, match="NC201"):
        assert Model()(3) == 3
    assert watched_without_parentheses.__doc__ == "Its words."

    @noclobber.preserve
    def kept():
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        y += 1
        y.sum().backward()
        return x.grad

    assert torch.equal(kept(), torch.ones(3).exp())


@pytest.mark.parametrize("kind", [noclobber.watch, noclobber.preserve])
def test_what_is_no_function_cannot_be_decorated(kind):
    with pytest.raises(TypeError, match=f"`noclobber.{kind.__name__}` takes a function, or options by name, not 100"):
        kind(100)


def test_what_it_prints_is_what_the_command_line_prints():
    with pytest.warns(noclobber.ClobberWarning), noclobber.watch(ledger=True) as seen:
        silent()
    text = render.render(dataclasses.replace(seen.report, ledger=seen.ledger()), "full")
    assert f"{seen}\n" == f"{seen.report}\n" == text
    assert text.endswith(f"\n{seen.ledger()}\n")
    assert "error[NC201]" in text
    assert "kept for backward at the peak: 12 B in 1 storage" in text


def test_each_repr_is_one_line():
    with pytest.warns(noclobber.ClobberWarning), noclobber.watch(ledger=True) as seen:
        silent()
    assert [repr(one) for one in (seen, seen.report, seen.ledger())] == [
        "<noclobber.watch: 1 finding in 1 backward call>",
        "<noclobber.Report: 1 finding in 1 backward call>",
        "<noclobber.Ledger: 12 B in 1 storage>",
    ]
    with contextlib.suppress(RuntimeError), noclobber.watch() as stopped:
        y = torch.ones(3, requires_grad=True).exp()
        y.mul_(2)
        y.sum().backward()
    assert repr(stopped) == "<noclobber.watch: 1 finding in 1 backward call>", "the call that raised"
    with noclobber.preserve() as kept:
        pass
    assert repr(kept) == "<noclobber.preserve: nothing had to be kept>"
    assert str(kept) == "nothing had to be kept"


def test_a_notebook_gets_html_of_each():
    with pytest.warns(noclobber.ClobberWarning), noclobber.watch(ledger=True) as seen:
        silent()
    assert seen._repr_html_() == seen.report._repr_html_() == render.part(seen.report)
    assert seen.ledger()._repr_html_() == render.preformatted(str(seen.ledger()))
    assert noclobber.preserve()._repr_html_().endswith(">nothing had to be kept\n</pre>")


def test_installed_has_what_a_backward_raised_and_what_left_the_block():
    with noclobber.install() as around, contextlib.suppress(RuntimeError):
        three_parts()
    assert [one.code for one in around.findings] == ["NC101"]
    assert "error[NC101]" in str(around.report) == str(around)
    with pytest.raises(RuntimeError), noclobber.install() as around:
        torch.ones(3, requires_grad=True).add_(1)
    assert [one.code for one in around.findings] == ["NC301"]


def test_the_version_is_that_of_the_package():
    assert noclobber.__version__ == importlib.metadata.version("noclobber")


@pytest.mark.parametrize("wrong", [0, -1, 2.5, float("nan"), True, "x"])
def test_every_is_a_whole_number(wrong):
    with pytest.raises(ValueError, match=f"every must be a whole number above 0, not {re.escape(repr(wrong))}"):
        noclobber.watch(every=wrong)


def test_every_refuses_what_needs_all_steps():
    for wrong in (
        {"every": 9, "ledger": True},
        {"every": 9, "hints": True},
        {"every": 9, "children": True},
    ):
        with pytest.raises(ValueError, match="every"):
            noclobber.watch(**wrong)


def test_every_step_may_be_watched():
    seen = noclobber.watch(every=1)
    assert steps(seen, 5, wrong=(2, 4)) == [2]
    (finding,) = seen.findings
    assert finding.count == 2
    assert "steps" not in " ".join(seen.report.coverage.unseen)


def hooks_on_top():
    """Return the pair of hooks that PyTorch calls for a save of this thread."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


@pytest.mark.parametrize("kind", [noclobber.watch, noclobber.preserve])
def test_a_block_that_another_thread_would_end_goes_on_and_leaves_no_hook(kind):
    block, said = kind(), []

    def ends():
        with pytest.raises(RuntimeError) as raised:
            block.__exit__(None, None, None)
        said.append(str(raised.value))

    with block:
        other = threading.Thread(target=ends, name="the-other")
        inside = hooks_on_top()
        other.start()
        other.join()
        assert hooks_on_top() == inside
    assert said == [
        f"a block of `{kind.__name__}` began in thread 'MainThread' and ends in thread 'the-other': "
        "end it in the thread in which it began"
    ]
    assert hooks_on_top() is None
    assert not recorder.is_armed()


@pytest.mark.parametrize("kind", [noclobber.watch, noclobber.preserve])
def test_a_block_ends_anywhere_if_its_thread_is_over(kind):
    block = kind()
    thread = threading.Thread(target=block.__enter__)
    thread.start()
    thread.join()
    assert recorder.is_armed()
    block.__exit__(None, None, None)
    assert not recorder.is_armed()
    assert hooks_on_top() is None
    with pytest.raises(RuntimeError, match=f"this block of `{kind.__name__}` has not begun, or it has ended"):
        block.__exit__(None, None, None)


def test_a_block_inside_a_thread_does_not_end_the_watch_around_the_thread():
    def thread():
        with noclobber.watch():
            torch.ones(3)
        silent()

    seen = noclobber.watch()

    @seen
    def around():
        one = threading.Thread(target=thread)
        one.start()
        one.join()

    with pytest.warns(noclobber.ClobberWarning, match="NC201"):
        around()
    assert [one.code for one in seen.findings] == ["NC201"]


def fails():
    silent()
    raise ValueError("later")


@pytest.mark.parametrize("watched", [noclobber.watch(), noclobber.watch(every=2)])
def test_an_exception_that_leaves_takes_no_finding_with_it(watched):
    with pytest.warns(noclobber.ClobberWarning, match="NC201"), pytest.raises(ValueError, match="later"), watched:
        fails()
    with pytest.warns(noclobber.ClobberWarning, match="NC201"), pytest.raises(ValueError, match="later"):
        noclobber.watch()(fails)()


def test_what_an_error_tells_itself_is_not_warned_of_as_well():
    def both():
        silent()
        three_parts()

    with pytest.warns(noclobber.ClobberWarning) as told, pytest.raises(noclobber.ClobberError), noclobber.watch():
        both()
    (one,) = told
    assert "NC201" in str(one.message)
    assert "NC101" not in str(one.message)


def test_an_exception_is_raised_where_warnings_are_errors_too():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="later"), noclobber.watch():
            fails()


async def coroutine():
    silent()


def generator():
    silent()
    yield


async def generator_of_a_coroutine():
    silent()
    yield


@pytest.mark.parametrize("function", [coroutine, generator, generator_of_a_coroutine])
@pytest.mark.parametrize("block", [noclobber.watch(), noclobber.preserve()])
def test_a_function_whose_body_runs_after_the_call_is_refused(function, block):
    with pytest.raises(TypeError, match=f"@noclobber.{type(block).__name__}` cannot be put on a .* inside it"):
        block(function)
