// A reference to a storage that does not hold the memory, with what PyTorch's StorageWeakRef tells.
#pragma once

#include "layout.h"
#include "python.h"

namespace noclobber {

// Returns an object with `expired()`, `cdata`, and an identity. Several are made in each step of a program that
// checkpoints: a class of pybind11 takes twice as long (lora-checkpoint in benchmarks/, 3 % of a step).
THPObjectPtr storage_ref(at::TensorImpl *tensor);

} // namespace noclobber
