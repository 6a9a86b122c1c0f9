"""Arbitrary reports: any text anywhere, spans that lie outside of any source, roles and severities of the model."""

from __future__ import annotations

from hypothesis import strategies as st

from noclobber.model.finding import Edit, Finding, Label, Suggestion
from noclobber.model.report import Coverage, Report
from noclobber.model.source import Span

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=12)
"""Control characters, escape sequences' first byte, lone surrogates and all."""
TEXT = st.one_of(
    ANY_TEXT, st.sampled_from(["y.neg_()", "\ty = 入力.exp()", "\x1b[31m", "\x9b2J", "a\r\nb", "%,:", "x " * 150])
)
_NUMBER = st.integers(0, 30)
_JSON = st.dictionaries(
    ANY_TEXT, st.one_of(ANY_TEXT, st.none(), st.integers(), st.lists(ANY_TEXT, max_size=2)), max_size=2
)

spans = st.builds(Span, st.one_of(st.sampled_from(["a.py", "<stdin>"]), TEXT), _NUMBER, _NUMBER, _NUMBER, _NUMBER)
labels = st.builds(
    Label,
    st.sampled_from(["write", "save", "read", "create", "inside"]),
    spans,
    TEXT,
    st.booleans(),
    st.lists(TEXT, max_size=3).map(tuple),
)
suggestions = st.builds(
    Suggestion,
    TEXT,
    st.lists(st.builds(Edit, spans, TEXT), max_size=3).map(tuple),
)
findings = st.builds(
    Finding,
    code=TEXT,
    rule=TEXT,
    severity=st.sampled_from(["error", "warning", "hint"]),
    message=TEXT,
    labels=st.lists(labels, max_size=5).map(tuple),
    tensor=st.none() | _JSON,
    save=st.none() | _JSON,
    writes=st.lists(_JSON, max_size=2).map(tuple),
    count=st.integers(1, 400),
    notes=st.lists(TEXT, max_size=2).map(tuple),
    suggestions=st.lists(suggestions, max_size=2).map(tuple),
)
reports = st.builds(
    Report,
    st.lists(findings, max_size=3).map(tuple),
    st.builds(
        Coverage,
        TEXT,
        st.booleans(),
        st.booleans(),
        st.lists(TEXT, max_size=2).map(tuple),
        st.lists(TEXT, max_size=2).map(tuple),
        st.just(()),
        _NUMBER,
        _NUMBER,
    ),
    _JSON,
)
