// bfloat16 times bfloat16 on a processor's matrix tiles. A row's sums are made of its own values, in
// an order that the processor fixes, whatever else is in the tile.
#include "float_linear.h"
#include "linear_parts.h"
#if defined(__x86_64__)
#include "tile_shapes.h"
#endif

#ifdef SWARM_TILES

#include <vector>

namespace swarm {

namespace {

constexpr int kTileRows = 16;
constexpr int kStepDepth = 32;              // inputs that one instruction takes
constexpr int64_t kStepBytes = 1024;        // of a step's weights for 16 outputs
constexpr int64_t kRowChunk = 64;
constexpr int64_t kPair = 2;                // tiles of outputs that are worked on side by side

struct Job {
  const Rows& rows;
  const FloatWeight& weight;
  const Slices& slices;
  const uint16_t* x;  // [rows, padded]
  int64_t padded;
};

void finish(const Job& job, const float* sums, int64_t row, int64_t count, int64_t tile) {
  const Target target = target_of(job.slices, tile);
  Floats bias = {};
  const bool biased = job.weight.bias != nullptr;
  if (biased) std::memcpy(&bias, job.weight.bias + tile * kTileColumns, sizeof bias);
  for (int64_t r = 0; r < count; ++r) {
    Floats value;
    std::memcpy(&value, sums + r * kTileColumns, sizeof value);
    store(biased ? value + bias : value, target, job.rows.element, row + r);
  }
}

// The rows of one or two row tiles (the second is `far`, if it is there) times two of outputs.
void block(const Job& job, int64_t row, int64_t near, int64_t far, int64_t tile, int64_t pair) {
  alignas(64) float sums[4][kTileRows * kTileColumns];
  const int64_t steps = job.padded / kStepDepth, stride = job.padded * 2;
  const auto* const x = reinterpret_cast<const int8_t*>(job.x + row * job.padded);
  const auto* const w = static_cast<const int8_t*>(job.weight.packed) + tile * steps * kStepBytes;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < steps; ++k) {
    _tile_loadd(4, x + k * 64, stride);
    _tile_loadd(6, w + k * kStepBytes, 64);
    _tile_dpbf16ps(0, 4, 6);
    if (far > 0) {
      _tile_loadd(5, x + kTileRows * stride + k * 64, stride);
      _tile_dpbf16ps(2, 5, 6);
    }
    if (pair > 1) {
      _tile_loadd(7, w + (steps + k) * kStepBytes, 64);
      _tile_dpbf16ps(1, 4, 7);
      if (far > 0) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, sums[0], 64);
  _tile_stored(1, sums[1], 64);
  _tile_stored(2, sums[2], 64);
  _tile_stored(3, sums[3], 64);
  for (int64_t t = 0; t < pair; ++t) {
    finish(job, sums[t], row, near, tile + t);
    if (far > 0) finish(job, sums[2 + t], row + kTileRows, far, tile + t);
  }
}

void run(const Job& job, int64_t row, int64_t row_end, int64_t tile, int64_t tile_end) {
  int64_t set_near = -1, set_far = -1;
  for (; tile < tile_end; tile += kPair)
    for (int64_t r = row; r < row_end; r += 2 * kTileRows) {
      const int64_t near = std::min<int64_t>(kTileRows, row_end - r);
      const int64_t far = std::clamp<int64_t>(row_end - r - kTileRows, 0, kTileRows);
      if (near != set_near || far != set_far) {
        TileShapes shapes;
        shapes.set(0, 2, int(near), 64);
        shapes.set(2, 4, int(far > 0 ? far : near), 64);
        shapes.set(4, 5, int(near), 64);
        shapes.set(5, 6, int(far > 0 ? far : near), 64);
        shapes.set(6, 8, kStepDepth / 2, 64);
        shapes.load();
        set_near = near, set_far = far;
      }
      block(job, r, near, far, tile, std::min<int64_t>(kPair, tile_end - tile));
    }
  _tile_release();
}

}  // namespace

void tile_float_linear(const Rows& rows, const FloatWeight& weight, const Slices& slices) {
  const int64_t padded = (weight.depth + kStepDepth - 1) / kStepDepth * kStepDepth;
  static thread_local std::vector<uint16_t> room;
  const auto* x = static_cast<const uint16_t*>(rows.x);
  if (padded != weight.depth) {
    room.assign(size_t(rows.rows * padded), 0);
    for (int64_t r = 0; r < rows.rows; ++r)
      std::copy(x + r * weight.depth, x + (r + 1) * weight.depth, room.data() + r * padded);
    x = room.data();
  }
  const Job job{rows, weight, slices, x, padded};
  over_tiles(rows.rows, weight.tiles, padded, kRowChunk,
             [&](int64_t row, int64_t row_end, int64_t tile, int64_t tile_end) {
               run(job, row, row_end, tile, tile_end);
             });
}

}  // namespace swarm

#else

namespace swarm {

void tile_float_linear(const Rows&, const FloatWeight&, const Slices&) {}

}  // namespace swarm

#endif
