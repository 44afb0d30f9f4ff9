// What the shared library exports: everything that the public headers declare, and nothing else.
//
// The engine is compiled with hidden visibility. The build includes this file before each source,
// so that the public declarations come first, with default visibility. A new public header is added
// here.
#pragma once

#pragma GCC visibility push(default)
#include "tfra/content.h"
#include "tfra/memory.h"
#include "tfra/pooling.h"
#include "tfra/snapshot.h"
#include "tfra/spec.h"
#include "tfra/status.h"
#include "tfra/store.h"
#include "tfra/table.h"
#include "tfra/table_stats.h"
#include "tfra/thread_pool.h"
#include "tfra/trained_table.h"
#include "tfra/types.h"
#include "tfra/unique_keys.h"
#include "tfra/version.h"
#pragma GCC visibility pop
