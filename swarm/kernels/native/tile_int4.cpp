// A tile instruction multiplies 16 rows of 32 bfloat16 with 32 of 16 columns. bfloat16 holds integers
// up to 256 and any power of two times them, so an activation goes in as its byte times its group's
// share, a weight as its 4 bits, and a group's sum is exact in float32 whatever the order: it is the
// integer sum times the share, as it is everywhere else.
//
// Four groups are under way at a time: while the tiles work on the next ones, the sums of one that is
// done, stored and loaded again, are scaled and added.
#include "tile_int4.h"

#include "int4_linear.h"
#if defined(__x86_64__)
#include "tile_shapes.h"
#endif

#ifdef SWARM_TILES

#include <utility>
#include <vector>

namespace swarm {

namespace {

constexpr int kTileRows = 16;
constexpr int64_t kSums = 1024;                        // bytes of a tile of sums
constexpr int64_t kPlane = kTileRows * kGroup * 2;     // of a group's activations of 16 rows
constexpr int64_t kWeights = kTileColumns * kGroup * 2;  // of a group's weights, unpacked
constexpr int64_t kPacked = kWeights / 4;
constexpr int64_t kPanelBytes = 1 << 20;  // of rows that share one pass: half of a second cache
constexpr int64_t kPanelRows = 128;
constexpr int64_t kPair = 2;  // tiles of outputs that share a span of activations
// Groups that are done before the next row tile comes: so few that their unpacked weights and these
// activations stay in the first cache.
constexpr int64_t kSpan = 9;

// Tiles 0 to 3 are sums, 4 and 5 activations, 6 and 7 weights.
template <int R>
void set_shapes() {
  TileShapes shapes;
  shapes.set(0, 4, R, 64);
  shapes.set(4, 6, R, 2 * kGroup);
  shapes.set(6, 8, kGroup / 2, 64);
  shapes.load();
}

// Activations of 16 rows after each other: planes [row tiles, groups, 16, 32] bfloat16, totals [row
// tiles, groups, 16]: a group's sum times its share. Rows that are not there are zeros.
struct Panels {
  const int8_t* planes;
  const float* totals;
};

struct Job {
  const Rows& rows;
  const GroupWeight& weight;
  const Slices& slices;
  const QuantizedBytes& q;
  Panels panels;
  int64_t groups;
};

// One group of one row. Of each four inputs the middle two change places, as `unpack` leaves weights.
inline void place_group(const int8_t* bytes, float share, int8_t* to) {
  const __m128i swap = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
  const __m512 by = _mm512_set1_ps(share);
  for (int half = 0; half < 2; ++half) {
    const __m128i some = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i*)bytes + half), swap);
    const __m512 wide = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(some));
    const __m256i made = (__m256i)_mm512_cvtneps_pbh(_mm512_mul_ps(wide, by));
    _mm256_storeu_si256((__m256i*)to + half, made);
  }
}

Panels panels_of(const Rows& rows, const QuantizedBytes& q, int64_t groups) {
  static thread_local std::vector<int8_t> planes;
  static thread_local std::vector<float> totals;
  const int64_t tiles = (rows.rows + kTileRows - 1) / kTileRows;
  const size_t bytes = size_t(tiles * groups * kPlane) + 64;
  if (planes.size() < bytes) planes.resize(bytes);
  if (totals.size() < size_t(tiles * groups * kTileRows))
    totals.resize(size_t(tiles * groups * kTileRows));
  int8_t* const plane = (int8_t*)((uintptr_t(planes.data()) + 63) & ~uintptr_t(63));
  float* const total = totals.data();
  const int64_t grain = std::max<int64_t>(1, kGrainValues / (groups * kGroup));
  parallel(tiles * kTileRows, grain, [&](int64_t begin, int64_t end) {
    constexpr int64_t kRowBytes = kPlane / kTileRows;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = row / kTileRows * groups, place = row % kTileRows;
      for (int64_t g = 0; g < groups; ++g) {
        int8_t* const to = plane + (first + g) * kPlane + place * kRowBytes;
        float& sum = total[(first + g) * kTileRows + place];
        if (row < rows.rows) {
          const float share = q.shares[row * groups + g];
          place_group(q.values + (row * groups + g) * kGroup, share, to);
          sum = float(q.totals[row * groups + g]) * share;
        } else {
          std::memset(to, 0, kRowBytes);
          sum = 0;
        }
      }
    }
  });
  return {plane, total};
}

// What each 4 bits mean, as bfloat16; twice, so that a fifth bit of an index does not matter.
__m512i meanings(int zero) {
  alignas(64) uint16_t values[32];
  for (int i = 0; i < 32; ++i) values[i] = to_bfloat16(float((i & 15) - zero));
  return _mm512_load_si512(values);
}

// Weights of one tile of outputs to bfloat16: of each four inputs the first and the third are a pair,
// and the second and the fourth.
inline void unpack(const int8_t* packed, int64_t groups, __m512i table, int8_t* to) {
  for (int64_t step = 0; step < groups * 4; ++step, packed += 64) {
    const __m512i both = _mm512_loadu_si512(packed);
    int8_t* const at = to + step / 4 * kWeights + step % 4 * 128;
    _mm512_storeu_si512(at, _mm512_permutexvar_epi16(both, table));
    _mm512_storeu_si512(at + 64, _mm512_permutexvar_epi16(_mm512_srli_epi16(both, 8), table));
    _mm512_storeu_si512(at + 512, _mm512_permutexvar_epi16(_mm512_srli_epi16(both, 4), table));
    _mm512_storeu_si512(at + 576, _mm512_permutexvar_epi16(_mm512_srli_epi16(both, 12), table));
  }
}

// Sums come about in tile S, from when they are started until they are kept. Compilers take a tile's
// name from the text of the call alone, so each has functions of its own.
template <int S>
struct Slot {};

#define SWARM_SLOT(S, A, B)                                                               \
  inline void start(Slot<S>, const int8_t* plane, const int8_t* weights) {                \
    _tile_zero(S);                                                                        \
    _tile_loadd(A, plane, 64);                                                            \
    _tile_loadd(B, weights, 64);                                                          \
    _tile_dpbf16ps(S, A, B);                                                              \
  }                                                                                       \
  inline void keep(Slot<S>, int8_t* sums) { _tile_stored(S, sums + S * kSums, 64); }

SWARM_SLOT(0, 4, 6)
SWARM_SLOT(1, 5, 7)
SWARM_SLOT(2, 4, 6)
SWARM_SLOT(3, 5, 7)
#undef SWARM_SLOT

// Of one row tile and one tile of outputs, by group: what is multiplied, and what scales the sums.
struct Operands {
  const int8_t* planes;
  const int8_t* weights;
  const uint16_t* scale;
  const uint16_t* minimum;
  const float* totals;
};

// The sums of 16 rows. Names that are known when it is compiled, not an array that is looked up, so
// that they stay in registers while tiles are stored beside them.
template <size_t... r>
using Indices = std::index_sequence<r...>;
template <int R>
constexpr auto kRows = std::make_index_sequence<R>{};

template <bool kMinimum, int R, size_t... r>
[[gnu::always_inline]] inline void add_group(const int8_t* sums, const Operands& of, int64_t g,
                                             Floats (&made)[R], Indices<r...>) {
  const Floats scale = from_float16s(of.scale + g * kTileColumns);
  ((made[r] = fused(load_floats(sums + r * 64), scale, made[r])), ...);
  if constexpr (kMinimum) {
    const Floats minimum = from_float16s(of.minimum + g * kTileColumns);
    ((made[r] = fused(splat(of.totals[g * kTileRows + r]), minimum, made[r])), ...);
  }
}

// Step of group g, whose sums are in slot S: the third after it is started, the next one stored.
template <bool kMinimum, int S, int R>
[[gnu::always_inline]] inline void step(const Operands& of, int64_t g, int64_t count, int8_t* sums,
                                        Floats (&made)[R]) {
  if (g + 3 < count)
    start(Slot<(S + 3) % 4>{}, of.planes + (g + 3) * kPlane, of.weights + (g + 3) * kWeights);
  if (g + 1 < count) keep(Slot<(S + 1) % 4>{}, sums);
  if (g < count) add_group<kMinimum, R>(sums + S * kSums, of, g, made, kRows<R>);
}

// `made` goes on from what the groups before gave. `sums`: room for four tiles of them.
template <bool kMinimum, int R>
[[gnu::always_inline]] inline void add_groups(const Operands& of, int64_t count, int8_t* sums,
                                              Floats (&made)[R]) {
  start(Slot<0>{}, of.planes, of.weights);
  if (count > 1) start(Slot<1>{}, of.planes + kPlane, of.weights + kWeights);
  if (count > 2) start(Slot<2>{}, of.planes + 2 * kPlane, of.weights + 2 * kWeights);
  keep(Slot<0>{}, sums);
  for (int64_t g = 0; g < count; g += 4) {
    step<kMinimum, 0>(of, g, count, sums, made);
    step<kMinimum, 1>(of, g + 1, count, sums, made);
    step<kMinimum, 2>(of, g + 2, count, sums, made);
    step<kMinimum, 3>(of, g + 3, count, sums, made);
  }
}

// Where a block of R rows and 16 outputs is: `count` of the rows are there.
struct Place {
  int64_t row, count, tile;
};

// Some groups of them: [begin, begin + groups) of all.
struct Span {
  int64_t begin, groups;
};

[[gnu::always_inline]] inline void finish_row(const Job& job, const Place& place,
                                              const Target& target, Floats made, int64_t r) {
  if (r >= place.count) return;
  Floats value = made * splat(job.q.scales[place.row + r]);
  if (job.weight.bias != nullptr)
    value = value + load_floats(job.weight.bias + place.tile * kTileColumns);
  store(value, target, job.rows.element, place.row + r);
}

// `kept`: the block's sums between one span and the next.
template <bool kMinimum, int R, size_t... r>
void block(const Job& job, const Place& place, const Span& span, const int8_t* weights,
           int8_t* sums, float* kept, Indices<r...>) {
  const int64_t first = place.row / kTileRows * job.groups + span.begin;
  const int64_t at = (place.tile * job.groups + span.begin) * kTileColumns;
  const Operands of{job.panels.planes + first * kPlane, weights, job.weight.scale + at,
                    kMinimum ? job.weight.minimum + at : nullptr,
                    job.panels.totals + first * kTileRows};
  Floats made[R] = {};
  if (span.begin > 0) ((made[r] = load_floats(kept + r * kTileColumns)), ...);
  add_groups<kMinimum, R>(of, span.groups, sums, made);
  if (span.begin + span.groups == job.groups) {
    const Target target = target_of(job.slices, place.tile);
    (finish_row(job, place, target, made[r], r), ...);
  } else {
    (std::memcpy(kept + r * kTileColumns, &made[r], 64), ...);
  }
}

// A thread's memory: what is in use at a time stays in the first cache.
struct Room {
  alignas(64) int8_t sums[4 * kSums];
  alignas(64) int8_t weights[kPair][kSpan * kWeights];
  alignas(64) float kept[kPanelRows / kTileRows][kPair][kTileRows * kTileColumns];
};

// Asked for once: where a compiler sees the thread's own memory it looks its address up again and
// again, by calls before which all registers are put aside.
[[gnu::noinline]] Room& room_of_thread() {
  static thread_local Room room;
  return room;
}

// Row tiles of R rows, or one that is not full, against tiles of outputs.
template <bool kMinimum, int R>
void tiles(const Job& job, int64_t row, int64_t row_end, int64_t tile, int64_t tile_end) {
  Room& room = room_of_thread();
  set_shapes<R>();
  const __m512i table = meanings(kMinimum ? 0 : kInt4Zero);
  const int64_t groups = job.groups;
  for (; tile < tile_end; tile += kPair) {
    const int64_t pair = std::min<int64_t>(kPair, tile_end - tile);
    for (Span span{0, 0}; span.begin < groups; span.begin += kSpan) {
      span.groups = std::min<int64_t>(kSpan, groups - span.begin);
      for (int64_t t = 0; t < pair; ++t) {
        const int64_t at = (tile + t) * groups + span.begin;
        unpack(job.weight.packed + at * kPacked, span.groups, table, room.weights[t]);
      }
      for (int64_t r = row; r < row_end; r += kTileRows)
        for (int64_t t = 0; t < pair; ++t)
          block<kMinimum, R>(job, {r, std::min<int64_t>(R, row_end - r), tile + t}, span,
                             room.weights[t], room.sums, room.kept[(r - row) / kTileRows][t],
                             kRows<R>);
    }
  }
  _tile_release();
}

template <bool kMinimum>
void run(const Rows& rows, const GroupWeight& weight, const Slices& slices,
         const QuantizedBytes& q) {
  const int64_t groups = weight.depth / kGroup;
  const Job job{rows, weight, slices, q, panels_of(rows, q, groups), groups};
  const int64_t fitting = kPanelBytes / (groups * kPlane) * kTileRows;
  const int64_t chunk = std::clamp<int64_t>(fitting, kTileRows, kPanelRows);
  over_tiles(rows.rows, weight.tiles, weight.depth, chunk,
             [&](int64_t row, int64_t row_end, int64_t tile, int64_t tile_end) {
               const int64_t full = row_end - (row_end - row) % kTileRows;
               if (row < full) tiles<kMinimum, 16>(job, row, full, tile, tile_end);
               const int64_t rest = row_end - full;
               if (rest > 8) tiles<kMinimum, 16>(job, full, row_end, tile, tile_end);
               if (rest > 4 && rest <= 8) tiles<kMinimum, 8>(job, full, row_end, tile, tile_end);
               if (rest > 0 && rest <= 4) tiles<kMinimum, 4>(job, full, row_end, tile, tile_end);
             });
}

}  // namespace

void tile_int4_linear(const Rows& rows, const GroupWeight& weight, const Slices& slices,
                      const QuantizedBytes& q) {
  if (weight.minimum != nullptr) {
    run<true>(rows, weight, slices, q);
  } else {
    run<false>(rows, weight, slices, q);
  }
}

}  // namespace swarm

#else

namespace swarm {

void tile_int4_linear(const Rows&, const GroupWeight&, const Slices&, const QuantizedBytes&) {}

}  // namespace swarm

#endif
