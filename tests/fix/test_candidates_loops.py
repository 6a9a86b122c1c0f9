"""A forward that stands before a loop is moved into it, where the loss gets its gradient from that forward alone."""

from textwrap import dedent

import pytest

from noclobber.model.reports.finding import Cause
from tests.fix.mending import mended

PROGRAM = """
    opt = SGD(net.parameters(), 0.1)
    out = net(x)
    loss = mse_loss(out, y)
    for _ in range(2):
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(loss)
"""


def moved(source: str, read: str = "loss.backward()", code: str = "NC104") -> str | None:
    """The first source in which a line with `net(x)` stands deeper than before; None if there is none."""
    before = _indent(dedent(source))
    return next((one for one in mended(code, source, read=read) if _indent(one) > before), None)


def _indent(source: str) -> int:
    return next((len(line) - len(line.lstrip()) for line in source.split("\n") if "net(x)" in line), 0)


def test_the_lines_that_make_the_loss_become_the_first_of_the_loop() -> None:
    assert moved(PROGRAM) == dedent("""\
        opt = SGD(net.parameters(), 0.1)
        for _ in range(2):
            out = net(x)
            loss = mse_loss(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(loss)
    """)


def test_a_graph_of_its_own_need_not_be_retained() -> None:
    retaining = PROGRAM.replace("backward()", "backward(retain_graph=True)")
    found = moved(retaining, "loss.backward(retain_graph=True)", "NC104")
    assert found is not None
    assert "    loss.backward()\n" in found


def test_what_has_no_part_in_the_loss_stays_above() -> None:
    source = PROGRAM.replace("    out = net(x)", "    out = net(x)\n    lr = 0.1\n    w = y.abs()").replace(
        "(out, y)", "(out, w)"
    )
    found = moved(source)
    assert found is not None
    assert "lr = 0.1\nw = y.abs()\nfor _ in range(2):\n    out = net(x)\n" in found


def test_a_loss_that_is_made_in_the_loop_moves_only_its_forward() -> None:
    source = PROGRAM.replace("    loss = mse_loss(out, y)\n", "").replace(
        "    opt.zero_grad()", "    loss = mse_loss(out, y)\n        opt.zero_grad()"
    )
    found = moved(source)
    assert found is not None
    assert "for _ in range(2):\n    out = net(x)\n    loss = mse_loss(out, y)\n" in found


HEADED = """
    opt = SGD([*net.parameters(), *head.parameters()], 0.1)
    out = net(x)
    opt.zero_grad()
    for i in range(2):
        part = slice(i, i + 1)
        loss = mse_loss(head(out[part]), y[part])
        loss.backward(retain_graph=True)
        opt.step()
"""


def test_another_model_may_run_in_the_loop_and_not_the_same() -> None:
    read = "loss.backward(retain_graph=True)"
    found = moved(HEADED, read)
    assert found is not None
    assert "opt.zero_grad()\nfor i in range(2):\n    out = net(x)\n    part" in found
    assert moved(HEADED.replace("head(out[part])", "head(out[part]) / net(z)"), read) is None
    assert moved(HEADED.replace("head(out[part])", "net.head(out[part])"), read) is None


def test_what_a_model_has_played_stays_above() -> None:
    source = """
        def play(net):
            with torch.no_grad():
                return net(start).argmax(1)
        def train(net):
            opt = SGD(net.parameters(), 0.1)
            moves = play(net)
            out = net(x)
            for _ in range(2):
                loss = -out.log_prob(moves).mean()
                opt.zero_grad()
                loss.backward(retain_graph=True)
                opt.step()
    """
    found = moved(source, "loss.backward(retain_graph=True)")
    assert found is not None
    assert "    moves = play(net)\n    for _ in range(2):\n        out = net(x)\n" in found


def test_gradients_may_be_clipped_and_read_in_the_loop() -> None:
    clip = (
        "nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n        print(net[0].weight.grad.norm())\n        opt.step()"
    )
    assert moved(PROGRAM.replace("opt.step()", clip)) is not None


def test_one_graph_that_serves_a_jacobian_is_retained_first() -> None:
    source = """
        out = net(x)
        for i in range(3):
            net.zero_grad()
            out[i].backward()
    """
    assert "retain_graph=True" in mended("NC104", source, read="out[i].backward()")[0]


def test_a_graph_from_before_a_loop_that_steps_is_not_kept() -> None:
    source = PROGRAM.replace("opt.zero_grad()", "loss = loss + net(z).sum()")
    causes = (Cause.BUILT_ONCE, None)
    kept = [mended("NC104", dedent(source), read="loss.backward()", cause=cause) for cause in causes]
    assert ["retain_graph=True" in "".join(found) for found in kept] == [False, True]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("opt.zero_grad()", "x = next(batches)"),
        ("opt.zero_grad()", "x[0] = 0"),
        ("loss = mse_loss(out, y)", "loss = mse_loss(out, y)\n    x.mul_(2)"),
        ("opt.zero_grad()", "loss = loss + net(z).sum()"),
        ("opt.zero_grad()", "loss = ratio(predict(x), loss)"),
        ("for _ in range(2)", "while loss > 0"),
        ("for _ in range(2)", "for _ in data"),
        ("loss = mse_loss(out, y)", "loss = mse_loss(out, y)\n    print(loss.item())"),
        ("loss = mse_loss(out, y)", "loss = mse_loss(out, y)\n    net.eval()"),
        ("loss = mse_loss(out, y)", "loss = mse_loss(out, y)\n    x = x * 2"),
        ("loss = mse_loss(out, y)", "self.loss = loss = mse_loss(out, y)"),
    ],
)
def test_a_forward_stays_where_another_meaning_is_possible(old: str, new: str) -> None:
    assert moved(PROGRAM.replace(old, new)) is None


@pytest.mark.parametrize("kept", ["losses.append(loss.detach())", "total += loss.item()", "log(loss.to('cpu'))"])
def test_a_loss_that_is_noted_in_the_loop_is_no_object(kept: str) -> None:
    source = PROGRAM.replace("    opt.step()", f"    opt.step()\n    {kept}")
    assert moved(source) is not None


@pytest.mark.parametrize(
    "made",
    [
        "opt, state = SGD(net.parameters(), 0.1), Sessions(net)",
        "state = sessions_of(net)",
        "state = Sessions(net)",
    ],
)
def test_what_keeps_something_from_turn_to_turn_is_not_made_anew(made: str) -> None:
    source = f"""
        opt = SGD(net.parameters(), 0.1)
        {made}
        for x in batches:
            loss = state.step(x).sum()
            opt.zero_grad()
            loss.backward(retain_graph=True)
            opt.step()
    """
    found = mended("NC103", source, read="loss.backward(retain_graph=True)", write="opt.step()")
    assert not any(f"    {made}" in one for one in found)


def test_a_forward_of_another_loop_is_repeated() -> None:
    source = """
        opt = SGD(net.parameters(), 0.1)
        for _ in range(2):
            out = net(x)
            other(out.detach()).backward()
        for _ in range(2):
            opt.zero_grad()
            loss = mse_loss(out, y)
            loss.backward(retain_graph=True)
            opt.step()
    """
    text = next(iter(mended("NC104", source, read="loss.backward(retain_graph=True)")))
    assert "    out = net(x)\n    opt.zero_grad()\n" in text
    assert text.count("out = net(x)") == 2


NESTED = """
    def evaluate(x):
        return net(x)
    opt = SGD(net.parameters(), 0.1)
    {before}
    out = evaluate(x)
    for _ in range(2):
        opt.zero_grad()
        for part in parts:
            loss = mse_loss(out[part], y)
            loss.backward(retain_graph=True)
        opt.step()
"""


@pytest.mark.parametrize(
    ("before", "is_kept"),
    [
        ("y = evaluate(z).detach()", False),
        ("with torch.no_grad():\n        y = evaluate(z)", True),
        ("y = played(z)", True),
        ("y = targets(z)", True),
    ],
)
def test_the_innermost_loop_gets_a_forward_of_a_function_and_no_constant(before: str, is_kept: bool) -> None:
    playing = """
    @torch.no_grad()
    def played(x):
        return net(x)
    def targets(x):
        with torch.inference_mode():
            return net(x)
    """
    source = playing + NESTED.format(before=before)
    found = mended("NC103", source, read="loss.backward(retain_graph=True)", write="opt.step()")
    moved = [one for one in found if "    for part in parts:\n        out = evaluate(x)\n        loss" in one]
    assert moved
    assert all(("    y = evaluate(z)" in one) <= is_kept for one in moved)
    assert "loss.backward()" in moved[0]


CLOSURE = """
    opt = LBFGS(net.parameters())
    {before}
    def closure():
        \"\"\"A loss.\"\"\"
        opt.zero_grad()
        loss = mse_loss(net.head(out), y)
        loss.backward()
        return loss
    opt.step(closure)
"""


def test_a_closure_begins_with_its_forward() -> None:
    found = moved(CLOSURE.format(before="out = net(x)"))
    assert found is not None
    assert 'A loss."""\n    out = net(x)\n    opt.zero_grad()\n' in found
    assert "0.1)\nout" not in found


@pytest.mark.parametrize("said", ["out = net(x)\n    opt = LBFGS(out)", "loss = y\n    out = net(loss)"])
def test_a_closure_has_no_forward_of_what_it_binds(said: str) -> None:
    assert moved(CLOSURE.format(before=said).replace("def closure():", "def closure(opt=opt):")) is None
