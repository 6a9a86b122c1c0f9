"""The device that is played: the program sees a GPU, with the memory of one."""

import contextlib
import warnings

import pytest
import torch
import torch.utils.checkpoint

import noclobber


@pytest.fixture
def run():
    with noclobber.fake(device="cuda:2xA100") as block:
        yield block


def test_the_gpu_is_there_and_gone_after():
    before = torch.cuda.is_available()
    with noclobber.fake(device="cuda:8xH100"):
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 8
        assert torch.cuda.get_device_properties(0).total_memory == 80 * 10**9
        assert "H100" in torch.cuda.get_device_name()
        assert torch.accelerator.current_accelerator() == torch.device("cuda")
    assert torch.cuda.is_available() == before


def test_every_way_of_naming_a_device(run):
    ways = [
        torch.randn(3, device="cuda"),
        torch.randn(3).cuda(),
        torch.randn(3).to("cuda:0"),
        torch.randn(3).to(torch.device("cuda")),
        torch.randn(3).to(0),
        torch.tensor([1.0, 2.0], device="cuda"),
        torch.as_tensor([1.0], device="cuda"),
        torch.randn(3, device="cuda").new_tensor([1.0]),
        torch.zeros_like(torch.randn(3), device="cuda"),
        torch.randn(3).to(torch.device(0)),
        torch.nn.Linear(3, 3).cuda().weight,
        torch.nn.Linear(3, 3, device="cuda").weight,
        torch.nn.Linear(3, 3).to("cuda").bias,
    ]
    with torch.device("cuda"):
        ways.append(torch.randn(3))
    for tensor in ways:
        assert tensor.device == torch.device("cuda:0")
        assert tensor.is_cuda
        assert not tensor.is_cpu
        assert tensor.get_device() == 0
    assert torch.randn(3, device="cuda:1").device.index == 1
    assert torch.randn(3, device="cuda").cpu().device == torch.device("cpu")
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.randn(3, device="cuda:5")


def test_types_of_older_programs_are_those_of_the_gpu(run):
    made = torch.cuda.FloatTensor(2, 3)
    assert (made.device.type, made.shape, made.dtype) == ("cuda", (2, 3), torch.float32)
    assert torch.cuda.LongTensor([4, 5]).tolist() == [4, 5]
    assert made.type() == "torch.cuda.FloatTensor"
    assert isinstance(made, torch.cuda.FloatTensor)
    assert not isinstance(made.cpu(), torch.cuda.FloatTensor)
    assert torch.randn(2).type(torch.cuda.HalfTensor).type() == "torch.cuda.HalfTensor"
    assert torch.randn(2, device="cuda:1").type("torch.cuda.LongTensor").device == torch.device("cuda:1")
    assert made.type(torch.DoubleTensor).type() == "torch.DoubleTensor"
    assert made.type(torch.float64).is_cuda
    torch.set_default_tensor_type("torch.cuda.FloatTensor")
    try:
        assert torch.zeros(3).is_cuda
    finally:
        torch.set_default_device(None)


def test_a_tensor_that_is_there_is_not_copied(run):
    tensor = torch.randn(3, device="cuda")
    assert tensor.to("cuda") is tensor
    assert tensor.cuda() is tensor
    assert tensor.cpu() is not tensor


def test_tensors_on_two_devices_do_not_meet(run):
    with pytest.raises(RuntimeError, match="cuda:0"):
        torch.randn(3, device="cuda") + torch.randn(3)


def test_numpy_refuses_as_it_does_on_a_gpu(run):
    with pytest.raises(TypeError, match="cuda:0"):
        torch.randn(3, device="cuda").numpy()


def test_autocast_casts_as_a_gpu_does(run):
    layer, x = torch.nn.Linear(8, 8).cuda(), torch.randn(4, 8, device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        y = layer(x)
        assert y.dtype is torch.float16
        assert y.softmax(-1).dtype is torch.float32
        assert torch.nn.functional.layer_norm(y, (8,)).dtype is torch.float32
    assert layer(x).dtype is torch.float32
    assert not torch.is_autocast_enabled("cpu")


def test_a_region_that_runs_again_in_backward_is_on_the_gpu_too(run):
    weight = torch.randn(8, 8, device="cuda", requires_grad=True)
    dtypes = []

    def region(x):
        y = (x @ weight).pow(3)
        dtypes.append(y.dtype)
        return y.pow(2) + torch.ones(8).to("cuda")

    with torch.autocast("cuda", torch.bfloat16), noclobber.watch() as seen:
        output = torch.utils.checkpoint.checkpoint(region, torch.randn(4, 8, device="cuda"), use_reentrant=False)
        output.sum().backward()
    assert dtypes == [torch.float32] * 2
    assert not seen.findings


def test_a_scaler_lets_the_step_happen(run):
    layer = torch.nn.Linear(8, 8).cuda()
    optimizer, scaler = torch.optim.SGD(layer.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        loss = layer(torch.randn(4, 8, device="cuda")).square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    version = layer.weight._version
    scaler.step(optimizer)
    scaler.update()
    assert layer.weight._version > version


def test_dropout_and_attention_keep_what_they_keep_on_a_gpu(run):
    def kept(make):
        with noclobber.watch(ledger=True) as seen:
            make()
        return seen.ledger().bytes

    x = torch.randn(1000, device="cuda", requires_grad=True)
    assert kept(lambda: torch.nn.functional.dropout(x, 0.5)) == 1000
    q = torch.randn(1, 4, 1024, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) * 1
    attend = torch.nn.functional.scaled_dot_product_attention
    pairs = 4 * 1024 * 1024
    assert kept(lambda: attend(q, q, q, dropout_p=0.1, is_causal=True)) < 4 * q.nbytes < 2 * pairs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("are_shared", [False, True])
@pytest.mark.parametrize(
    ("batch", "keys", "values"),
    [(3, 8, 8), (3, 2, 2), (3, 1, 1), (3, 3, 3), (3, 16, 16), (3, 4, 2), (1, 8, 8), (2, 8, 8)],
)
def test_attention_takes_and_refuses_the_heads_that_pytorch_does(batch, keys, values, are_shared, is_masked, dtype):
    def attended(device):
        query = torch.randn(3, 8, 4, 16, device=device, dtype=dtype, requires_grad=True)
        key, value = (torch.randn(batch, heads, 6, 16, device=device, dtype=dtype) for heads in (keys, values))
        mask = torch.ones(4, 6, dtype=torch.bool, device=device) if is_masked else None
        attend = torch.nn.functional.scaled_dot_product_attention
        try:
            output = attend(query, key, value, mask, enable_gqa=are_shared)
        except RuntimeError:
            return "refused"
        output.sum().backward()
        return output.shape

    right = attended("cpu")
    with noclobber.fake():
        assert attended("cuda") == right


@pytest.mark.parametrize("is_cast", [False, True])
@pytest.mark.parametrize("of_mask", [None, torch.bool, torch.int64, torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("of_keys", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("of_query", [torch.float32, torch.bfloat16])
def test_attention_takes_and_refuses_the_types_that_pytorch_does(of_query, of_keys, of_mask, is_cast):
    def attended(device):
        query = torch.randn(1, 8, 4, 16, device=device, dtype=of_query, requires_grad=True)
        key = torch.randn(1, 8, 4, 16, device=device, dtype=of_keys)
        mask = None if of_mask is None else torch.ones(4, 4, dtype=of_mask, device=device)
        try:
            with torch.autocast(device, torch.bfloat16, enabled=is_cast):
                output = torch.nn.functional.scaled_dot_product_attention(query, key, key, mask)
        except RuntimeError:
            return "refused"
        output.sum().backward()
        return output.dtype

    right = attended("cpu")
    with noclobber.fake():
        assert attended("cuda") == right


def test_an_optimizer_steps_over_all_parameters_at_once_as_on_a_gpu(run):
    parameters = [torch.nn.Parameter(torch.randn(64, 64, device="cuda")) for _ in range(10)]
    sum(one.square().sum() for one in parameters).backward()
    torch.optim.AdamW(parameters).step()
    assert [one._version for one in parameters] == [2] * 10  # decayed and stepped
    # parameters, gradients, two states, and the square roots of one (torch 2.13, optim/adam.py)
    assert torch.cuda.max_memory_allocated() == pytest.approx(5 * 10 * 64 * 64 * 4, rel=0.02)


@pytest.mark.parametrize(("gpu", "workspace"), [("H100", 32 * 2**20), ("A100", 2 * 2**22 + 2**17)])
def test_forward_and_backward_each_have_a_workspace_for_products(gpu, workspace):
    with noclobber.fake(device=f"cuda:{gpu}"):
        x = torch.randn(8, 8, device="cuda", requires_grad=True)
        before = torch.cuda.memory_allocated()
        output = x.relu() @ x
        kept = 2 * x.nbytes
        assert torch.cuda.memory_allocated() - before == workspace + kept
        output.sum().backward()
        del output
        assert torch.cuda.memory_allocated() - before == 2 * workspace + x.grad.nbytes


def test_a_bag_of_embeddings_keeps_where_each_one_goes_as_on_a_gpu(run):
    layer, x = torch.nn.EmbeddingBag(50, 8, mode="sum").cuda(), torch.randint(0, 50, (4, 6), device="cuda")
    with noclobber.watch(ledger=True) as seen:
        layer(x)
    # the indices, where each goes, the first of each bag, how many a bag has (torch 2.13, cuda/EmbeddingBag.cu)
    assert seen.ledger().bytes == (24 + 24 + 4 + 4) * 8


def test_memory_is_that_of_the_tensors(run):
    begin = torch.cuda.memory_allocated()
    big = torch.empty(10**12, device="cuda", dtype=torch.uint8)
    assert torch.cuda.memory_allocated() - begin == 10**12
    del big
    assert torch.cuda.memory_allocated() == begin
    assert torch.cuda.max_memory_allocated() >= 10**12


def test_memory_that_the_program_takes_away_is_not_counted(run):
    begin, tensor = torch.cuda.memory_allocated(), torch.empty(10**6, device="cuda")
    for size in (0, 4 * 10**6, 0):
        tensor.untyped_storage().resize_(size)
        assert torch.cuda.memory_allocated() - begin == size


def test_nothing_warns_of_addresses(run):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)).cuda()
        with noclobber.watch():
            model(torch.randn(4, 8, device="cuda").view(8, 4).t()).sum().backward()
        one = torch.randn(4)
        assert one.data_ptr() == one.view(2, 2).data_ptr() != torch.randn(4).data_ptr()


@pytest.mark.parametrize("devices", [[0], [0, 1]])
def test_data_parallel_runs(run, devices):
    model = torch.nn.DataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)), devices).cuda()
    output = model(torch.randn(6, 4))
    output.sum().backward()
    assert (output.device, output.shape) == (torch.device("cuda:0"), (6, 4))
    assert model.module[0].weight.grad.shape == (4, 4)


def test_the_accelerator_is_chosen_for_a_block(run):
    with torch.accelerator.device_index(1):
        assert torch.randn(3, device="cuda").device == torch.device("cuda:1")
    assert torch.cuda.current_device() == 0


def test_recurrent_weights_move_without_a_warning(run):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net = torch.nn.LSTM(4, 4).cuda()
    assert net.weight_hh_l0.is_cuda


def test_shared_memory_is_left_as_it_is():
    with noclobber.fake(device="cpu"):
        model = torch.nn.Linear(3, 3).share_memory()
        model(torch.randn(2, 3)).sum().backward()
        assert model.weight.grad.shape == (3, 3)


def test_a_device_is_named_by_its_number():
    with noclobber.fake(device="cuda:2"):
        assert torch.nn.Linear(2, 2).to(1).weight.device == torch.device("cuda", 1)
        assert torch.ones(2).to(1).device == torch.device("cuda", 1)
        assert torch.nn.Linear(2, 2).to(torch.float64).weight.dtype is torch.float64


@pytest.mark.parametrize("compressed", [False, True])
def test_a_sparse_matrix_lies_where_it_was_put(run, compressed):
    matrix = torch.eye(50_000, 4).to_sparse_csr() if compressed else torch.eye(50_000, 4).to_sparse()
    weight = torch.randn(4, 10**6, device="cuda", requires_grad=True)
    product = matrix.cuda() @ weight  # 200 GB
    product.sum().backward()
    assert (product.device, product.shape) == (torch.device("cuda:0"), (50_000, 10**6))
    assert (weight.grad.device, weight.grad.shape) == (torch.device("cuda:0"), (4, 10**6))


@pytest.mark.parametrize("watched", [False, True])
def test_an_assignment_to_data_moves_a_tensor(run, watched):
    layer, count = torch.nn.Linear(3, 3), torch.zeros(2)
    with noclobber.watch() if watched else contextlib.nullcontext():
        for one in layer.parameters():
            one.data = one.data.cuda()
        count.data = torch.tensor([3.0, 4.0])
        output = layer(torch.randn(2, 3, device="cuda"))
        output.sum().backward()
    assert layer.weight.device == layer.weight.grad.device == output.device == torch.device("cuda:0")
    assert count.tolist() == [3, 4]
    layer.weight.data = layer.weight.data.cpu()
    assert layer.weight.device == torch.device("cpu")
