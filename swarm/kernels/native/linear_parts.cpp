#include "linear_parts.h"

#include <vector>

#include "quantize.h"

namespace swarm {

Quantized quantize(const Rows& rows, int64_t padded) {
  static thread_local std::vector<int16_t> values;
  static thread_local std::vector<float> scales;
  static thread_local std::vector<int32_t> totals;
  const int64_t groups = padded / kGroup;
  if (int64_t(values.size()) < rows.rows * padded) values.resize(size_t(rows.rows * padded));
  if (int64_t(scales.size()) < rows.rows) scales.resize(size_t(rows.rows));
  if (int64_t(totals.size()) < rows.rows * groups) totals.resize(size_t(rows.rows * groups));
  // Plain pointers: inside the loop the names would mean the other threads' own vectors.
  int16_t* const q = values.data();
  float* const scale = scales.data();
  int32_t* const total = totals.data();
  const int64_t bytes = rows.depth * (rows.element == Element::kFloat32 ? 4 : 2);
  const int64_t grain = std::max<int64_t>(1, kGrainValues / padded);
  parallel(rows.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      scale[r] = quantize_row(static_cast<const char*>(rows.x) + r * bytes, rows.element,
                              rows.depth, padded, q + r * padded);
      for (int64_t g = r * groups; g < (r + 1) * groups; ++g) {
        int32_t sum = 0;
        for (int k = 0; k < kGroup; ++k) sum += q[g * kGroup + k];
        total[g] = sum;
      }
    }
  });
  return {q, scale, total};
}

QuantizedBytes quantize_to_bytes(const Rows& rows, int64_t padded) {
  static thread_local std::vector<int8_t> values;
  static thread_local std::vector<float> floats;
  static thread_local std::vector<int32_t> totals;
  const int64_t groups = padded / kGroup;
  if (int64_t(values.size()) < rows.rows * padded) values.resize(size_t(rows.rows * padded));
  const int64_t wanted = rows.rows * (2 * groups + 1);
  if (int64_t(floats.size()) < wanted) floats.resize(size_t(wanted));
  if (int64_t(totals.size()) < rows.rows * groups) totals.resize(size_t(rows.rows * groups));
  int8_t* const q = values.data();
  float* const scale = floats.data();
  float* const share = scale + rows.rows;
  float* const scaled = share + rows.rows * groups;
  int32_t* const total = totals.data();
  const int64_t bytes = rows.depth * (rows.element == Element::kFloat32 ? 4 : 2);
  const int64_t grain = std::max<int64_t>(1, kGrainValues / padded);
  parallel(rows.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      scale[r] = quantize_bytes(static_cast<const char*>(rows.x) + r * bytes, rows.element,
                                rows.depth, padded, q + r * padded, share + r * groups);
      for (int64_t g = r * groups; g < (r + 1) * groups; ++g) {
        int32_t sum = 0;
        for (int k = 0; k < kGroup; ++k) sum += q[g * kGroup + k];
        total[g] = sum;
        scaled[g] = float(sum) * share[g];
      }
    }
  });
  return {q, scale, share, total, scaled};
}

Target target_of(const Slices& slices, int64_t tile) {
  int64_t i = 0;
  while (i + 1 < slices.count && slices.slices[i + 1].tile <= tile) ++i;
  const Slice& slice = slices.slices[i];
  const int64_t column = (tile - slice.tile) * kTileColumns;
  return {slice.out, slice.columns, column,
          std::min<int64_t>(kTileColumns, slice.columns - column)};
}

void store_some(const float* values, const Target& target, Element element, int64_t row) {
  const int64_t at = row * target.columns + target.column;
  if (element == Element::kFloat32) {
    std::memcpy(static_cast<float*>(target.out) + at, values, size_t(target.count) * 4);
    return;
  }
  uint16_t bits[kTileColumns];
  for (int c = 0; c < kTileColumns; ++c) bits[c] = to_bfloat16(values[c]);
  std::memcpy(static_cast<uint16_t*>(target.out) + at, bits, size_t(target.count) * 2);
}

}  // namespace swarm
