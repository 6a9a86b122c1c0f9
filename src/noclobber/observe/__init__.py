"""Everything that looks at a running PyTorch program; the only folder that imports torch. This page is its map.

recorder        attaches all that watches, and takes it off: the list of ways of seeing
subscription    who wants to see what: the first listener attaches, the last detaches
torch_api/      names below PyTorch's public ones, looked up when armed, with self-tests of what they mean
core/           what all stands on: context, bus, threads, hooks on saves, kernels of writes, the engine, fingerprints
describe/       from records to the model: clobbers, refusals, names of tensors, PyTorch's own words
detectors/      the ways of going wrong, a file each
checkpoint/     regions of torch.utils.checkpoint, which are run anew in backward
foreign_memory/ memory that others write without torch: numpy, DLPack, forked children
preserve/       the bytes that backward needs, kept before a write changes them
gradient_trace/ the gradients that `fix` compares

The way of a save. Autograd keeps a tensor, and calls the pack hook of its thread (`core/save_hooks.hooks`). It makes a
`Handle`: a weak reference with a detached alias, the version, the node's number, the place, a fingerprint. The handle
goes into the live table (`Context.live`) and is what autograd holds. In backward, unpack compares the version, and the
fingerprint where contents are watched. Where both are as they were the alias is handed back; else
`detectors/changed_saves.read` makes a Clobber of it (`describe/clobbers.clobber_of`), tells it on the bus, and raises
what PyTorch would raise. A handle dies with its save, and its row in the table with it.

The way of a write. An operator that mutates goes through its kernel on the spare dispatch key (`core/write_kernels`),
which calls the sink (`core/write_log.writes_to_saves`). Where the storage has live saves, the write meets them
(`Context.meet`, which is `detectors/write_policy.meet`): it is noted with each, and stopped or made harmless where that
is asked for. Where it moves a version counter that will lead to it, a `Record` in the history is enough
(`core/history`). What autograd does not see (`no_grad`, `.data`) goes by `detectors/untracked_writes` first. Writes of
numpy and its like meet no kernel: `foreign_memory/exported_saves` compares bytes from line to line instead.

Events travel on the bus per finding, never per save or per write. Whatever PyTorch or the program calls is behind one
error boundary (`core/boundary.Way`): a way of seeing that fails is taken off alone, and the report says so.
"""
