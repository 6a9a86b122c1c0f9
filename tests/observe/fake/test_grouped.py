"""Products of groups of matrices have the shapes, strides and memory of real ones."""

import pytest
import torch

import noclobber


def made(*shape, dtype):
    return torch.ones(*shape, dtype=dtype)


def ends(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


PRODUCTS = {
    "rows of each expert": lambda dtype: (made(6, 8, dtype=dtype), made(2, 16, 8, dtype=dtype).mT, ends(3, 6)),
    "columns that fill no row": lambda dtype: (made(6, 8, dtype=dtype), made(2, 7, 8, dtype=dtype).mT, ends(3, 6)),
    "groups of both": lambda dtype: (made(2, 6, 8, dtype=dtype), made(2, 7, 8, dtype=dtype).mT, None),
    "groups inside": lambda dtype: (made(8, 8, dtype=dtype).T, made(8, 16, dtype=dtype), ends(8, 8)),
    "columns of each": lambda dtype: (made(2, 6, 8, dtype=dtype), made(16, 8, dtype=dtype).T, ends(8, 16)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_of_groups_is_like_a_real_one(name, dtype):
    def product():
        one, other, offsets = PRODUCTS[name](dtype)
        result = torch._grouped_mm(one, other, offs=offsets)
        return result.shape, result.stride(), result.dtype, result.untyped_storage().nbytes()

    real = product()
    with noclobber.fake(device="cpu"):
        assert product() == real


def test_experts_have_gradients():
    with noclobber.fake():
        weight = torch.ones(2, 16, 8, device="cuda", requires_grad=True)
        rows = torch.ones(6, 8, device="cuda", requires_grad=True)
        torch.nn.functional.grouped_mm(rows, weight.mT, offs=ends(3, 6).cuda()).sum().backward()
        assert (weight.grad.shape, rows.grad.shape) == (weight.shape, rows.shape)
