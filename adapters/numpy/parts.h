// Files of snapshots, for Python: see tfra/snapshot.h.
#pragma once

#include <nanobind/nanobind.h>

namespace tfra::python {

// Adds `crc32c`, `write_part` and `replace_by_part` to the module.
void DefineParts(nanobind::module_& m);

}  // namespace tfra::python
