// Linear layers on weights of 4 bits.
#pragma once

#include "linear.h"

namespace swarm {

// Without minimums the integers of weights count from here.
constexpr int32_t kInt4Zero = 8;

// The contract is that of `group_linear`.
void int4_linear(const Rows& rows, const GroupWeight& weight, const Slices& slices,
                 int64_t tiles_from);

}  // namespace swarm
