"""NC102, NC103, NC105, NC201 and NC203 on hand-written events: each cause has one rule, with its own words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import noclobber.rules
from noclobber.model.reports.finding import Finding
from noclobber.model.seen.events import Step, Via
from noclobber.model.source import Site
from noclobber.rules import catalogue, explain

from .places import Program, clobber, helped, save, told, write

PAIR = Program("""
    loss_d = critic(fake)
    loss_g = critic(fake)
    opt.step()
    loss_g.backward()
""")
CARRIED = Program("""
    for x in data:
        h = cell(x, h)
        h.sum().backward(retain_graph=True)
        opt.step()
""")
BUILT_ONCE = Program("""
    z = encoder(x)
    for _ in range(9):
        z.sum().backward(retain_graph=True)
        opt.step()
""")


def stepped(program: Program, saved: str, read: str, *, raised: bool = True, inside: bool = True) -> Finding:
    """A weight that `opt.step()` changes between a save and a read."""
    site = program.at("opt.step()")
    change = write(
        "aten::_foreach_add_" if raised else "aten::_fused_sgd_",
        site if inside else None,
        via="step",
        step=Step("Adam", site),
    )
    kept = save("AddmmBackward0", "mat2", program.at(saved), name="fc.weight", kind="parameter")
    finding = explain(clobber(kept, change, read=program.at(read), raised=raised))
    assert finding is not None
    return finding


def test_a_step_between_two_losses() -> None:
    finding = stepped(PAIR, "critic(fake)", "loss_g.backward()")
    assert (finding.code, finding.rule) == ("NC103", "step-before-backward")
    assert finding.message == "`Adam.step` changes the parameter `fc.weight` before a backward that still needs it"
    assert told(finding, "write").text == "`Adam.step` overwrites it here (version 0 -> 1)"
    assert told(finding, "write").primary
    assert told(finding, "write").span.line == 3
    assert told(finding, "save").text == "`fc.weight` is saved here: linear (addmm) keeps its weight (version 0)"
    assert finding.notes == (
        "the backward of linear (addmm) computes with the parameter `fc.weight` as it was in forward; "
        "`Adam.step` has changed it since",
    )
    help_ = finding.suggestions[0].message
    assert help_.startswith(
        "run every backward before the steps: move `opt.step()` below line 4; call no `zero_grad()` in between"
    )
    assert "run the forward again" in helped(finding)
    assert "detach" in helped(finding)
    assert finding.writes[0].step.optimizer == "Adam"


def in_library(text: str, kind: str, op: str = "aten::add_", via: Via = "data") -> list[str]:
    program = Program(f"loss = net(x)\n{text}\nloss.backward()\n")
    library = Program("work()\n", f"/venv/lib/site-packages/merging/{kind}{len(text)}.py")
    piece = text.partition(" = ")[2] or text
    change = write(op, program.at(piece, inside=library.at("work()")), via=via, version_after=0)
    kept = save("MmBackward0", "mat2", program.at("net(x)"), name="h", kind=kind)
    finding = explain(clobber(kept, change, read=program.at("loss.backward()"), raised=False))
    assert finding is not None
    return helped(finding).splitlines()


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("net.merge_adapter()", "parameter", "move `net.merge_adapter()` below line 3"),
        ("net.reset()", "buffer", "move `net.reset()` below line 3"),
        ("other = net(x + 1)", "buffer", "run the backward that needs the old values before `net(x + 1)`"),
        ("scale(h)", "tensor", "give `scale(h)` a clone, or keep one for the forward: `h.clone()`"),
    ],
)
def test_a_write_in_a_library_is_helped_at_the_call(text: str, kind: str, words: str) -> None:
    assert in_library(text, kind)[0] == words


@pytest.mark.parametrize("nested", [False, True])
def test_a_step_inside_a_backward_is_helped_by_where_it_runs(nested: bool) -> None:
    program = Program("loss = net(x)\nopt.step()\nloss.backward()\n")
    site = program.at("opt.step()")
    kept = save("AddmmBackward0", "mat2", program.at("net(x)"), name="fc.weight", kind="parameter")
    for step in (Step("Adam", site), None):
        change = write(
            "aten::sub_", site, via="step" if step else "operator", step=step, in_forward=False, nested=nested
        )
        finding = explain(clobber(kept, change, read=program.at("loss.backward()")))
        assert finding is not None
        assert ("use_reentrant=False" in helped(finding).splitlines()[0]) == nested
        assert "has returned, not in a hook" in helped(finding).splitlines()[-1]
        assert "run every backward before the steps" not in helped(finding)


def test_weights_that_were_put_back_are_said_to_be() -> None:
    change = write("aten::_foreach_add_", PAIR.at("opt.step()"), via="step", step=Step("Adam", PAIR.at("opt.step()")))
    kept = save("AddmmBackward0", "mat2", PAIR.at("critic(fake)"), name="fc.weight", kind="parameter")
    event = clobber(kept, change, read=PAIR.at("loss_g.backward()"))
    plain, back = explain(event), explain(replace(event, restored=True))
    assert plain is not None
    assert back is not None
    assert plain.notes[0].endswith("`Adam.step` has changed it since")
    assert back.notes[0].endswith("so the gradient would be right; PyTorch raises because the version changed")


def test_a_step_that_a_carried_state_leads_back_over() -> None:
    finding = stepped(CARRIED, "cell(x, h)", "h.sum().backward(retain_graph=True)")
    assert finding.code == "NC103"
    assert told(finding, "read").text == "backward reads it here, in a later iteration, in AddmmBackward0"
    assert "instead of `retain_graph=True`" in finding.suggestions[0].message
    assert "earlier iteration" in finding.notes[0]


def test_a_graph_built_once_before_the_loop() -> None:
    finding = stepped(BUILT_ONCE, "encoder(x)", "z.sum().backward(retain_graph=True)")
    assert finding.suggestions[0].message.startswith("run this forward inside the loop")
    assert finding.suggestions[1].message.startswith("or run every backward before the first step")
    assert finding.suggestions[2].message.startswith("or, if its result is a constant in the loop")


def test_an_optimizer_that_steps_twice_may_step_once() -> None:
    twice = Program("out = net(x)\na.backward()\nopt.step()\nb.backward()\nopt.step()\n")
    others = Program("out = net(x)\na.backward()\nopt.step()\nb.backward()\nother.step()\n")
    assert stepped(twice, "net(x)", "b.backward()").suggestions[0].message.startswith("sum the losses")
    assert "sum the losses" not in helped(stepped(others, "net(x)", "b.backward()"))


def test_many_optimizers_over_one_graph_built_in_a_comprehension() -> None:
    program = Program("""
        for epoch in range(3):
            acts = [net(x) for net in nets]
            for opt, act in zip(opts, acts):
                act.sum().backward(retain_graph=True)
                opt.step()
    """)
    finding = stepped(program, "net(x)", "act.sum().backward(retain_graph=True)")
    assert finding.suggestions[0].message.startswith("run every backward before the first step")


def test_a_step_whose_write_has_no_site_of_its_own_is_found_by_its_call() -> None:
    finding = stepped(PAIR, "critic(fake)", "loss_g.backward()", inside=False)
    assert finding.code == "NC103"
    assert told(finding, "write").span.line == 3


OWN = Program("""
    class Mine(Optimizer):
        def step(self):
            p.data.sub_(p.grad)

    out = net(x)
    opt.step()
    out.backward()
""")


def test_an_optimizer_of_the_users_own_shows_both_lines() -> None:
    step = Step("Mine", OWN.at("opt.step()"))
    change = write("aten::sub_", OWN.at("p.data.sub_(p.grad)"), via="data", step=step, version_after=0)
    kept = save("AddmmBackward0", "mat2", OWN.at("net(x)"), name="fc.weight", kind="parameter")
    finding = explain(clobber(kept, change, read=OWN.at("out.backward()"), raised=False))
    assert finding is not None
    assert finding.code == "NC203"
    written = [one for one in finding.labels if one.role == "write"]
    assert [(one.span.line, one.primary) for one in written] == [(6, True), (3, False)]
    assert written[1].text == "`sub_` writes it here, in that step"
    assert "an alias such as `.data` has its own version counter, so PyTorch raises nothing" in finding.notes


def test_a_fused_step_is_silent() -> None:
    finding = stepped(PAIR, "critic(fake)", "loss_g.backward()", raised=False)
    assert (finding.code, finding.rule) == ("NC203", "unversioned-op")
    assert (
        finding.message
        == "`Adam.step` silently changes the parameter `fc.weight` before a backward that still needs it"
    )
    assert "a fused optimizer counts no version, so PyTorch raises nothing" in finding.notes
    assert "move `opt.step()` below line 4" in helped(finding)


def test_batch_norm_statistics_are_silent() -> None:
    program = Program("y = bn.eval()(x)\nbn.train()(z)\ny.sum().backward()\n")
    kept = save(
        "NativeBatchNormBackward0", "running_mean", program.at("bn.eval()(x)"), name="bn.running_mean", kind="buffer"
    )
    change = write("aten::native_batch_norm", program.at("bn.train()(z)"), via="unversioned", version_after=0)
    finding = explain(clobber(kept, change, raised=False))
    assert finding is not None
    assert finding.code == "NC203"
    assert finding.message == "batch norm silently rewrites the buffer `bn.running_mean`, which backward still needs"
    assert told(finding, "save").text.endswith("batch_norm keeps its running mean (version 0)")
    assert told(finding, "write").text == "`native_batch_norm` overwrites it here"
    assert "before the next train-mode forward" in helped(finding)


def test_a_collective_on_an_activation_is_silent() -> None:
    program = Program("y = h.exp()\ndist.all_reduce(y)\n")
    change = write("c10d::allreduce_", program.at("dist.all_reduce(y)"), via="unversioned", version_after=0)
    finding = explain(clobber(save("ExpBackward0", "result", program.at("h.exp()")), change, raised=False))
    assert finding is not None
    assert finding.code == "NC203"
    assert any("collective" in note for note in finding.notes)
    assert "`.clone()`" in helped(finding)


def test_bytes_beside_the_saved_ones() -> None:
    program = Program("for t in range(1, 9):\n    h[t] = h[t - 1] * w\nloss.backward()\n")
    kept = save("MulBackward0", "self", program.at("h[t - 1] * w"), name=None)
    finding = explain(
        clobber(kept, write("aten::copy_", program.at("h[t]"), overlaps=False), read=program.at("loss.backward()"))
    )
    assert finding is not None
    assert (finding.code, finding.rule) == ("NC102", "disjoint-write")
    assert finding.message.startswith("in-place write beside bytes that backward needs")
    assert told(finding, "write").text == "`copy_` writes beside it here (version 0 -> 1)"
    assert finding.notes[0].endswith("so the gradient would have been right")
    assert "`torch.stack`" in finding.suggestions[0].message
    assert finding.suggestions[1].message == "save a copy of the slice that is read: `.clone()`"


def test_one_overlapping_write_among_disjoint_ones_is_the_one_to_blame() -> None:
    program = Program("y = h.exp()\nh[0] = a\nh[1] = b\n")
    far, near = (
        write("aten::copy_", program.at("h[0]"), overlaps=False),
        write("aten::copy_", program.at("h[1]"), order=6),
    )
    finding = explain(clobber(save("ExpBackward0", "result", program.at("h.exp()")), far, near))
    assert finding is not None
    assert finding.code == "NC101"
    assert told(finding, "write").span.line == 3


def test_a_silent_write_beside_the_saved_bytes_is_no_finding() -> None:
    program = Program("y = h.exp()\nh.data[0] = a\n")
    change = write("aten::copy_", program.at("h.data[0]"), via="data", overlaps=False)
    assert explain(clobber(save("ExpBackward0", "result", program.at("h.exp()")), change, raised=False)) is None


@pytest.mark.parametrize(
    ("text", "via", "note", "words"),
    [
        ("y.data.mul_(2)", "data", "its own version counter", "write out of place"),
        ("y.data = u", "set_data", "`t.data = u` gives the tensor other bytes", "after the last backward"),
        ("swap_tensors(y, u)", "swap", "`swap_tensors` moves the bytes", "swap the tensors after"),
        ("alias.mul_(2)", "operator", "its own version counter", "write out of place"),
    ],
)
def test_silent_writes(text: str, via: Via, note: str, words: str) -> None:
    program = Program(f"y = h.exp()\n{text}\ny.sum().backward()\n")
    piece = "y.data" if via == "set_data" else text
    change = write("aten::mul_", program.at(f"{text}\n"[:-1] if piece is text else piece), via=via, version_after=0)
    if via == "set_data":
        change = write("aten::set_", Site(program.code, program.at("h.exp()").lasti), via=via)
    finding = explain(clobber(save("ExpBackward0", "result", program.at("h.exp()")), change, raised=False))
    assert finding is not None
    assert (finding.code, finding.rule, finding.severity) == ("NC201", "silent-write", "error")
    assert finding.message == "silent in-place write: backward reads other bytes than were saved"
    assert note in finding.notes[0]
    assert words in helped(finding)


def buffer_written(text: str, op: str, *, path: str = "", raised: bool = True, via: Via = "operator") -> Finding:
    program = Program(f"y = net(x)\n{text}\ny.sum().backward()\n")
    inside = None
    if path:
        library = Program("work()\n", path)
        inside = library.at("work()")
    change = write(op, program.at(text, inside=inside), via=via)
    finding = explain(
        clobber(save("MulBackward0", "other", program.at("net(x)"), name="net.u", kind="buffer"), change, raised=raised)
    )
    assert finding is not None
    return finding


def test_a_buffer_that_a_module_rewrites_below_a_mere_call() -> None:
    finding = buffer_written("net(x2)", "aten::copy_")
    assert (finding.code, finding.rule) == ("NC105", "buffer-sync")
    assert finding.message == "a forward rewrites the buffer `net.u`, which an earlier forward's backward still needs"
    assert "`.clone()`" in finding.suggestions[0].message
    assert "broadcast_buffers" not in helped(finding)


@pytest.mark.parametrize("raised", [True, False])
def test_a_buffer_that_is_broadcast(raised: bool) -> None:
    finding = buffer_written("ddp(x2)", "c10d::broadcast_", raised=raised, via="operator" if raised else "unversioned")
    assert finding.code == "NC105"
    assert ("silently" in finding.message) is not raised
    assert "`broadcast_buffers=False`" in helped(finding)
    assert any("rank 0" in note for note in finding.notes)


def test_a_buffer_that_a_distributed_library_writes() -> None:
    finding = buffer_written("engine(x2)", "aten::copy_", path="/env/site-packages/fairscale/distributed/sync.py")
    assert finding.code == "NC105"
    assert "`broadcast_buffers=False`" in helped(finding)
    assert told(finding, "inside").text == "`copy_` runs here, inside `fairscale`"


def test_a_buffer_that_the_program_writes_is_a_stale_save() -> None:
    finding = buffer_written("queue.copy_(x2)", "aten::copy_")
    assert finding.code == "NC101"
    assert finding.message == "in-place write to a buffer that backward still needs"


def test_codes_and_names_are_unique_and_agree_with_the_files() -> None:
    rules = catalogue()
    assert len({rule.code for rule in rules}) == len({rule.name for rule in rules}) == len(rules) >= 7
    files = sorted(path.stem for path in Path(noclobber.rules.__file__).parent.glob("*/nc*.py"))
    for rule, file in zip(rules, files, strict=True):
        assert f"{rule.code}_{rule.name}".lower().replace("-", "_").startswith(file)


def test_a_save_in_another_function_leaves_both_open() -> None:
    program = Program("""
        def forward(x):
            return cell(x)
        def learn():
            for x in data:
                h.sum().backward(retain_graph=True)
                opt.step()
    """)
    finding = stepped(program, "cell(x)", "h.sum().backward(retain_graph=True)")
    assert "detach what is carried" in finding.suggestions[0].message
    assert "every backward before the first step" in finding.suggestions[1].message


@pytest.mark.parametrize(
    ("text", "piece", "words"),
    [
        ("y = x.exp()\ny.sum().backward()\n", None, "bind the result to a new name, or write into a clone"),
        (
            "y = x.exp()\ny.numpy()[:] = 0\ny.sum().backward()\n",
            "y.numpy()[:]",
            "write into a clone: clone it before this assignment to `h`",
        ),
        (
            "y = x.exp()\ny[0] = 0\ny.sum().backward()\n",
            "y[0]",
            "write into a clone: `y = y.clone()` before this assignment to `y`",
        ),
        (
            "y = x.exp()\nwith torch.no_grad():\n    y.add_(bias)\ny.sum().backward()\n",
            "y.add_(bias)",
            "write out of place, with gradients on",
        ),
    ],
)
def test_the_help_for_an_activation(text: str, piece: str | None, words: str) -> None:
    program = Program(text)
    event = clobber(
        save("ExpBackward0", "result", program.at("x.exp()")),
        write("", program.at(piece) if piece else None),
        read=program.at("y.sum().backward()"),
    )
    finding = explain(event)
    assert finding is not None
    assert words in helped(finding)


def test_a_label_spells_a_tensor_as_its_line_does() -> None:
    program = Program("y = self.cache * w\nself.cache[0] = 1\ny.sum().backward()\n")
    saved = save("MulBackward0", "self", program.at("self.cache * w"), name="net.blocks.0.cache")
    event = clobber(saved, write("aten::copy_", program.at("self.cache[0]")), read=program.at("y.sum().backward()"))
    finding = explain(event)
    assert finding is not None
    assert told(finding, "save").text.startswith("`self.cache` is saved here")
    elsewhere = replace(event, save=replace(saved, site=program.at("y.sum().backward()")))
    finding = explain(elsewhere)
    assert finding is not None
    assert told(finding, "save").text.startswith("`net.blocks.0.cache` is saved here")
