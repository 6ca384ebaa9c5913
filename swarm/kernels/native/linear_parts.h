// What the linear kernels have in common: rounding the rows, sharing out the work, storing tiles.
#pragma once

#include <algorithm>

#include "linear.h"
#include "parallel.h"
#include "vectors.h"

namespace swarm {

constexpr int64_t kRowChunk = 48;  // rows that share one pass over a group of tiles

// Below these, waking a sleeping thread (10 to 20 us) costs more than it saves.
constexpr int64_t kGrainProducts = 2560 * 1024;
constexpr int64_t kGrainValues = 64 * 1024;

struct Quantized {
  const int16_t* values;  // [R, padded], see `quantize_row`
  const float* scales;    // [R]
  const int32_t* totals;  // [R, padded / 32]: sums of a group's values
};

// Valid until the calling thread's next call: kept by it, since a decode step makes hundreds.
Quantized quantize(const Rows& rows, int64_t padded);

// Writes columns [tile * 16, tile * 16 + 16) of a row into the slice they belong to.
void store(const float* values, const Slices& slices, Element element, int64_t row, int64_t tile);

// body(row, row_end, tile, tile_end) on every thread. A thread keeps to few chunks of rows and,
// within one, to neighbouring tiles.
template <class Body>
void over_tiles(int64_t rows, int64_t tiles, int64_t depth, Body&& body) {
  const int64_t chunks = (rows + kRowChunk - 1) / kRowChunk;
  const int64_t products = std::min(rows, kRowChunk) * depth * kTileColumns;
  const int64_t grain = std::max<int64_t>(1, kGrainProducts / std::max<int64_t>(1, products));
  parallel(chunks * tiles, grain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t chunk = begin / tiles, tile = begin % tiles;
      const int64_t stop = std::min(tiles, tile + end - begin);
      const int64_t row = chunk * kRowChunk;
      body(row, std::min(rows, row + kRowChunk), tile, stop);
      begin += stop - tile;
    }
  });
}

}  // namespace swarm
