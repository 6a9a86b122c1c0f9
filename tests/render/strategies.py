"""Arbitrary reports: any text anywhere, spans that lie outside of any source, roles and severities of the model."""

from __future__ import annotations

from hypothesis import strategies as st

from noclobber.model.reports.finding import Cause, Cure, Edit, Finding, Label, Suggestion
from noclobber.model.reports.report import Coverage, Report
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Carried, Read, Refusal, Save, Step, Tensor, Write
from noclobber.model.seen.hints import Opportunity, Spelling
from noclobber.model.seen.silent import Drift, Moved
from noclobber.model.source import Span, told_site

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
    st.none() | st.sampled_from(Cure),
)
_sites = st.none() | st.builds(told_site, spans, st.none() | st.builds(told_site, spans))
_tensors = st.builds(Tensor, st.lists(_NUMBER, max_size=2).map(tuple), TEXT, TEXT, st.none() | TEXT)
_saves = st.builds(Save, TEXT, TEXT, _tensors, _NUMBER, _sites)
_writes = st.builds(Write, TEXT, _sites, _NUMBER, tensor=_tensors, step=st.none() | st.builds(Step, TEXT, _sites))
_reads = st.builds(Read, TEXT, _sites)
_several = st.lists(_writes, max_size=2).map(tuple)
events = st.one_of(
    st.builds(Clobber, _saves, _several, _reads, _NUMBER),
    st.builds(Drift, _sites, _saves, _several, _reads, moved=st.lists(st.builds(Moved, *[TEXT] * 4)).map(tuple)),
    st.builds(
        Refusal, TEXT, _sites, tensor=_tensors, carried=st.lists(st.builds(Carried, TEXT), max_size=1).map(tuple)
    ),
    st.builds(
        Opportunity,
        TEXT,
        st.builds(told_site, spans),
        _tensors,
        *[_NUMBER] * 5,
        st.builds(Spelling, st.just("module"), TEXT),
    ),
)
findings = st.builds(
    Finding,
    code=TEXT,
    rule=TEXT,
    severity=st.sampled_from(["error", "warning", "hint"]),
    message=TEXT,
    labels=st.lists(labels, max_size=5).map(tuple),
    event=st.none() | events,
    cause=st.none() | st.sampled_from(Cause),
    count=st.integers(1, 400),
    notes=st.lists(TEXT, max_size=2).map(tuple),
    suggestions=st.lists(suggestions, max_size=2).map(tuple),
).map(lambda one: one if one.event is None else one.about(one.event))
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
