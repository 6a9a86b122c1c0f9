"""Error texts that no small program on a CPU with PyTorch 2.13 raises: older releases, other devices, compiled code."""

from __future__ import annotations

import re
import textwrap

TEXTS = """
NC101 one of the variables needed for gradient computation has been modified by an inplace operation

NC101 one of the variables needed for gradient computation has been modified by an inplace operation:
    [torch.cuda.FloatTensor [64, 1, 4, 4]], which is output 0 of ExpBackward, is at version 2; expected version 1
    instead. Hint: enable anomaly detection to find the operation that failed to compute its gradient

NC101 one of the variables needed for gradient computation has been modified by an inplace operation: [CPUFloatType
    [3]] is at version 1; expected version 0 instead. Hint: the backtrace further above shows the operation that
    failed to compute its gradient. The variable in question was changed in there or anywhere later. Good luck!

NC101 torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised: RuntimeError: one of the variables needed
    for gradient computation has been modified by an inplace operation: [torch.FloatTensor [3]]

NC104 Trying to backward through the graph a second time, but the saved intermediate results have already been freed.

NC104 Trying to backward through the graph a second time, but the buffers have already been freed.

NC301 a leaf Variable that requires grad has been used in an in-place operation.

NC301 torch._dynamo.exc.TorchRuntimeError: RuntimeError when making fake tensor call Explanation: Dynamo failed to run
    FX node with fake tensors: got RuntimeError('a leaf Variable that requires grad is being used in an in-place
    operation.')

NC302 a view of a leaf Variable that requires grad is being used in an in-place operation.

NC303 Output 1 of SplitBackward0 is a view and is being modified inplace. This view is the output of a function that
    returns multiple views. Such functions do not allow the output views to be modified inplace.

NC303 Output 0 of UnbindBackward is a view and is being modified inplace. This view is the output of a function that
    returns multiple views. Inplace operators on such views are being deprecated and will be forbidden starting from
    version 1.8. Consider using `unsafe_` version of the function that produced this view

NC303 Output 0 of ChunkBackward is a view and is being modified inplace

NC304 Output 0 of SelectBackward0 is a view of a view which was created in no_grad mode and is being modified inplace
    with grad mode enabled. Given that this use case is ambiguous and error-prone, it is forbidden.

NC304 A view was created in inference mode and its base or another view of its base has been modified inplace in
    normal mode. Given that this use case is ambiguous and error-prone, it is forbidden.

NC305 Output 0 of BackwardHookFunctionBackward is a view and is being modified inplace. This view was created inside a
    custom Function (or because an input was returned as-is) and the autograd logic to handle view+inplace would
    override the custom backward associated with the custom Function, leading to incorrect gradients.

NC305 Output 0 of _DDPSinkBackward is a view and its base or another view of its base has been modified inplace. This
    view was created inside a custom Function (or because an input was returned as-is)

NC306 Inplace update to inference tensor in normal mode is not allowed.

NC306 Cannot set version_counter for inference tensor

NC307 unsupported operation: the input tensors cannot refer to any of the output memory locations. Found overlap in
    input tensor 1

NC308 result type ComplexFloat can't be cast to the desired output type long int

NC308 output with shape [1, 28, 28] doesn't match the broadcast shape [3, 28, 28]

NC309 mm(): functions with out=... arguments don't support automatic differentiation, but one of the arguments
    requires grad.

NC311 During a grad (vjp, jvp, grad, etc) transform, the function provided attempted to call in-place operation that
    would mutate a captured Tensor. This is not supported

NC312 An inplace custom Function is not returning the forward mode gradients as-is.

NC312 A custom Function is returning a view but the jvp is not returning a view of the same base as the given grad
    input.

NC312 Cannot set a value of a forward grad if it already exists. Inplace operations should modify it inplace.

NC312 Only inplace operations can re-set the forward grad of a Tensor that already has one.

NC312 ZeroTensors are immutable. Please use the materialized zero tensor obtained using .clone()

NC313 ctx.mark_dirty() received a tensor that was not an input.

NC313 Functions which modify views in-place must return a single Variable

NC399 leaf variable has been moved into the graph interior

NC399 set_storage is not allowed on a Tensor created from .data or .detach(). If your intent is to change the metadata

NC399 relu: in-place mkldnn operations are not supported yet

NC399 expected coalesced tensor for inplace operation

NC399 Cannot inplace into non-meta tensor with meta tensor argument

NC399 cannot mutate tensors with frozen storage

NC399 torch._dynamo.exc.BackendCompilerFailed: backend='aot_eager' raised: RuntimeError: During torch.compile,
    encountered a mutation on a view chain of length 3, where view 1 was an as_strided() call.

NC399 Unsupported: Inplace op on input tensor

NC399 Failed to mutate tensor data attribute

NC399 Encountered input mutation during higher order op tracing

NC399 optimizer: pending mutation on parameter

NC399 Found a graph input that had its metadata mutated in the backward. This is not supported

NC399 Saved tensors hooks with inputs mutations are not allowed

NC399 Undeclared in-place mutation on input tensor at position 0

NC399 f: the operator's schema f(Tensor x) -> () specified that the operator does not mutate the argument x, but this
    seems to be empirically wrong.

NC399 Mutating the view Tensor which does not have a derivative implemented is forbidden.

NC205 torch.utils.checkpoint: A different number of tensors was saved during the original forward and recomputation.

NC399 Gradient became undefined between defer and flush; gradients should not be modified during backward.
"""

ORDINARY = """
CUDA out of memory. Tried to allocate 2.00 GiB

Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!

element 0 of tensors does not require grad and does not have a grad_fn

grad can be implicitly created only for scalar outputs

view size is not compatible with input tensor's size and stride. Use .reshape(...) instead.

One of the differentiated Tensors appears to not have been used in the graph. Set allow_unused=True

Expected to have finished reduction in the prior iteration before starting a new one.

The size of tensor a (3) must match the size of tensor b (2) at non-singleton dimension 0

ValueError: assignment destination is read-only

Parameter indices which did not receive grad for rank 0: 2 3

the script was run in place of the other one, and the output was saved
"""


def paragraphs(block: str) -> list[str]:
    """Each paragraph of a block on one line."""
    return [re.sub(r"\s+", " ", one) for one in textwrap.dedent(block).strip().split("\n\n")]


def texts() -> list[tuple[str, str]]:
    """The rule's code and the text of each of `TEXTS`."""
    return [(one[:5], one[6:]) for one in paragraphs(TEXTS)]
