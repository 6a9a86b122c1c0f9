"""One write that spoils several saves is one finding."""

from __future__ import annotations

from dataclasses import replace

from noclobber.model.reports.finding import Edit, Finding, Label, Suggestion
from noclobber.model.reports.shared_writes import of_one_write
from noclobber.model.seen.events import Refusal, Tensor
from noclobber.model.source import Span


def at(line: int) -> Span:
    return Span("train.py", line, 1, line, 9)


def found(save: int, node: str, *, name: str = "h", write: int = 5, change: Edit | None = None) -> Finding:
    labels = (
        Label("save", at(save), f"`{name}` is saved here"),
        Label("write", at(write), "`add_` overwrites it here", primary=True),
        Label("read", at(9), f"backward reads it here, in {node}"),
    )
    helps = (Suggestion(f"mend {save}" if change else "write out of place", (change,) if change else ()),)
    made = Finding("NC101", "stale-save", "error", "m", labels, notes=(f"of {node}",), suggestions=helps)
    return made.about(Refusal("", tensor=Tensor((3,), name=name)))


def test_a_label_for_each_save_and_one_for_the_rest():
    (both,) = of_one_write([found(3, "Mul"), found(4, "Exp")])
    assert [(one.role, one.span.line) for one in both.labels] == [("save", 3), ("write", 5), ("read", 9), ("save", 4)]
    assert both.labels[2].text == "backward reads it here, in Mul and Exp"
    assert both.notes == ("of Mul", "of Exp")
    assert both.suggestions == (Suggestion("write out of place"),)
    assert both.primary == found(3, "Mul").primary


def test_three_saves():
    (all_three,) = of_one_write([found(2, "Mul"), found(3, "Exp"), found(4, "Mul")])
    assert [one.span.line for one in all_three.labels if one.role == "save"] == [2, 3, 4]
    assert all_three.labels[2].text == "backward reads it here, in Mul and Exp"


def test_the_same_change_for_both_has_both_titles():
    change = Edit(at(5), "h = h + 1")
    (both,) = of_one_write([found(3, "Mul", change=change), found(4, "Exp", change=change)])
    assert both.suggestions == (Suggestion("mend 3, and mend 4", (change,)),)


def test_what_stays_apart():
    one = found(3, "Mul")
    for other in (
        found(4, "Mul", write=6),
        found(4, "Mul", name="g"),
        replace(found(4, "Mul"), code="NC201"),
        replace(found(4, "Mul"), labels=found(4, "Mul").labels[:2]),
        found(4, "Mul", change=Edit(at(4), "h.clone()")),
    ):
        assert of_one_write([one, other]) == (one, other)
    refused = replace(one, labels=one.labels[:1])
    assert of_one_write([refused, refused]) == (refused, refused)


def test_the_order_is_that_in_which_they_were_first_seen():
    findings = [found(3, "Mul"), found(3, "Mul", write=6), found(4, "Exp")]
    assert [one.primary.span.line for one in of_one_write(findings)] == [5, 6]


def test_that_a_write_is_refused_for_nothing_comes_last():
    beside, wrong, elsewhere = found(1, "Mul", write=5), found(1, "Exp", write=5), found(1, "Mul", write=7)
    beside, elsewhere = (replace(one, code="NC102", message="beside") for one in (beside, elsewhere))
    assert of_one_write([beside, elsewhere, wrong]) == (elsewhere, wrong, beside)
