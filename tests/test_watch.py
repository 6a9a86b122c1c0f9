"""What `watch` tells: one note for an error, and a warning at the line or the function that it is about."""

from __future__ import annotations

import warnings

import pytest
import torch

import noclobber


def silent():
    h = torch.ones(3, requires_grad=True).sigmoid()
    h.data.mul_(2)
    h.sum().backward()


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


def test_a_line_that_saves_two_tensors_is_one_finding_with_both_fields():
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(noclobber.ClobberError), noclobber.watch() as seen:
        product_of_one(x * 1).sum().backward()
    (finding,) = seen.findings
    assert sorted(finding.save["fields"]) == ["other", "self"]
    assert [edit.replacement for edit in finding.suggestions[0].edits] == [".clone()", ".clone()"]
