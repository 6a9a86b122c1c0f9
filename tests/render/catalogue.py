"""A finding of many a rule, as the rules word them, for the golden files."""

from __future__ import annotations

from noclobber.model.reports.finding import Finding

from .source import File, advice, finding, stale

_TRAIN = File("train.py", {7: "h = torch.sigmoid(w(x))", 8: "h += x.detach()", 12: "loss.backward()"})

stale_save = stale(
    _TRAIN.save(7, "torch.sigmoid(w(x))", "`h` is saved here: sigmoid keeps its result (version 0)"),
    _TRAIN.write(8, "h += x.detach()", "`add_` overwrites it here (version 0 -> 1)"),
    _TRAIN.read(12, "loss.backward()", "backward reads it here, in SigmoidBackward0"),
    notes=(
        "d sigmoid(x)/dx = y (1 - y), so autograd keeps y; the input of sigmoid is not kept and may be overwritten",
    ),
    suggestions=advice("write out of place (16 B more)", _TRAIN.edit(8, "h += x.detach()", "h = h + x.detach()")),
)

_MASK = File(
    "models/attention.py",
    {
        41: "        scores = self.query(x) @ self.key(x).mT",
        42: "        weights = scores.softmax(-1)",
        43: "        first = weights[:, 0]",
        44: "        first[mask] = 0.0",
        58: "        return self.loss(weights @ v).backward()",
    },
)
through_a_view = stale(
    _MASK.save(42, "scores.softmax(-1)", "`weights` is saved here: softmax keeps its result (version 0)"),
    _MASK.write(
        44, "first[mask] = 0.0", "`index_put_` on `first`, a view of `weights`, overwrites it here (version 0 -> 1)"
    ),
    _MASK.read(58, "self.loss(weights @ v).backward()", "backward reads it here, in SoftmaxBackward0"),
    notes=("a view shares the bytes of the tensor it was taken from",),
    suggestions=advice(
        "write to a copy",
        _MASK.edit(42, "scores.softmax(-1)", "scores.softmax(-1).clone()"),
    ),
)

_RNN = File(
    "rnn.py",
    {
        14: "    for t in range(1, steps):",
        15: "        h[t] = torch.tanh(cell(h[t - 1]))",
        19: "h.sum().backward()",
    },
)
later_iteration = stale(
    _RNN.save(15, "cell(h[t - 1])", "`h[t - 1]` is saved here: linear keeps its input (version 1)"),
    _RNN.write(15, "h[t]", "`copy_` overwrites `h` here, in a later iteration (version 1 -> 9)"),
    _RNN.read(19, "h.sum().backward()", "backward reads it here, in AddmmBackward0"),
    notes=("the versions of a tensor count the writes to all of its rows",),
    suggestions=advice("collect the rows in a list and `torch.stack` them after the loop"),
    count=8,
)

_GAN = File(
    "gan.py",
    {
        61: "    d_loss.backward(retain_graph=True)",
        62: "    opt_d.step()",
        64: "    g_loss = bce(netD(fake), ones)",
        65: "    (d_loss + g_loss).backward()",
    },
)
_NET = File("nets.py", {22: "        return self.head(F.leaky_relu(self.conv(x), 0.2).flatten(1))"})
optimizer_step = finding(
    "NC103",
    "step-before-backward",
    "the optimizer changed `netD.head.weight` before a backward that needs its old value",
    _NET.save(22, "self.head(F.leaky_relu(self.conv(x), 0.2).flatten(1))", "`netD.head.weight` is saved here: linear"),
    _GAN.write(62, "opt_d.step()", "`Adam.step` overwrites it here (version 3 -> 4)"),
    _GAN.read(65, "(d_loss + g_loss).backward()", "backward reads it here, in AddmmBackward0"),
    notes=("the graph of `d_loss` was built with the weights as they were before the step",),
    suggestions=advice("run every backward before the steps, or `fake.detach()` in the discriminator's loss"),
)

_HALVES = File("halves.py", {5: "a = buf[:4].exp()", 6: "buf[4:] += 1", 7: "a.sum().backward()"})
disjoint_write = finding(
    "NC102",
    "disjoint-write",
    "PyTorch refuses a write to bytes that backward does not need",
    _HALVES.save(5, "buf[:4].exp()", "bytes 0 to 16 of `buf` are saved here (version 0)"),
    _HALVES.write(6, "buf[4:] += 1", "`add_` writes bytes 16 to 32 here (version 0 -> 1)"),
    _HALVES.read(7, "a.sum().backward()"),
    notes=("a storage has one version counter, whichever of its bytes are written",),
    suggestions=advice("give each half its own storage"),
)

_LSTM = File("lstm.py", {31: "    out, state = net(batch, state)", 33: "    loss.backward()"})
freed_graph = finding(
    "NC104",
    "freed-graph",
    "backward reached a part of the graph that an earlier backward has freed",
    _LSTM.save(31, "net(batch, state)", "the graph of `state` grows here, over the iterations"),
    _LSTM.label("read", 33, "loss.backward()", "backward goes through the last iteration's graph too", primary=True),
    notes=("PyTorch frees what a graph has saved as soon as backward has run through it",),
    suggestions=advice(
        "detach the state that is carried over",
        _LSTM.edit(31, "net(batch, state)", "net(batch, tuple(s.detach() for s in state))"),
    ),
)

_EMA = File(
    "ema.py", {9: "    loss = net(x).square().mean()", 12: "        p.data.mul_(0.99)", 13: "    loss.backward()"}
)
silent_write = finding(
    "NC201",
    "silent-write",
    "a write through `.data` changes a tensor that backward still needs, and PyTorch does not notice",
    _EMA.save(9, "net(x)", "`net.0.weight` is saved here: linear keeps its weight"),
    _EMA.write(12, "p.data.mul_(0.99)", "`mul_` overwrites it here, through `.data`"),
    _EMA.read(13, "loss.backward()", "backward reads the changed bytes here; the gradient is wrong"),
    notes=("`.data` has its own version counter: the check in backward compares another one",),
    suggestions=advice("do it after backward, in a `torch.no_grad()` block, without `.data`"),
)

_ENV = File(
    "rollout.py",
    {
        14: "        self.frame = torch.zeros(size).numpy()",
        18: "        self.frame[:] = self.render()",
        27: "    out = policy(torch.from_numpy(env.frame))",
        31: "    loss.backward()",
    },
)
foreign_write = finding(
    "NC202",
    "foreign-write",
    "code outside of torch overwrites a tensor that backward still needs",
    _ENV.save(
        27, "policy(torch.from_numpy(env.frame))", "`x` is saved here: linear (addmm) keeps its input (version 0)"
    ),
    _ENV.label("create", 27, "torch.from_numpy(env.frame)", "`from_numpy` shares the memory of an array here"),
    _ENV.write(18, "self.frame[:]", "numpy overwrites it somewhere from here on, before line 31 of rollout.py"),
    notes=(
        "torch does not see this write, so no version is counted and PyTorch raises nothing",
        "the gradient of the weight is computed from the input, that of the input from the weight",
        "backward reads it at line 31 of rollout.py, in AddmmBackward0",
    ),
    suggestions=advice(
        "give the tensor its own bytes: `torch.tensor(buf)` copies",
        _ENV.edit(27, "torch.from_numpy(env.frame)", "torch.from_numpy(env.frame).clone()"),
    ),
)

_PRUNED = File("prune.py", {7: "        hidden.data.mul_(keep)", 21: "    net(x, keep).square().mean().backward()"})
untracked_write = finding(
    "NC208",
    "untracked-write",
    "`hidden` is changed through `.data`: the gradient leaves that out",
    _PRUNED.write(7, "hidden.data.mul_(keep)", "`mul_` changes `hidden` here"),
    _PRUNED.read(21, "net(x, keep).square().mean().backward()", "backward goes through it here"),
    severity="warning",
    notes=("a write through `.data` is not recorded: backward goes on without the derivative of `mul_`",),
    suggestions=(
        *advice(
            "let autograd see it: compute the new value out of place",
            _PRUNED.edit(7, "hidden.data.mul_(keep)", "hidden = hidden.mul(keep)"),
        ),
        *advice("or, if the gradient should pass unchanged, write `hidden = hidden + (new - hidden).detach()`"),
    ),
)

_LEAF = File("fit.py", {3: "w = torch.zeros(3, requires_grad=True)", 8: "    w -= 0.1 * w.grad"})
leaf_write = finding(
    "NC301",
    "leaf-write",
    "in-place write to a leaf that requires grad",
    _LEAF.label("create", 3, "torch.zeros(3, requires_grad=True)", "`w` is made here, a leaf that requires grad"),
    _LEAF.write(8, "w -= 0.1 * w.grad", "`sub_` is refused here"),
    notes=("autograd would have to give `w` a history, and its `.grad` would have nowhere to go",),
    suggestions=advice(
        "update it where autograd does not record",
        _LEAF.edit(8, "w -= 0.1 * w.grad", "with torch.no_grad():\n        w -= 0.1 * w.grad"),
    ),
)

_SPLIT = File("lstm_cell.py", {18: "i, f, g, o = gates.chunk(4, 1)", 20: "f += 1.0  # forget bias"})
multi_view_write = finding(
    "NC303",
    "multi-view-write",
    "in-place write to one of several views that `chunk` returned",
    _SPLIT.label("create", 18, "gates.chunk(4, 1)", "the view is made here, one of 4"),
    _SPLIT.write(20, "f += 1.0", "`add_` on output 1 of `chunk` is refused here"),
    notes=("autograd rebuilds the history of one view after a write, not that of its siblings",),
    suggestions=advice("write out of place", _SPLIT.edit(20, "f += 1.0", "f = f + 1.0")),
)

_EXPAND = File("bias.py", {4: "b = bias.expand(8, 3)", 5: "b += noise"})
overlap_write = finding(
    "NC307",
    "overlap-write",
    "in-place write to a tensor whose elements share memory",
    _EXPAND.label("create", 4, "bias.expand(8, 3)", "8 rows share the same 12 bytes since `expand`"),
    _EXPAND.write(5, "b += noise", "`add_` would write each of them 8 times"),
    suggestions=advice("make the rows real first", _EXPAND.edit(4, "expand(8, 3)", "expand(8, 3).clone()")),
)

_SITE = "/venv/lib/python3.11/site-packages/fancy_optim"
_FUSED = File(f"{_SITE}/lion.py", {204: "            torch._fused_lion_(params, grads, lr=group['lr'])"})
_LOOP = File("train_gan.py", {38: "d = critic(fake)", 41: "opt.step()", 42: "d.mean().backward()"})
inside_a_library = finding(
    "NC203",
    "unversioned-op",
    "a fused optimizer changed `critic.0.weight` without counting it; backward still needs the old value",
    _LOOP.save(38, "critic(fake)", "`critic.0.weight` is saved here"),
    _LOOP.write(41, "opt.step()", "`Lion.step` overwrites it here"),
    _LOOP.read(42, "d.mean().backward()", "backward reads the changed bytes here; the gradient is wrong"),
    _FUSED.label("inside", 204, "torch._fused_lion_(params, grads, lr=group['lr'])", "the write itself"),
    notes=("`_fused_lion_` bumps no version counter, so PyTorch stays silent",),
    suggestions=advice("step after the last backward"),
)

_RELU = File("block.py", {9: "y = F.relu(bn(x), inplace=True)"})
hint = finding(
    "NC902",
    "inplace-saves-nothing",
    "`inplace=True` saves no memory here",
    _RELU.write(9, "F.relu(bn(x), inplace=True)", "backward keeps the result, 4.0 MiB, either way"),
    severity="hint",
)

unlabelled = finding(
    "NC399",
    "other-refusal",
    "PyTorch refused an in-place operation",
    notes=("PyTorch says: Can't detach views in-place.\nUse detach() instead.\nNo line of the program was involved",),
    suggestions=advice("noclobber run, on the script that printed this, names the lines"),
)

FINDINGS: dict[str, Finding] = {name: one for name, one in dict(globals()).items() if isinstance(one, Finding)}
