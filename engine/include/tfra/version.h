// The version of the library, for those who load it without knowing how it was built.
#pragma once

namespace tfra {

// The version in pyproject.toml, which is where the project keeps it.
const char* Version();

}  // namespace tfra
