// Products on a processor's matrix tiles (AMX): sixteen rows times sixteen outputs at a time.
#pragma once

#include "linear.h"
#include "linear_parts.h"

namespace swarm {

// From how many rows on products run in tiles, as measured: below, words in registers are faster.
constexpr int64_t kTileRowsLeast = 7;

// Whether this process may use them: the kernels were built for them, the processor has them, and
// the system lets the process have their registers. Asked for once.
bool has_tiles();

// As `group_linear`, bit for bit, of rows that are integers already. Only where `has_tiles`.
void tile_linear(const Rows& rows, const GroupWeight& weight, const Slices& slices,
                 const Quantized& q);

}  // namespace swarm
