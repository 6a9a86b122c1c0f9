// What is done with a write: it is noted, or left to Python, where anything unusual is about it; as core/writes/write_log.py.
#pragma once

#include "history.h"

#include <torch/csrc/autograd/variable.h>

namespace noclobber {

// What an operator writes: a `Written` of Python, and the positions of its arguments. It lives as long as the process.
struct Operator {
  PyObject *written;
  std::vector<int> arguments;
  int flag; // the position of the flag that makes it write; -1 if it always writes
  bool uncounted, moves_none, detaches, resizes, statistics;
};

// Hears of three dicts: of those to call before each write, of which only the size is looked at; by storage, of those to
// call before the writes to one; and of the storages of which all writes are remembered. With the GIL.
void log_with(PyObject *attentive, PyObject *attended, PyObject *followed);

// Returns true if all writes of a thread are for Python at the moment.
bool are_for_python(const Thread &mine);

enum class Way { IGNORED, NOTED, FOR_PYTHON };
Way way_of(const Operator &op, const at::Tensor &tensor);

// Returns true for a leaf, and for a view that has no node yet. PyTorch may refuse to say which node a view has.
inline bool is_without_node(const at::Tensor &tensor) {
  auto *meta = torch::autograd::impl::get_autograd_meta(tensor);
  return meta == nullptr || meta->grad_fn_ == nullptr;
}

// Returns true if the write moves the version of all saves of the tensor. A leaf may be made of another tensor's `.data`.
inline bool is_counted(const Operator &op, const at::Tensor &tensor) {
  return tensor.requires_grad() && !op.uncounted && !op.detaches && is_plain(tensor.unsafeGetTensorImpl(), false) &&
         !is_without_node(tensor);
}

} // namespace noclobber
