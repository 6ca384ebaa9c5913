// The shapes of a thread's matrix tiles. Only for sources that the compiler may use tiles in.
#pragma once

#include <cstdint>

#include <immintrin.h>

#if defined(__AMX_INT8__) && defined(__AMX_BF16__) && defined(__AVX512BF16__) && \
    defined(__AVX512BW__) && defined(__linux__)
#define SWARM_TILES 1

namespace swarm {

struct alignas(64) TileShapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  // Tiles [from, to).
  void set(int from, int to, int row_count, int bytes) {
    for (int i = from; i < to; ++i) rows[i] = uint8_t(row_count), row_bytes[i] = uint16_t(bytes);
  }

  // Until `_tile_release`.
  void load() const {
    asm volatile("" : : "r"(this) : "memory");  // some compilers think that only a word is read
    _tile_loadconfig(this);
  }
};

}  // namespace swarm

#endif
