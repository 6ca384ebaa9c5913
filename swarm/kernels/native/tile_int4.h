// Products with weights of 4 bits on a processor's matrix tiles.
#pragma once

#include "linear.h"
#include "linear_parts.h"

namespace swarm {

// As `int4_linear`, bit for bit, of rows that are bytes already. Only where `has_tiles`.
void tile_int4_linear(const Rows& rows, const GroupWeight& weight, const Slices& slices,
                      const QuantizedBytes& q);

}  // namespace swarm
