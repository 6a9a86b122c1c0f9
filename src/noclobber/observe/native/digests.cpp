#include "digests.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <vector>

#define XXH_INLINE_ALL
#include "xxhash.h"

namespace noclobber {

int64_t large = 0;

constexpr size_t COPIED = 64 * 1024; // bytes of a tensor with gaps that are copied and hashed at once

std::optional<uint64_t> fingerprint(const at::Tensor &tensor) {
  const size_t item = tensor.element_size();
  const char *begin = static_cast<const char *>(tensor.const_data_ptr());
  // A storage may have lost its memory, or some of it (`resize_`): a view into it has an address all the same.
  const size_t shown =
      at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), item, tensor.storage_offset());
  if (begin == nullptr || tensor.storage().nbytes() < shown) {
    return std::nullopt;
  }
  if (tensor.is_contiguous()) {
    return XXH3_64bits(begin, tensor.numel() * item);
  }
  struct Dimension {
    int64_t stride, size;
  };
  c10::SmallVector<Dimension, 6> dimensions;
  for (int64_t i = 0; i < tensor.dim(); i++) {
    if (tensor.size(i) != 1 && tensor.stride(i) != 0) {
      dimensions.push_back({tensor.stride(i), tensor.size(i)});
    }
  }
  // From the last dimension to the first where strides are equal, as they only are where elements overlap.
  std::reverse(dimensions.begin(), dimensions.end());
  std::stable_sort(dimensions.begin(), dimensions.end(),
                   [](const Dimension &one, const Dimension &other) { return one.stride < other.stride; });
  int64_t run = 1;
  size_t inner = 0;
  while (inner < dimensions.size() && dimensions[inner].stride == run) {
    run *= dimensions[inner++].size;
  }
  const size_t bytes = run * item;
  if (inner == dimensions.size()) {
    return XXH3_64bits(begin, bytes);
  }
  int64_t rows = 1;
  for (size_t i = inner; i < dimensions.size(); i++) {
    rows *= dimensions[i].size;
  }
  static thread_local std::vector<char> copied;
  XXH3_state_t state;
  const bool streams = rows * bytes > COPIED;
  if (streams) {
    XXH3_64bits_reset(&state);
  } else {
    copied.resize(rows * bytes);
  }
  c10::SmallVector<int64_t, 6> index(dimensions.size() - inner, 0);
  const char *from = begin;
  char *to = copied.data();
  for (int64_t row = 0; row < rows; row++) {
    if (streams) {
      XXH3_64bits_update(&state, from, bytes);
    } else {
      std::memcpy(to, from, bytes);
      to += bytes;
    }
    for (size_t i = 0; i < index.size(); i++) {
      const auto &[stride, size] = dimensions[inner + i];
      from += stride * (int64_t)item;
      if (++index[i] < size) {
        break;
      }
      from -= stride * (int64_t)item * size;
      index[i] = 0;
    }
  }
  return streams ? XXH3_64bits_digest(&state) : XXH3_64bits(copied.data(), rows * bytes);
}

Identity identity_of(const at::Tensor &tensor) {
  if (tensor.numel() * (int64_t)tensor.element_size() < large || !tensor.storage().resizable() ||
      tensor.storage().data() == nullptr) {
    return {};
  }
  return {tensor.const_data_ptr(), version_of(tensor.unsafeGetTensorImpl()), tensor.scalar_type(),
          at::DimVector(tensor.sizes()), at::DimVector(tensor.strides())};
}

} // namespace noclobber
