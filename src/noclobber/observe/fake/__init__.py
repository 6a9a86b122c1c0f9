"""A run without values: tensors have shapes, dtypes, devices, storages and versions, and no bytes.

run         begins and ends it: what is put in place, in which order, and what the report says
mode        every operator comes through here: it is run on shapes, and the other files are told of it
values      values that are known (small tensors that no parameter reaches), and stand-ins for all others
steps       stops the program after some optimizer steps
memory      the bytes of all storages, and what they are at the peak; says what parameters are
gpu/        the GPU that is played
  devices     plays the device that the program asks for on one that exists
  cuda        what `torch.cuda` answers then
  classes     `torch.cuda.FloatTensor` and its like, of older programs
  kernels     dropout, attention, optimizers and `torch.autocast` as on a GPU
  cudnn       recurrent layers and cells as a GPU computes them
  operators   products of matrices, and of groups of these; what norms keep
  overlaps    refuses the writes that PyTorch refuses, as elements share memory
checkpoints files of weights: what is saved is kept without values, and what is there is read as shapes
outside     data loaders and data sets, which stay real, and batches of the shapes that are asked for
ranks       a process group of which this process is one rank
"""
