// The version of the library, for those who load it without knowing how it was built.
#pragma once

namespace tfra {

// The version of the engine's library that is loaded: the one in pyproject.toml when it was built.
// An adapter compares it with TFRA_VERSION, the version that the adapter was built with, when it is
// loaded, and refuses to work with another one: classes may have other members.
const char* Version();

}  // namespace tfra
