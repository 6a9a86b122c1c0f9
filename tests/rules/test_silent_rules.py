"""NC204 to NC206 on hand-written events, and that every silent clobber has one cause and one rule."""

from __future__ import annotations

from typing import Any

import pytest

from noclobber.model.reports.finding import Finding
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Read, Save, Step, Tensor, Write
from noclobber.model.seen.silent import Drift, Event, GradientWrite
from noclobber.model.source import Site
from noclobber.rules import catalogue, explain

from .places import Program, clobber, helped, save, told, write

PLAIN = Program("y = torch.sigmoid(h)\nh *= keep\nloss.backward()\n")
STEP = Step("SGD", PLAIN.at("h *= keep"))


def the(event: Event) -> Finding:
    """The finding of an event, which one rule and no other has."""
    codes = [rule.code for rule in catalogue() if rule.find(event) is not None]
    assert len(codes) == 1
    finding = explain(event)
    assert finding is not None
    assert sum(one.primary for one in finding.labels) == 1
    return finding


CAUSES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("NC201", {}, {"via": "data"}),
    ("NC202", {}, {"via": "foreign", "op": ""}),
    ("NC202", {}, {"via": "process"}),
    ("NC202", {"unchecked": "hooks"}, {"via": "foreign", "op": ""}),
    ("NC203", {}, {"via": "unversioned"}),
    ("NC203", {}, {"via": "unversioned", "step": STEP}),
    ("NC203", {}, {"via": "unversioned", "step": STEP, "in_forward": False}),
    ("NC204", {"unchecked": "hooks"}, {}),
    ("NC204", {"unchecked": "ctx", "field": "ctx.x"}, {}),
    ("NC204", {"unchecked": "hooks"}, {"in_forward": False}),
    ("NC204", {"unchecked": "hooks"}, {"via": "step", "step": STEP}),
    ("NC201", {"unchecked": "hooks"}, {"via": "data"}),
    ("NC203", {"unchecked": "ctx"}, {"via": "unversioned"}),
    ("NC206", {}, {"via": "data", "in_forward": False}),
    ("NC207", {}, {"via": "undeclared"}),
    ("NC207", {}, {"via": "undeclared", "in_forward": False}),
]


@pytest.mark.parametrize(("code", "saved", "written"), CAUSES)
def test_every_silent_clobber_has_one_rule(code: str, saved: dict[str, Any], written: dict[str, Any]) -> None:
    written = {"op": "aten::mul_", **written}
    change = write(written.pop("op"), PLAIN.at("h *= keep"), version_after=0, **written)
    kept = save("SigmoidBackward0", saved.pop("field", "result"), PLAIN.at("torch.sigmoid(h)"), **saved)
    assert the(Clobber(kept, (change,), Read("SigmoidBackward0", PLAIN.at("loss.backward()")), 0)).code == code


def test_a_version_that_moved_unseen_under_hooks_is_unchecked() -> None:
    kept = save("SigmoidBackward0", "result", PLAIN.at("torch.sigmoid(h)"), unchecked="hooks")
    finding = the(Clobber(kept, (), Read("SigmoidBackward0"), 1))
    assert finding.code == "NC204"


def test_hooks_hide_an_ordinary_write() -> None:
    kept = save("SigmoidBackward0", "result", PLAIN.at("torch.sigmoid(h)"), unchecked="hooks")
    finding = the(clobber(kept, write("aten::mul_", PLAIN.at("h *= keep")), raised=False))
    assert (finding.code, finding.rule) == ("NC204", "unchecked-save")
    assert finding.message.startswith("silent in-place write to a tensor that backward needs, unchecked")
    assert finding.notes[0] == "saved-tensor hooks switch PyTorch's version check off; without them this program raises"
    assert told(finding, "write").text == "`mul_` overwrites it here (version 0 -> 1)"
    assert "h = h * keep" in [text.splitlines()[1] for text in PLAIN.mended(finding)]


def test_compiled_code_keeps_an_alias_so_the_write_is_an_ordinary_one() -> None:
    program = Program("y = fast(h)\nh *= keep\nloss.backward()\n")
    kept = save("CompiledFunctionBackward", "", program.at("fast(h)"))
    finding = the(
        clobber(kept, write("aten::mul_", program.at("h *= keep"), via="data", version_after=0), raised=False)
    )
    assert (finding.code, finding.rule) == ("NC201", "silent-write")
    assert told(finding, "save").text == "`h` is saved here: compiled code keeps a tensor (version 0)"
    assert told(finding, "write").text == "`mul_` overwrites it here"
    assert finding.notes[0].startswith("compiled code keeps an alias with its own version counter")


STASH = Program("""
    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.x = x
            return x * x

        @staticmethod
        def backward(ctx, grad):
            x = ctx.x
            return 2 * x * grad

    y = Square.apply(h)
    h += 1
    loss.backward()
""")


def stored(program: Program) -> Site:
    """The instruction that stores the attribute."""
    return program.at("ctx.x")


def test_a_function_keeps_its_input_on_its_context() -> None:
    kept = save("SquareBackward", "ctx.x", stored(STASH), unchecked="ctx")
    finding = the(clobber(kept, write("aten::add_", STASH.at("h += 1")), raised=False))
    assert finding.message == "silent in-place write to a tensor that the backward of `Square` keeps on its `ctx`"
    assert told(finding, "save").text == "`h` is saved here: `Square` keeps it as `ctx.x` (version 0)"
    assert told(finding, "save").span.line == 4
    assert "and not `ctx.x`" in finding.notes[0]
    assert "save_for_backward" in helped(finding)
    assert STASH.mended(finding)[0].splitlines()[12] == "h = h + 1"


def test_a_stash_is_told_with_the_call_that_kept_it() -> None:
    kept = save("SquareBackward", "ctx.x", stored(STASH), unchecked="ctx", applied=STASH.at("Square.apply(h)"))
    finding = the(clobber(kept, write("aten::add_", STASH.at("h += 1")), read=stored(STASH), raised=False))
    assert [one.text for one in finding.labels if one.role == "save"][1:] == ["`Square` is applied here"]
    assert [one.role for one in finding.labels] == ["save", "write", "read", "save"]


REGION = Program("""
    y = checkpoint(block, x, preserve_rng_state=False)
    scale.mul_(2)
    opt.step()
    loss.backward()
""")
BLOCK = Program("def block(x):\n    return (x * scale).relu()\n")


def drift(*writes: Write) -> Drift:
    kept = save("ReluBackward0", "result", BLOCK.at("(x * scale).relu()"), name=None)
    read = Read("ReluBackward0", REGION.at("loss.backward()"))
    return Drift(REGION.at("checkpoint(block, x, preserve_rng_state=False)"), kept, writes, read)


def test_a_position_that_a_region_counts_comes_before_what_it_writes_there() -> None:
    filled = write("aten::copy_", REGION.at("scale.mul_(2)"), tensor=Tensor((8, 4), name="cache.k"))
    counted = write("aten::add_", REGION.at("scale.mul_(2)"), tensor=Tensor((), "int64", name="cache.length"))
    finding = the(drift(filled, counted))
    assert finding.message.startswith("`add_` changes `cache.length`")


def test_a_region_reads_a_tensor_that_was_written() -> None:
    scale = Tensor((4,), name="scale")
    finding = the(drift(write("aten::mul_", REGION.at("scale.mul_(2)"), tensor=scale)))
    assert (finding.code, finding.rule, finding.severity) == ("NC205", "recompute-drift", "error")
    assert finding.message == "`mul_` changes `scale`, which a checkpointed region reads again in backward"
    kept = [one for one in finding.labels if one.role == "save"]
    assert [one.span.path for one in kept] == [BLOCK.path, REGION.path]
    assert kept[1].text == "the region is checkpointed here"
    assert told(finding, "write").text == "`mul_` overwrites `scale` here (version 0 -> 1)"
    assert f"backward reads it at line 4 of {REGION.path}, in ReluBackward0" in finding.notes
    assert "give it a clone as an argument of `checkpoint`" in helped(finding)


def test_each_run_of_a_region_takes_the_next_value() -> None:
    program = Program("""
        def block(x):
            scale = next(rates)
            return (x * scale).relu()
        y = checkpoint(block, x, use_reentrant=False)
        y.backward()
    """)
    kept = save("ReluBackward0", "result", program.at("(x * scale).relu()"), name=None)
    region, read = program.at("checkpoint(block, x, use_reentrant=False)"), Read("", program.at("y.backward()"))
    finding = the(Drift(region, kept, (), read))
    assert finding.message == "a checkpointed region takes another value from `rates` when backward runs it again"
    assert told(finding, "write").span.line == 2
    assert "call `next(rates)` before the region" in helped(finding)


DRAWING = Program("""
    def block(x):
        return rrelu(x, training=True)
    y = checkpoint(block, x, use_reentrant=False)
    loss.backward()
""")


def stopped(call: str) -> Finding:
    program = Program(DRAWING.text.replace("checkpoint(block, x, use_reentrant=False)", call))
    kept = save("RreluWithNoiseBackward0", "noise", program.at("rrelu(x, training=True)"), name=None)
    read = Read("RreluWithNoiseBackward0", program.at("loss.backward()"))
    finding = the(Drift(program.at(call), kept, (), read, unfilled=True))
    assert (finding.code, finding.rule, finding.severity) == ("NC205", "recompute-drift", "error")
    return finding


def test_a_region_that_stops_before_its_noise_is_drawn() -> None:
    finding = stopped("checkpoint(block, x, use_reentrant=False)")
    assert finding.message == (
        "a checkpointed region stops too early when it runs again: the `noise` of rrelu_with_noise is not filled"
    )
    assert told(finding, "save").text == "rrelu_with_noise keeps its `noise` here, and fills it afterwards"
    assert told(finding, "save").primary
    assert "`early_stop=False`" in helped(finding)
    assert "set_checkpoint_early_stop(False)" in helped(finding)


def test_a_step_changes_the_weights_of_a_region() -> None:
    weight = Tensor((4,), name="fc.weight", kind="parameter")
    step = REGION.at("opt.step()")
    finding = the(drift(write("aten::add_", None, via="step", step=Step("SGD", step), tensor=weight)))
    assert (
        finding.message
        == "`SGD.step` changes the parameter `fc.weight`, which a checkpointed region reads again in backward"
    )
    assert told(finding, "write").span.line == 3
    assert "move `opt.step()` below line 4" in helped(finding)


def test_an_argument_of_a_region_is_detached() -> None:
    given = Tensor((4,), name="x")
    finding = the(drift(write("aten::detach_", REGION.at("scale.mul_(2)"), via="data", tensor=given)))
    assert finding.message == "`detach_` changes `x`, which a checkpointed region reads again in backward"
    assert told(finding, "write").text.startswith("`detach_` takes `x` out of the graph here")
    assert "use `x.detach()`" in helped(finding)


def test_a_region_differs_and_no_write_is_known() -> None:
    finding = the(drift())
    assert finding.message == "a checkpointed region gives other bytes when backward runs it again"
    assert [one.primary for one in finding.labels if one.role == "save"] == [True, False]
    assert "`preserve_rng_state=True`" in helped(finding)


HOOKS = Program("""
    h.register_hook(lambda g: g.mul_(k))
    def scale(g):
        g *= 2
    def backward(ctx, grad):
        grad.mul_(ctx.k)
        return grad
    def clip(g):
        return g.clamp_(-1, 1)
    h.register_hook(scale)
    loss.backward()
""")


@pytest.mark.parametrize(
    ("piece", "line", "edited"),
    [
        ("g.mul_(k)", 1, "h.register_hook(lambda g: g * k)"),
        ("g *= 2", 3, "    return g * 2"),
        ("grad.mul_(ctx.k)", 5, "    grad = grad * ctx.k"),
        ("g.clamp_(-1, 1)", 8, "    return g.clamp(-1, 1)"),
    ],
)
def test_a_gradient_is_written(piece: str, line: int, edited: str) -> None:
    by_hook = "grad" not in piece
    change = write("aten::mul_", HOOKS.at(piece), in_forward=False)
    registered = HOOKS.at("h.register_hook(scale)") if by_hook else None
    read = Read("MulBackward0", HOOKS.at("loss.backward()"))
    event = GradientWrite(
        change, "hook" if by_hook else "function", "scale" if by_hook else "Softmax", read, registered
    )
    finding = the(event)
    who = "the hook `scale`" if by_hook else "the backward of `Softmax`"
    assert (finding.code, finding.rule) == ("NC206", "grad-clobber")
    assert finding.message == f"{who} writes into a gradient that another part of the graph still gets"
    assert told(finding, "write").text == "`mul_` overwrites the gradient here"
    assert told(finding, "write").primary
    assert HOOKS.mended(finding)[0].splitlines()[line - 1] == edited


def test_a_hook_is_labelled_where_it_is_registered_unless_that_is_the_write() -> None:
    read = Read("", HOOKS.at("loss.backward()"))
    apart = GradientWrite(
        write("aten::mul_", HOOKS.at("g *= 2")), "hook", "scale", read, HOOKS.at("h.register_hook(scale)")
    )
    assert told(the(apart), "create").text == "the hook is registered here"
    line = HOOKS.at("h.register_hook(lambda g: g.mul_(k))")
    finding = the(GradientWrite(write("aten::mul_", HOOKS.at("g.mul_(k)")), "hook", "<lambda>", read, line))
    assert [one.role for one in finding.labels] == ["write", "read"]
    assert finding.message.startswith("a hook writes into a gradient")
    assert told(finding, "read").text.startswith("backward runs the hook here")


def test_a_saved_tensor_is_written_in_backward() -> None:
    kept: Save = save("SigmoidBackward0", "result", PLAIN.at("torch.sigmoid(h)"))
    change = write("aten::copy_", HOOKS.at("grad.mul_(ctx.k)"), via="data", version_after=0, in_forward=False)
    finding = the(clobber(kept, change, raised=False))
    assert finding.code == "NC206"
    assert told(finding, "save").span.line == 1
    assert "return a new tensor" in helped(finding)
