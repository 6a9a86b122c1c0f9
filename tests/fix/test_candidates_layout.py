"""Candidates keep comments and indentation where they were."""

from __future__ import annotations

from tests.fix.mending import changes, mended


def test_a_method_of_a_weight_is_no_module_to_be_called_on_copies() -> None:
    source = "y = self.emb.weight.pow(2)\nself.emb.weight.data.mul_(2)\n"
    write = "self.emb.weight.data.mul_(2)"
    found = changes("NC201", source, write=write, save="self.emb.weight.pow(2)", kind="parameter")
    assert not any("functional_call" in one for one in found)


def test_of_a_part_that_is_written_the_index_is_what_autograd_keeps() -> None:
    source = """
        def step(scores, visited, i):
            scores[visited] = -1.0
            visited[i] = True
            return scores
    """
    found = changes("NC101", source, write="visited[i]", save="scores[visited]", field="indices", name="visited")
    assert "scores[visited.clone()] = -1.0" in found
    assert not any("scores.clone()[" in one for one in found)


def test_a_leaf_its_bounds_and_its_gradient_go_under_one_guard_with_the_blanks_of_the_file() -> None:
    source = (
        "def attack(x, eps):\n  d = torch.zeros_like(x, requires_grad=True)\n  loss(x + d).backward()\n"
        "  d += 0.1 * d.grad.sign()  # up\n  d.clamp_(-eps, eps)\n  d.grad.zero_()\n  return d\n"
    )
    first = mended("NC301", source, write="d += 0.1 * d.grad.sign()")[0]
    assert first.split("\n")[3:8] == [
        "  with torch.no_grad():",
        "    d += 0.1 * d.grad.sign()  # up",
        "    d.clamp_(-eps, eps)",
        "    d.grad.zero_()",
        "  return d",
    ]


def test_what_makes_a_tensor_is_not_put_where_it_is_written() -> None:
    source = "d = torch.zeros_like(x, requires_grad=True)\nd.clamp_(0, 1)\n"
    assert not any(
        "zeros_like(x, requires_grad=True).clamp_" in one for one in mended("NC301", source, write="d.clamp_")
    )


UPDATES = """
    d_opt.zero_grad()
    d_loss.backward(retain_graph=True)
    # the critic moves
    d_opt.step()  # here

    # and now the generator
    g_opt.zero_grad()
    g_loss.backward()
    g_opt.step()
"""


def test_a_step_takes_its_comments_along() -> None:
    found = mended("NC103", UPDATES, write="d_opt.step()", read="g_loss.backward()", op="SGD.step")
    assert found[1] == (
        "d_opt.zero_grad()\nd_loss.backward(retain_graph=True)\n\n# and now the generator\ng_opt.zero_grad()\n"
        "g_loss.backward()\n# the critic moves\nd_opt.step()  # here\ng_opt.step()\n"
    )


def test_an_update_that_comes_first_takes_its_heading_along() -> None:
    found = mended("NC103", UPDATES, write="d_opt.step()", read="g_loss.backward()", op="SGD.step")
    assert any(
        one.startswith(
            "# and now the generator\ng_opt.zero_grad()\ng_loss.backward(retain_graph=True)\ng_opt.step()\n\n"
        )
        and one.endswith("\n\nd_opt.zero_grad()\nd_loss.backward()\n# the critic moves\nd_opt.step()  # here\n")
        for one in found
    )


def test_a_change_that_is_put_off_takes_its_heading_along() -> None:
    source = """
        loss = q(s) - target(s)
        # follow slowly
        update(target, q)
        loss.backward()
    """
    found = mended("NC201", source, write="update(target, q)", read="loss.backward()", kind="parameter")
    assert "loss.backward()\n# follow slowly\nupdate(target, q)\n" in found[0]


def test_a_guard_is_as_deep_as_the_blocks_of_the_file() -> None:
    source = "def clip(net):\n  for w in net.w:\n    w.clamp_(0, 1)\n"
    found = mended("NC301", source, write="w.clamp_(0, 1)", kind="parameter")
    assert found[0] == "def clip(net):\n  for w in net.w:\n    with torch.no_grad():\n      w.clamp_(0, 1)\n"


def test_a_flag_is_taken_out() -> None:
    source = "y = F.relu(h, inplace=True)\n"
    assert changes("NC101", source, write="F.relu(h, inplace=True)")[0] == "y = F.relu(h)"


def test_a_function_that_writes_its_argument_is_given_a_clone_of_that_argument() -> None:
    found = changes("NC101", "h = w.exp()\ny = scale(0.5, h)\n", write="scale(0.5, h)", save="w.exp()", name="h")
    assert found[0] == "y = scale(0.5, h.clone())"
