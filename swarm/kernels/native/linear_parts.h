// What the linear kernels have in common: rounding the rows, sharing out the work, storing tiles.
#pragma once

#include <algorithm>

#include "linear.h"
#include "parallel.h"
#include "vectors.h"

namespace swarm {

// Below these, waking a sleeping thread (10 to 20 us) costs more than it saves.
constexpr int64_t kGrainProducts = 2560 * 1024;
constexpr int64_t kGrainValues = 64 * 1024;

// Weights are asked for before they are used, since each is read once in a pass: where one tile
// follows the other, those a little ahead, else the same part of the tiles that come next.
constexpr int64_t kAhead = 4096;

template <int T>
inline void fetch_ahead(const int8_t* weights, int64_t bytes, int64_t stride) {
  if constexpr (T == 1) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(weights + kAhead + at, 0, 0);
  } else {
    for (int64_t t = T; t < 2 * T; ++t)
      for (int64_t at = 0; at < bytes; at += 64)
        __builtin_prefetch(weights + t * stride + at, 0, 2);
  }
}

struct Quantized {
  const int16_t* values;  // [R, padded], see `quantize_row`
  const float* scales;    // [R]
  const int32_t* totals;  // [R, padded / 32]: sums of a group's values
};

// Valid until the calling thread's next call: kept by it, since a decode step makes hundreds.
Quantized quantize(const Rows& rows, int64_t padded);

// The same of bytes.
struct QuantizedBytes {
  const int8_t* values;    // [R, padded], see `quantize_bytes`
  const float* scales;     // [R]
  const float* shares;     // [R, padded / 32]
  const int32_t* totals;   // [R, padded / 32]: sums of a group's values
  const float* sums;       // [R, padded / 32]: the same times the group's share
};

QuantizedBytes quantize_to_bytes(const Rows& rows, int64_t padded);

// Where the columns [tile * 16, tile * 16 + 16) of all rows go: `count` of them are in the slice.
struct Target {
  void* out;
  int64_t columns, column, count;
};

Target target_of(const Slices& slices, int64_t tile);

// Writes one row's values [16] there.
void store_some(const float* values, const Target& target, Element element, int64_t row);

// The same of a whole register.
template <class Values>
inline void store(const Values& values, const Target& target, Element element, int64_t row) {
  static_assert(sizeof values == kTileColumns * sizeof(float));
  if (element == Element::kFloat32 && target.count == kTileColumns) {
    float* const out = static_cast<float*>(target.out) + row * target.columns + target.column;
    std::memcpy(out, &values, sizeof values);
  } else {
    float plain[kTileColumns];
    std::memcpy(plain, &values, sizeof plain);
    store_some(plain, target, element, row);
  }
}

// body(row, row_end, tile, tile_end) on every thread. A thread keeps to few chunks of rows and,
// within one, to neighbouring tiles. `chunk_rows`: rows that share one pass over a group of tiles.
template <class Body>
void over_tiles(int64_t rows, int64_t tiles, int64_t depth, int64_t chunk_rows, Body&& body) {
  const int64_t chunks = (rows + chunk_rows - 1) / chunk_rows;
  const int64_t products = std::min(rows, chunk_rows) * depth * kTileColumns;
  const int64_t grain = std::max<int64_t>(1, kGrainProducts / std::max<int64_t>(1, products));
  parallel(chunks * tiles, grain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t chunk = begin / tiles, tile = begin % tiles;
      const int64_t stop = std::min(tiles, tile + end - begin);
      const int64_t row = chunk * chunk_rows;
      body(row, std::min(rows, row + chunk_rows), tile, stop);
      begin += stop - tile;
    }
  });
}

}  // namespace swarm
