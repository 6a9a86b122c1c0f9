"""A run without values: tensors have shapes, dtypes, devices, storages and versions, and no bytes.

run         begins and ends it: what is put in place, in which order, and what the report says
mode        every operator comes through here: it is run on shapes, and the other files are told of it
values      values that are known (small tensors that no parameter reaches), and stand-ins for all others
modules     says what parameters are, and gives modules from before the run their tensors back
steps       stops the program after some optimizer steps
memory      the bytes of all storages, and what they are at the peak
gpu/        the GPU that is played
  devices     plays the device that the program asks for on one that exists
  cuda        what `torch.cuda` answers then
  classes     `torch.cuda.FloatTensor` and its like, of older programs
  autocasts   `torch.autocast` for the played device
  kernels     dropout, attention and optimizers as a GPU computes them
  cudnn       recurrent layers and cells as a GPU computes them
  cublas      the workspaces for products of matrices
  grouped     products of groups of matrices, as experts compute them
  norms       the dtype of what norms keep
  overlaps    refuses the writes that PyTorch refuses, as elements share memory
data/       what comes from outside
  batches     batches of the shapes that are asked for, where there is no data
  checkpoints files of weights: what is saved is kept without values, and what is there is read as shapes
  outside     what stays real: data loaders and data sets
world/      the other ranks
  ranks       a process group of which this process is one rank
  pipelines   a stage of a pipeline that this rank runs
"""
