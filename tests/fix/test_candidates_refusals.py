"""Candidates for writes that PyTorch refuses: such as compute, by construction, what the write would have."""

from __future__ import annotations

import pytest

from tests.fix.mending import changes, mended


def test_an_update_of_weights_goes_under_no_grad_with_its_neighbours() -> None:
    source = """
        for _ in range(3):
            loss(w, b).backward()
            w -= 0.1 * w.grad
            b -= 0.1 * b.grad
            print(w)
    """
    first = mended("NC301", source, write="w -= 0.1 * w.grad")[0]
    assert first.split("\n")[2:6] == [
        "    with torch.no_grad():",
        "        w -= 0.1 * w.grad",
        "        b -= 0.1 * b.grad",
        "    print(w)",
    ]


def test_a_function_that_returns_nothing_may_go_under_no_grad_whole() -> None:
    source = """
        def clip(net):
            for p in net.parameters():
                p.clamp_(-1, 1)
    """
    found = mended("NC301", source, write="p.clamp_(-1, 1)", kind="parameter")
    assert any(one.startswith("@torch.no_grad()\ndef clip(net):") for one in found)


@pytest.mark.parametrize("value", ["encode(patches)", "patches.log()", "patches.float()"])
def test_a_value_that_may_carry_a_gradient_is_never_put_under_no_grad(value: str) -> None:
    """That gradient would be lost without a word; a clone lets it through."""
    source = f"""
        def merge(embeds, patches):
            embeds[0] = {value}
            return embeds
    """
    found = mended("NC301", source, write="embeds[0]")
    assert found
    assert not any("no_grad" in one for one in found)
    assert f"    embeds = embeds.clone()\n    embeds[0] = {value}" in found[0]


@pytest.mark.parametrize("value", ["math.log(3)", "torch.zeros(3)", "float(x)", "x.item()", "np.sqrt(2)"])
def test_numbers_may_be_put_under_no_grad(value: str) -> None:
    found = mended("NC301", f"w[0] = {value}\n", write="w[0]", kind="parameter")
    assert any("no_grad" in one for one in found)


def test_an_update_that_is_differentiated_through_is_never_put_under_no_grad() -> None:
    source = """
        def adapt(w, loss):
            g = torch.autograd.grad(loss, w, create_graph=True)[0]
            w -= 0.1 * g
            return w
    """
    found = changes("NC301", source, write="w -= 0.1 * g")
    assert not any("no_grad" in one for one in found)
    assert "w = w - 0.1 * g" in found


def test_a_write_that_only_the_caller_sees_is_not_moved_to_a_new_tensor() -> None:
    """`shift` returns nothing and reads nothing after: out of place it would do nothing."""
    source = """
        def shift(t, by):
            t += by
    """
    for code in ("NC303", "NC306", "NC307", "NC399"):
        assert "t = t + by" not in changes(code, source, write="t += by")


def test_a_loop_over_the_rows_of_a_tensor_writes_them_by_index() -> None:
    source = """
        def f(image):
            for c, m in zip(image, MEANS):
                c.sub_(m).div_(2)
            return image
    """
    by_index, into_clone, *rest = mended("NC303", source, write="c.sub_(m)", create="zip(image, MEANS)")
    lines = ["    for i, m in zip(range(len(image)), MEANS):", "        image[i].sub_(m).div_(2)", "    return image"]
    assert by_index.split("\n")[1:4] == lines
    assert into_clone.split("\n")[1:5] == ["    image = image.clone()", *lines]
    assert any(
        "    image = torch.stack([c.sub(m).div(2) for c, m in zip(image, MEANS, strict=True)])\n" in one for one in rest
    )


def test_views_are_taken_one_at_a_time() -> None:
    assert changes("NC303", "a, b = x.unbind(0)\na.mul_(2)\n", write="a.mul_(2)")[0] == "a, b = x[0], x[1]"
    found = changes("NC303", "a, b = torch.unbind(x, dim=1)\na.mul_(2)\n", write="a.mul_(2)")
    assert found[0] == "a, b = x[:, 0], x[:, 1]"
    found = changes("NC303", "a, b = x.unbind(0)\nfor one in (a, b):\n    one.mul_(2)\n", write="one.mul_(2)")
    assert found[0] == "a, b = x[0], x[1]"
    found = changes("NC303", "for one in x.unbind(1):\n    one *= 2\n", write="one *= 2")
    assert found[0] == "for i in range(x.size(1)):\nx[:, i] *= 2"
    found = changes("NC303", "parts = x.unbind(-1)\nfor one in parts:\n    one *= 2\n", write="one *= 2")
    assert found[0] == "for i in range(x.size(-1)):\nx[..., i] *= 2"
    bound = "parts = x.unbind(1)\nx = y\nfor one in parts:\n    one *= 2\n"
    assert not any("range" in one for one in changes("NC303", bound, write="one *= 2"))


def test_a_part_is_not_written_out_of_place_where_the_whole_is_read_later() -> None:
    source = """
        def f(x):
            a = x.narrow(0, 0, 2)
            a += 1
            return x, a
    """
    assert "a = a + 1" not in changes("NC304", source, write="a += 1")


def test_views_are_taken_where_they_are_written() -> None:
    source = """
        head, tail = code[:2], code[2:]
        head.copy_(left(x))
        tail.copy_(right(x))
    """
    assert (
        mended("NC301", source, write="tail.copy_(right(x))")[0]
        == "code[:2].copy_(left(x))\ncode[2:].copy_(right(x))\n"
    )


def test_inference_mode_becomes_no_grad() -> None:
    source = """
        with torch.inference_mode():
            h = net(x)
        y = head(h)
    """
    assert changes("NC306", source, save="head(h)")[0] == "with torch.no_grad():"


def test_views_are_made_with_gradients_recorded() -> None:
    source = """
        @torch.no_grad()
        def tiles(x):
            return [x[i] for i in range(2)]

        def paint(x):
            for t in tiles(x):
                t.add_(brush())
            return x
    """
    alone, lazy = mended("NC304", source, write="t.add_(brush())")[:2]
    assert alone.startswith("def tiles(x):\n    return [x[i]")
    assert lazy.startswith("def tiles(x):\n    return (x[i] for i in range(2))\n")


def test_a_view_is_made_outside_of_no_grad() -> None:
    source = """
        def f(flat, delta):
            with torch.no_grad():
                w = flat[:4]
            w.add_(delta)
            return w
    """
    assert "    w = flat[:4]\n    w.add_(delta)" in "".join(mended("NC304", source, write="w.add_(delta)")[:2])


def test_expanded_tensors_get_their_own_bytes() -> None:
    source = """
        def f(w):
            h = w.expand(4, 3)
            h[0] = 1
            return h
    """
    assert "h = w.expand(4, 3).clone()" in changes("NC307", source, write="h[0]")


def test_a_canvas_is_made_from_what_is_mapped() -> None:
    source = """
        def f(edges):
            canvas = torch.zeros(3, 3)
            canvas[0, 1] = edges[0]
            return canvas
    """
    assert changes("NC310", source, write="canvas[0, 1]")[0] == "canvas = edges.new_zeros(3, 3)"


def test_parts_of_a_tuple_are_bound_to_new_tensors() -> None:
    source = """
        def truncate(self):
            for part in (self.h, self.c):
                part.detach_()
    """
    assert changes("NC399", source, write="part.detach_()")[0] == "self.h, self.c = self.h.detach(), self.c.detach()"


FUNCTION = """
    class Triple(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            ctx.kept = t
            t.mul_(3)
            return t

        @staticmethod
        def backward(ctx, g):
            g.mul_(ctx.kept)
            return g

    y = Triple.apply(x)
"""


def test_a_function_is_given_a_clone_or_declares_its_write() -> None:
    found = changes("NC207", FUNCTION, write="t.mul_(3)", read="Triple.apply(x)")
    assert found[0] == "y = Triple.apply(x.clone())"
    assert "ctx.mark_dirty(t)" in found
    returned = FUNCTION.replace("return t\n", "return t.clone()\n")
    assert "ctx.mark_dirty(t)\nreturn t" in changes("NC207", returned, write="t.mul_(3)", read="Triple.apply(x)")


def test_a_backward_makes_new_tensors() -> None:
    assert changes("NC206", FUNCTION, write="g.mul_(ctx.kept)")[0] == "g = g * ctx.kept"


def test_a_hook_returns_a_new_gradient() -> None:
    found = changes("NC206", "h.register_hook(lambda g: g.mul_(k))\n", write="g.mul_(k)")
    assert found[0] == "h.register_hook(lambda g: g * k)"
    source = """
        def damp(g):
            g.mul_(0.5)
    """
    assert changes("NC206", source, write="g.mul_(0.5)")[0] == "return g * 0.5"


def test_a_buffer_that_is_detached_and_filled_again_is_bound_to_a_new_tensor() -> None:
    source = """
        class Sampler:
            def draw(self, rate, noise):
                self.buffer.detach_()
                self.buffer.copy_(rate.exp() * noise)
                return self.buffer
    """
    first = mended("NC399", source, write="self.buffer.copy_(rate.exp() * noise)")[0]
    assert first.split("\n")[1:4] == [
        "    def draw(self, rate, noise):",
        "        self.buffer = rate.exp() * noise",
        "        return self.buffer",
    ]


def test_what_an_object_keeps_expanded_gets_its_bytes_where_it_is_made() -> None:
    source = """
        class Norm(nn.Module):
            def __init__(self, groups, d):
                self.register_buffer("wm", torch.eye(d).expand(groups, d, d))

            def forward(self, x):
                self.wm.mul_(0.9)
                return self.wm @ x
    """
    assert "expand(groups, d, d).clone())" in changes("NC307", source, write="self.wm.mul_(0.9)", op="aten::mul_")[0]
