// Fingerprints of a tensor's bytes, and what tells without them that bytes are the same; as witness/digests.py.
#pragma once

#include <optional>

#include <c10/util/hash.h>

#include "layout.h"

namespace noclobber {

// Returns the xxh3_64 hash of each element once, in the order of the addresses, of a tensor in the CPU's memory; nothing
// if it has no bytes to read.
std::optional<uint64_t> fingerprint(const at::Tensor &tensor);

// What tells the bytes of a large tensor. `begin` is null for all other tensors.
struct Identity {
  const void *begin = nullptr;
  uint32_t version = 0;
  at::ScalarType dtype = at::ScalarType::Undefined;
  at::DimVector sizes, strides;
  bool operator==(const Identity &) const = default;
};
struct IdentityHash {
  size_t operator()(const Identity &identity) const { return c10::get_hash(identity.begin, identity.version); }
};

extern int64_t large; // bytes from which on a tensor that is saved several times is hashed once

// Returns what tells bytes that cannot have changed by a counted write; empty for small tensors, and for memory that torch
// did not allocate. tests/observe/native/test_identities.py compares it with Python's.
Identity identity_of(const at::Tensor &tensor);

} // namespace noclobber
