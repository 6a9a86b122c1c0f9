"""Sites: exact spans from instructions, in characters; whose code a file is."""

import linecache
import sysconfig

import pytest

from noclobber.model.source import (
    Owner,
    Site,
    Span,
    claim_for_user,
    give_source,
    owner_of,
    site_of_traceback,
    source_line,
    source_text,
)


def site_in(text, path, wanted):
    """The first site of a program whose span reads `wanted`."""
    linecache.cache[path] = (len(text), None, text.splitlines(True), path)
    code = compile(text, path, "exec")
    for offset in range(0, len(code.co_code), 2):
        span = Site(code, offset).span()
        line = text.splitlines()[span.line - 1]
        if span.line == span.end_line and line[span.column - 1 : span.end_column - 1] == wanted:
            return Site(code, offset)
    raise AssertionError(f"no instruction for {wanted!r}")


def test_two_writes_on_one_line_are_told_apart():
    text = "a.add_(1); b.add_(2)\n"
    assert site_in(text, "/p/two.py", "b.add_(2)").span() == Span("/p/two.py", 1, 12, 1, 21)


def test_columns_count_characters():
    text = "名前 = 'é'; h.add_(1)\n"
    assert site_in(text, "/p/wide.py", "h.add_(1)").span() == Span("/p/wide.py", 1, 11, 1, 20)


@pytest.mark.parametrize("mark", ["\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"])
def test_lines_end_where_python_ends_them(mark):
    text = f"a = '{mark}'\nb = 2\n"
    give_source("<given by a test>", text)
    *_, (_, _, line) = compile(text, "<given by a test>", "exec").co_lines()
    assert source_line("<given by a test>", line) == "b = 2"
    assert source_text("<given by a test>") == text


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("/home/me/train.py", Owner.USER),
        ("train.py", Owner.USER),
        ("<stdin>", Owner.USER),
        ("<ipython-input-3-abc>", Owner.USER),
        ("/tmp/ipykernel_77/1234.py", Owner.USER),
        ("<frozen runpy>", Owner.LIBRARY),
        ("<generated>", Owner.LIBRARY),
        (sysconfig.get_paths()["purelib"] + "/timm/layers.py", Owner.LIBRARY),
        (sysconfig.get_paths()["stdlib"] + "/functools.py", Owner.LIBRARY),
        (owner_of.__code__.co_filename, Owner.NOCLOBBER),
    ],
)
def test_whose_code_a_file_is(path, owner):
    assert owner_of(path) is owner


def test_a_pseudo_file_whose_text_is_known_is_the_users():
    linecache.cache["<template of a test>"] = (7, None, ["a = 1\n"], "<template of a test>")
    assert owner_of("<template of a test>") is Owner.USER


def test_a_pseudo_file_may_get_its_text_later():
    assert owner_of("<cell of a test>") is Owner.LIBRARY
    linecache.cache["<cell of a test>"] = (7, None, ["a = 1\n"], "<cell of a test>")
    assert owner_of("<cell of a test>") is Owner.USER


@pytest.mark.parametrize("path", ["<attrs generated methods a.B>", "<eval_with_key>.3", "<decorator-gen-7>"])
def test_what_a_library_generates_is_not_the_users(path):
    linecache.cache[path] = (7, None, ["a = 1\n"], path)
    assert owner_of(path) is Owner.LIBRARY


def test_a_pseudo_file_can_be_claimed():
    claim_for_user("<claimed by a test>")
    assert owner_of("<claimed by a test>") is Owner.USER


def test_the_innermost_user_frame_of_a_traceback():
    def fails():
        raise ValueError

    try:
        fails()
    except ValueError as error:
        found = site_of_traceback(error.__traceback__)
    assert found.code is fails.__code__


def test_the_same_text_twice_on_a_line_is_two_places():
    """Positions are remembered by code object, and code objects with other columns are not equal."""
    first, second = (lambda x: x.exp_()), (lambda x: x.exp_())
    assert first.__code__.co_code == second.__code__.co_code
    assert Site(first.__code__, 6).span() != Site(second.__code__, 6).span()
