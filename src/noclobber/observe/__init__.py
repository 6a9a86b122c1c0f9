"""Everything that looks at a running PyTorch program; the only folder that imports torch. This page is its map.

arming/         who listens, and all that watches for them (recorder); what the folders above ask: to listen, what is
                covered, what an error is about (recorder); what Python's part has cost (own_cost)
policy          what happens about a changed save: it is noted and reported, the write is stopped, or the bytes are kept
torch_api/      names below PyTorch's public ones, with self-tests of what they mean
witness/        the one idea: what the bytes of a tensor were, and whether they are so still. Digests, layouts
core/           what all the rest uses: context, bus, threads, hooks on saves
  seen/         places, records of writes, handles of saves, the history: what is kept of what was seen
  calls         calls of the engine and of custom Functions, and who is told of them
  writes/       kernels of writes, their log, steps of optimizers
native/         takes the usual saves and writes in C++, where it was built, and leaves all others to core/
describe/       from records to the model: clobbers, refusals, names of tensors and states, PyTorch's own words
takers/         who takes a witness, and looks at it again: saves, hooks, ctx, gradients, inputs, checkpointed regions
detectors/      the ways of going wrong that change no witness, one file each
  foreign_memory/ memory that others write without torch: numpy, DLPack, forked children
transparent/    keeps the program as it is, and finds nothing: named dimensions, jit, swaps, hooks on saves
memory/         the bytes of tensors: those that saves keep, for the ledger; all of them, for hints; the measured peak
fake/           a run without values: shapes, storages and versions, and stand-ins for what is asked
preserve/       keeps the bytes that backward needs, before a write changes them
gradient_trace/ the gradients that `fix` compares, and what the program keeps

The way of a save. Autograd keeps a tensor and calls the pack hook of its thread (`pack` in `core/save_hooks`). The
hook makes a `Handle` (`core/seen/handles`): a weak reference with a detached alias (`alias_of`), the version, the
number of the node, the place (`sites.place_of`), a fingerprint (`digests.shown`, `hash_of`). The handle goes into the
live table (`Context.live`), by its storage and there by its bytes, autograd holds the handle, and the takers of saves
are called (`Context.takers`). In backward, the unpack hook compares the version, and the fingerprint if contents are
watched. If both are unchanged, it returns the alias. If not, it asks `policy.read`: a verdict (`_verdict`,
`witness.change`), and what follows from it. Of a changed save a Clobber is made (`describe/clobbers.clobber_of`) and
put on the bus (`Bus.tell`), and what PyTorch would raise is raised. A handle dies with its save, and leaves the table
then.

The way of a write. `core/writes/write_kernels` gives each operator that writes in place a kernel on the spare dispatch
key, as its schema asks (`core/seen/written`). The kernel (`core/writes/kernel_functions`) calls the `before` of
`core/writes/write_log`. If saves are live whose bytes the write may change (`LiveSaves.meeting`), a `Record` is made
(`records.record`) and the write meets them (`policy.meet`): it is noted, the bytes are copied
(`copy_before_write.keep`), or it is stopped (`_stop`). Every save meets the first write to its storage, too. If a
version counter leads to the write later, a `Record` in the history is enough (`core/seen/history`). The first times
that a line writes, it is asked all the same: if live saves are met, the names are noted under which the program holds
the memory (`describe/holders`, with `describe/reachable`, which walks from variables through containers and objects),
the module that is called, and the calls that lead there (`describe/called`). A write that autograd does not see
(`no_grad`, `.data`) goes through `detectors/untracked_writes` first. The step of an optimizer is noted as one `Step`
with the name of its class and its line (`core/writes/optimizer_steps`). The line that is blamed comes from
`core/seen/sites.place_of`, which asks `model/source.owner_of` whose code a file is.

Where the native part is on, a usual save, write or step of an optimizer stays in C++ (`native/save_hooks.cpp`,
`write_kernels.cpp`, `optimizer_steps.cpp`), and so does a plain backward call under `install` (`backward_calls.cpp`).
A save gets its `Handle` when somebody asks the live table for it, or when its version or its bytes have changed at the
read. A write becomes a `Record` when somebody reads the history. All else goes the two ways above.

The way of foreign memory. Writes of numpy and its like meet no kernel. In `detectors/foreign_memory`, `exports`
notices who hands memory out, `line_tracer` stops after each line of the user, and `byte_monitor` compares the bytes
there. `exported_saves` puts the three together. The finding is made when backward reads the save. On a device a save
gets its fingerprint only once its memory is out, or `unseen_writers` knows of code that need not ask for it.

The way of a checkpointed region. `takers/checkpoint/instrument` arms two ways: `non_reentrant` compares each save of
the second run with forward, `reentrant` compares what the second run returns. `regions.CheckpointRegion` holds the
fingerprints of forward. `forward_bytes` gives the second run the bytes of forward where bytes are preserved, and
`taint` finds out whether a change matters.

Events travel on the bus per finding, never per save or per write. Everything that PyTorch or the program calls is
inside one error boundary (`core/boundary.Way`): a way of seeing that fails is taken off alone, and the report says so.
"""
