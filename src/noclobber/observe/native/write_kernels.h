// The kernels of the operators that write; as core/writes/write_kernels.py, whose kernels lie on the next key below: what is not
// taken here goes on to them, and they do what they do without this module.
#pragma once

#include "write_log.h"

namespace noclobber {

// Takes the calls of an operator that writes.
void enroll_write(const std::string &name, const std::string &overload, Operator op);

// Runs an operator without kernels for what it calls. `views` is its name if it returns several views, else empty.
void enroll_passing(const std::string &name, const std::string &overload, const pybind11::str &views);

} // namespace noclobber
