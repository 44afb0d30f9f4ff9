#include "tfra/version.h"

namespace tfra {

const char* Version() { return TFRA_VERSION; }

}  // namespace tfra
