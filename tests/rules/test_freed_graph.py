"""NC104 on hand-written events, and that it leaves clobbers and other refusals alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from noclobber.model.reports.finding import Finding
from noclobber.model.seen.events import Carried, Refusal
from noclobber.model.source import Site
from noclobber.rules import explain

from .places import Program, clobber, helped, save, told

MESSAGE = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    "freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad()."
)
PROGRAM = Program("y = x.exp()\ny.sum().backward()\ny.prod().backward()\n")


def found(repeated: bool | None, message: str = MESSAGE, **facts: object) -> Finding:
    event = Refusal(
        message,
        PROGRAM.at("y.prod().backward()"),
        saved=PROGRAM.at("x.exp()"),
        saved_node="ExpBackward0",
        repeated_root=repeated,
        **{"call": "backward", **facts},  # type: ignore[arg-type]
    )
    finding = explain(event)
    assert finding is not None
    assert (finding.code, finding.rule) == ("NC104", "freed-graph")
    return finding


def test_a_repeated_backward_is_summed() -> None:
    finding = found(True)
    assert finding.message == "second backward through a graph that the first one has freed"
    assert [one.message for one in finding.suggestions] == [
        "sum the losses and call `backward` once",
        "or pass `retain_graph=True` to the first `backward`, if one graph really serves two",
    ]
    assert told(finding, "save").text == "part of the freed graph was built here: exp kept a tensor for its backward"
    assert told(finding, "read").primary
    assert told(finding, "read").span.line == 3


def test_a_graph_is_not_retained_over_a_step() -> None:
    program = Program("def update(loss, opt):\n    loss.backward()\n    opt.step()\n")
    site = program.at("loss.backward()")
    finding = explain(Refusal(MESSAGE, site, call="backward", repeated_root=False, shared=True, freed=site))
    assert finding is not None
    assert [one.message for one in finding.suggestions] == [
        "sum the losses and call `backward` once, before the steps",
        "or run the forward again for each backward",
    ]
    assert "`retain_graph=True` does not help here" in finding.notes[0]


def test_a_state_is_carried_by_the_line_that_stores_it_and_not_by_one_that_detaches_it() -> None:
    program = Program("""
        class Bank:
            def __setitem__(self, key, value):
                self.traces[key] = value
            def detach(self):
                self.traces = {key: value.detach() for key, value in self.traces.items()}
        bank["h"].sum().backward()
    """)
    scopes = tuple(Site(program.at(one).code, 0) for one in ("self.traces[key]", "self.traces.items()"))
    state = Carried("bank.traces['h']", "item", scopes)
    site = program.at('bank["h"].sum().backward()')
    finding = explain(Refusal(MESSAGE, site, call="backward", repeated_root=False, carried=(state,)))
    assert finding is not None
    assert told(finding, "create").text == "`self.traces[key]` carries the old graph over from here"


def test_a_carried_state_is_detached_and_retain_graph_is_no_cure() -> None:
    finding = found(False)
    assert finding.message == "backward reaches into a graph of an earlier iteration, which is already freed"
    assert [one.message for one in finding.suggestions] == [
        "detach the state that is carried over, at the end of each iteration: `h = h.detach()`, and of a tuple each "
        "part, `h = tuple(part.detach() for part in h)`"
    ]
    assert finding.notes[0].startswith("`retain_graph=True` does not fix")


def test_a_part_that_two_losses_share_is_no_carried_state() -> None:
    finding = found(False, shared=True, freed=PROGRAM.at("y.sum().backward()"))
    assert finding.message == "backward reaches into a part of the graph that another backward has freed"
    assert [one.message for one in finding.suggestions] == [one.message for one in found(True).suggestions]
    assert [(one.text, one.span.line, one.primary) for one in finding.labels if one.role == "read"] == [
        ("this backward frees it", 2, False),
        ("this backward needs it again", 3, True),
    ]


def test_a_line_that_frees_and_needs_has_one_label() -> None:
    finding = found(False, freed=PROGRAM.at("y.prod().backward()"))
    assert [one.text for one in finding.labels if one.role == "read"] == ["this backward needs it again"]


def test_a_state_that_is_written_in_place_is_named_as_it_is_spelled() -> None:
    program = Program("self.centre.mul_(0.9).add_(feats.mean(0))\nloss.backward()\n")
    written = program.at("self.centre.mul_(0.9)")
    finding = explain(
        Refusal(MESSAGE, program.at("loss.backward()"), written=written, call="backward", repeated_root=False)
    )
    assert finding is not None
    assert told(finding, "write").text == "`self.centre` is written in place here and carries the old graph over"
    assert [one.message for one in finding.suggestions] == [
        "detach the state before it is written: `self.centre = self.centre.detach()`; or, if no gradient should flow "
        "through it, write it inside `with torch.no_grad():`"
    ]


def test_where_it_is_not_known_both_are_said() -> None:
    words = helped(found(None))
    assert "for a carried state: detach" in words
    assert "for two losses: sum" in words


def test_a_read_of_a_freed_save_says_so() -> None:
    finding = found(None, call="access")
    assert finding.message == "a saved tensor is read after backward has freed it"


@pytest.mark.parametrize(
    "message",
    [
        "Trying to backward through the graph a second time, but the buffers have already been freed. Specify ...",
        "Trying to backward through the graph a second time, but the saved intermediate results have already been ...",
        "[rank0]: RuntimeError: Trying to backward through the graph a second time (or directly access saved ...",
    ],
)
def test_older_wordings(message: str) -> None:
    assert found(True, message).code == "NC104"


def test_a_place_that_is_not_known_leaves_the_other_label_primary() -> None:
    finding = explain(Refusal(MESSAGE, saved=PROGRAM.at("x.exp()"), call="backward"))
    assert finding is not None
    assert told(finding, "save").primary
    bare = explain(Refusal(MESSAGE, call="backward"))
    assert bare is not None
    assert bare.labels == ()


def test_other_events_are_left_alone() -> None:
    leaf = explain(Refusal("a leaf Variable that requires grad is being used in an in-place operation."))
    assert leaf is not None
    assert leaf.code == "NC301"
    assert explain(clobber(save("ExpBackward0", "result", None))).code != "NC104"


def looped(text: str, built: str, *, repeated: bool = False, **facts: object) -> Finding:
    """The finding for a backward in a loop, and a graph that was built at a piece of the text."""
    program = Program(text)
    site = program.at("loss.backward()")
    event = Refusal(MESSAGE, site, saved=program.at(built), call="backward", repeated_root=repeated, **facts)  # type: ignore[arg-type]
    finding = explain(event)
    assert finding is not None
    return finding


LOOP = """
    def predict(x):
        return net(x)
    {before}
    for x in data:
        {inside}
        loss.backward()
        {after}
"""
ONCE = "backward in a loop goes again through a graph that was built once, before the loop"
CARRIED = "backward reaches into a graph of an earlier iteration, which is already freed"


@pytest.mark.parametrize(
    ("before", "inside", "built", "repeated"),
    [
        ("loss = mse(f(y), y)", "opt.zero_grad()", "mse(f(y), y)", True),
        ("out = f(y)", "loss = mse(out, y)", "f(y)", False),
        ("loss = predict(y).mean()", "opt.zero_grad()", "net(x)", True),
        ("out = predict(y)", "loss = F.mse_loss(out, y)", "net(x)", False),
        ("out, criterion = predict(y), nn.MSELoss()", "loss = criterion(out, y)", "net(x)", False),
    ],
)
def test_a_graph_from_before_the_loop_is_built_again_in_it(
    before: str, inside: str, built: str, repeated: bool
) -> None:
    stepped = looped(LOOP.format(before=before, inside=inside, after="opt.step()"), built, repeated=repeated)
    kept = looped(LOOP.format(before=before, inside=inside, after="print(loss)"), built, repeated=repeated)
    by_hand = looped(LOOP.format(before=before, inside=inside, after="w.sub_(w.grad)"), built, repeated=repeated)
    assert helped(by_hand) == helped(stepped)
    assert stepped.message == kept.message == ONCE
    assert stepped.suggestions[0].message == "run the forward inside the loop, so that each backward has its own graph"
    assert "`retain_graph=True` does not help here" in stepped.notes[0]
    assert "retain_graph" not in helped(stepped)
    retaining = "pass `retain_graph=True` to `backward`: no optimizer steps in this loop"
    assert [retaining in one.message for one in kept.suggestions].index(True) == (1 if repeated else 0)
    assert ("or detach what is a constant in the loop" in helped(stepped)) == (not repeated)


def test_a_closure_that_a_step_calls_is_a_loop_also_where_a_function_of_it_goes_backward() -> None:
    program = Program("""
        def slope(u):
            return grad(u.sum(), x)
        phi = net(x)
        def closure():
            loss = slope(head(phi)).sum() + phi.sum()
            loss.backward()
            return loss
        opt.step(closure)
    """)
    state = Carried("phi", "name", (Site(program.at("net(x)").code, 0),), is_renewed=False)
    for read in ("loss.backward()", "grad(u.sum(), x)"):
        event = Refusal(MESSAGE, program.at(read), saved=program.at("net(x)"), call="backward", repeated_root=False)
        finding = explain(replace(event, carried=(state,), are_all_carried=True))
        assert finding is not None
        assert finding.message == ONCE.replace("loop", "closure")
        assert [one.message for one in finding.suggestions] == [
            "run the forward inside the closure, so that each backward has its own graph",
            "or detach what is a constant in the closure (a target, an old log-probability): `t = t.detach()`",
        ]


@pytest.mark.parametrize(
    ("inside", "built"),
    [
        ("h = predict(h)\n        loss = h.mean()", "net(x)"),
        ("total += predict(x).mean()\n        loss = total * 2", "net(x)"),
        ("loss = f(h)\n        h = g(h)", "g(h)"),
    ],
)
def test_a_state_that_a_loop_carries_is_detached(inside: str, built: str) -> None:
    finding = looped(LOOP.format(before="h = zeros(3)", inside=inside, after="opt.step()"), built)
    assert finding.message == CARRIED
    assert [one.message for one in finding.suggestions] == [
        "detach the state that is carried over, at the end of each iteration: `h = h.detach()`, and of a tuple each "
        "part, `h = tuple(part.detach() for part in h)`"
    ]


def test_where_the_loop_may_build_the_graph_both_are_said() -> None:
    finding = looped(
        LOOP.format(before="y = zeros(3)", inside="loss = predict(x).mean()", after="opt.step()"), "net(x)"
    )
    assert finding.message == CARRIED
    assert "detach the state" in finding.suggestions[0].message
    assert finding.suggestions[1].message.startswith("or, if nothing is carried: run the forward inside the loop")


def test_an_operator_that_writes_what_it_made_itself_is_no_state_written_in_place() -> None:
    program = Program("for x in data:\n    h = cell(x, h)\n    loss = h.sum()\n    loss.backward()\n")
    call = program.at("cell(x, h)")
    event = Refusal(
        MESSAGE, program.at("loss.backward()"), saved=call, written=call, call="backward", repeated_root=False
    )
    finding = explain(event)
    assert finding is not None
    assert not [one for one in finding.labels if one.role == "write"]
    assert "`h = h.detach()`" in helped(finding)
