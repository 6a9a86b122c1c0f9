"""Text of the program is compiled again without a word: Python has warned about it already."""

import warnings

import pytest

from noclobber.syntax.compiling import compiled, parsed

TEXT = """
def f(x):
    try:
        return x is 1
    finally:
        return "\\d"
"""


def test_the_warnings_are_not_repeated() -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default", SyntaxWarning)
        before = list(warnings.filters)
        compiled(TEXT, "train.py")
        parsed(TEXT)
        assert warnings.filters == before
        assert not [one for one in shown if one.category is SyntaxWarning]
        compile(TEXT, "train.py", "exec")
        assert any(one.category is SyntaxWarning for one in shown)


def test_what_python_has_shown_stays_shown() -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        registry: dict[str, object] = {}
        for _ in range(2):
            warnings.warn_explicit("only once", UserWarning, "train.py", 1, registry=registry)
            compiled(TEXT, "train.py")
    assert [str(one.message) for one in shown if one.category is UserWarning] == ["only once"]


@pytest.mark.parametrize("read", [parsed, lambda text: compiled(text, "train.py")])
def test_no_python(read: object) -> None:
    before = list(warnings.filters)
    with pytest.raises(SyntaxError):
        read("x = (")  # type: ignore[operator]
    assert warnings.filters == before
