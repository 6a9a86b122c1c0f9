"""Everything that looks at a running PyTorch program; the only folder that imports torch. This page is its map.

arming/         who listens, all that watches for them, what the folders above ask (recorder); what Python's part has
                cost (own_cost)
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

A save: autograd calls the pack hook of its thread (`pack` in `core/save_hooks`). The hook makes a `Handle`
(`core/seen/handles`) and puts it into the live table (`Context.live`); the takers of saves are called
(`Context.takers`). In backward, the unpack hook compares. What has changed, `policy.read` judges (`_verdict`,
`witness.change`): it makes a Clobber (`describe/clobbers.clobber_of`) and puts it on the bus (`Bus.tell`).

A write: its operator has a kernel on the spare dispatch key (`core/writes/write_kernels`, `kernel_functions`), which
calls the `before` of `core/writes/write_log`. If the write may change a live save (`LiveSaves.meeting`), a `Record`
(`records.record`) meets it (`policy.meet`): it is noted, the bytes are copied (`copy_before_write.keep`), or the write
is stopped (`_stop`). If a version counter leads to the write later, a `Record` in the history is enough
(`core/seen/history`). The first times that a line writes, `describe/holders` and `describe/called` look at its frames.
A write that autograd does not see goes through `detectors/untracked_writes` first. The step of an optimizer is one
`Step` (`core/writes/optimizer_steps`). `core/seen/sites.place_of` finds the line that is blamed.

Where the native part is on, a usual save, write or step stays in C++ (files of the same names in `native/`), and so
does a plain backward call under `install` (`backward_calls.cpp`). A save gets its `Handle`, and a write its `Record`,
when somebody asks for it. All else goes the two ways above.

Foreign memory: in `detectors/foreign_memory`, `exports` notices who hands memory out, `line_tracer` stops after each
line of the user, `byte_monitor` compares the bytes there, and `exported_saves` puts the three together.

A checkpointed region (`regions.CheckpointRegion`): `non_reentrant` compares each save of the second run with forward,
`reentrant` what the second run returns. `forward_bytes` gives the second run the bytes of forward where bytes are
preserved, and `taint` finds out whether a change matters.

Events travel on the bus per finding, never per save or per write. Everything that PyTorch or the program calls is
inside one error boundary (`core/boundary.Way`): a way of seeing that fails is taken off alone, and the report says so.
"""
