"""Which saves are results of their own node: what noclobber reads off the operators' schemas is what autograd did."""

from contextlib import suppress

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves

from noclobber.observe.torch_api.autograd import graph

SAMPLES = 1


def saves():
    """Saved tensors in the graph, with their nodes and fields, of the forward and the backward of every operator."""
    for op in op_db:
        if torch.float32 not in op.supported_dtypes("cpu") or not op.supports_autograd:
            continue
        samples = zip(range(SAMPLES), op.sample_inputs_func(op, "cpu", torch.float32, True), strict=False)
        for _, sample in samples:
            outputs = []
            with suppress(RuntimeError):  # some have no second gradient
                outputs += in_graph(op(sample.input, *sample.args, **sample.kwargs))
                inputs = in_graph((sample.input, sample.args, sample.kwargs))
                seeds = [torch.ones_like(one) for one in outputs]
                if outputs and inputs:
                    again = torch.autograd.grad(outputs, inputs, seeds, create_graph=True, allow_unused=True)
                    outputs += in_graph(again)
            for node in graph.walk(graph.roots_of(outputs)):
                for saved in graph.saves_of_or_gone(node):
                    with suppress(RuntimeError):  # read by a backward that kept nothing
                        value = getattr(node, f"_saved_{saved.field}", None)
                        tensor = value if saved.position is None or value is None else value[saved.position]
                        if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                            yield node, saved.field, tensor


def in_graph(tree):
    return [one for one in tree_leaves(tree) if isinstance(one, torch.Tensor) and one.requires_grad]


def test_a_result_is_known_with_its_number():
    right, wrong = set(), set()
    for node, field, tensor in saves():
        number = tensor.output_nr if tensor.grad_fn is node else None
        known = graph.output_of(node, field)
        (right if known == number else wrong).add((node.name(), field, known, number))
    assert not wrong
    assert len(right) > 250
    assert {field for _, field, number, _ in right if number is not None} > {"result", "result1", "Vh", "inverse"}
