#include "layout.h"

namespace noclobber {

bool is_plain(const at::TensorImpl *tensor, bool or_parameter) {
  PyObject *object = tensor->pyobj_slot()->load_pyobj();
  return object == nullptr || Py_TYPE(object) == (PyTypeObject *)THPVariableClass ||
         (or_parameter && Py_TYPE(object) == (PyTypeObject *)ParameterClass);
}

// Returns true if the dimensions of a tensor have names, which torch 2.13 has done away with.
template <class Tensor> static bool has_names(const Tensor *tensor) {
  if constexpr (requires { tensor->has_named_tensor_meta(); }) {
    return tensor->has_named_tensor_meta();
  } else {
    return false;
  }
}

bool is_usual(at::TensorImpl *tensor) {
  static const c10::DispatchKeySet unusual({c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper,
                                            c10::DispatchKey::Batched, c10::DispatchKey::Functionalize,
                                            c10::DispatchKey::NestedTensor, c10::DispatchKey::Conjugate,
                                            c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor});
  return !tensor->is_python_dispatch() && tensor->has_storage() && !tensor->has_symbolic_sizes_strides() &&
         !tensor->is_inference() && !has_names(tensor) && !tensor->key_set().has_any(unusual) &&
         tensor->layout() == at::kStrided && is_plain(tensor);
}

Span span_of(const at::TensorImpl *tensor) {
  int64_t last = tensor->storage_offset();
  for (int64_t i = 0; i < tensor->dim(); i++) {
    last += (tensor->size(i) - 1) * tensor->stride(i);
  }
  const auto size = (int64_t)tensor->itemsize();
  return {tensor->storage_offset() * size, (last + 1) * size};
}

namespace {

// Where the elements of a tensor lie in its storage: in rows of one length, at the same place in each.
struct Rows {
  explicit Rows(const at::TensorImpl *tensor) : begin(tensor->storage_offset()) {
    for (int64_t i = 0; i < tensor->dim(); i++) {
      const int64_t steps = tensor->size(i) - 1, stride = tensor->stride(i);
      if (steps <= 0) {
        continue;
      }
      if (stride > row) {
        inner += row * rows; // the dimension that was taken for that of the rows lies within one
        row = stride;
        rows = steps;
      } else {
        inner += stride * steps;
      }
    }
  }
  int64_t end() const { return begin + inner + row * rows; }
  int64_t begin, row = 0, rows = 0, inner = 1; // `inner`: the elements from the first to the last in a row
};

} // namespace

bool are_apart(const at::TensorImpl *one, const at::TensorImpl *other) {
  if (one->itemsize() != other->itemsize()) {
    return false;
  }
  if (one->numel() == 0 || other->numel() == 0) {
    return true;
  }
  const Rows first(one), second(other);
  if (first.end() <= second.begin || second.end() <= first.begin) {
    return true;
  }
  if (first.row != second.row || first.row == 0) {
    return false;
  }
  const int64_t a = first.begin % first.row, b = second.begin % second.row;
  return a + first.inner <= first.row && b + second.inner <= first.row &&
         (a + first.inner <= b || b + second.inner <= a);
}

} // namespace noclobber
