#include "float_linear.h"

#include "lanes.h"
#include "linear_parts.h"

namespace swarm {

namespace {

using wide::Lanes;

constexpr int kRowBlock = 7;
constexpr int64_t kRowChunk = 98;

struct Job {
  const Rows& rows;
  const FloatWeight& weight;
  const Slices& slices;
};

// R rows times T tiles of outputs: their sums stay in registers.
template <int R, int T>
void block(const Job& job, int64_t row, int64_t tile) {
  const int64_t depth = job.weight.depth, step = depth * kTileColumns;
  const float* const x = static_cast<const float*>(job.rows.x) + row * depth;
  const float* const w = static_cast<const float*>(job.weight.packed) + tile * step;
  Lanes sums[R][T] = {};
  for (int64_t k = 0; k < depth; ++k) {
    Lanes weights[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) weights[t] = wide::load(w + t * step + k * kTileColumns);
#pragma GCC unroll 7
    for (int r = 0; r < R; ++r) {
      const Lanes value = wide::splat(x[r * depth + k]);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) sums[r][t] = wide::fma(value, weights[t], sums[r][t]);
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    const Target target = target_of(job.slices, tile + t);
    const float* const bias = job.weight.bias;
    const Lanes add = bias ? wide::load(bias + (tile + t) * kTileColumns) : Lanes{};
#pragma GCC unroll 7
    for (int r = 0; r < R; ++r)
      store(bias ? sums[r][t] + add : sums[r][t], target, job.rows.element, row + r);
  }
}

// Tiles that are worked on side by side: as many sums as registers hold.
template <int R>
constexpr int kTiles = R <= 2 ? 8 : 4;

template <int R, int T>
void along(const Job& job, int64_t row, int64_t tile, int64_t tile_end) {
  for (; tile + T <= tile_end; tile += T) block<R, T>(job, row, tile);
  if constexpr (T > 1) {
    if (tile < tile_end) along<R, T / 2>(job, row, tile, tile_end);
  }
}

// Some rows, at most R, against one stretch of tiles.
template <int R>
void rows_left(const Job& job, int64_t row, int64_t count, int64_t tile, int64_t tile_end) {
  if (count == R) {
    along<R, kTiles<R>>(job, row, tile, tile_end);
  } else if constexpr (R > 1) {
    rows_left<R - 1>(job, row, count, tile, tile_end);
  }
}

}  // namespace

void float_linear(const Rows& rows, const FloatWeight& weight, const Slices& slices) {
  const Job job{rows, weight, slices};
  over_tiles(rows.rows, weight.tiles, weight.depth, kRowChunk,
             [&](int64_t row, int64_t row_end, int64_t tile, int64_t tile_end) {
               constexpr int64_t kStretch = 8;
               for (int64_t t = tile; t < tile_end; t += kStretch)
                 for (int64_t r = row; r < row_end; r += kRowBlock)
                   rows_left<kRowBlock>(job, r, std::min<int64_t>(kRowBlock, row_end - r), t,
                                        std::min(tile_end, t + kStretch));
             });
}

}  // namespace swarm
