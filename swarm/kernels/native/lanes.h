// Sixteen floats side by side, on any processor: the compiler's own vectors, so that one source
// means the same operations everywhere. Only what it cannot express is written per instruction set.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace swarm::wide {

constexpr int kLanes = 16;

typedef float Lanes __attribute__((vector_size(64)));
typedef int32_t IntLanes __attribute__((vector_size(64)));
typedef uint32_t BitLanes __attribute__((vector_size(64)));

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

// Minus zero, since plus zero would change -0, and compilers then really add.
inline Lanes splat(float value) { return value - Lanes{}; }

// a * b + c with one rounding where the processor has it.
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
#if defined(__AVX512F__)
  return (Lanes)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__) && defined(__AVX2__)
  union Halves {
    Lanes all;
    __m256 half[2];
  } x{a}, y{b}, z{c};
  z.half[0] = _mm256_fmadd_ps(x.half[0], y.half[0], z.half[0]);
  z.half[1] = _mm256_fmadd_ps(x.half[1], y.half[1], z.half[1]);
  return z.all;
#elif defined(__ARM_FEATURE_FMA)
  for (int i = 0; i < kLanes; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
#else
  return a * b + c;
#endif
}

// The same for one lane.
inline float fma(float a, float b, float c) {
#if defined(__AVX512F__) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

inline Lanes larger(Lanes a, Lanes b) {
#if defined(__AVX512F__)
  return (Lanes)_mm512_max_ps((__m512)a, (__m512)b);
#else
  return a > b ? a : b;
#endif
}

inline float largest(Lanes a) {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    const IntLanes lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    a = larger(a, __builtin_shuffle(a, lane ^ half));
  }
  return a[0];
}

inline float sum(Lanes a) {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    const IntLanes lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    a = a + __builtin_shuffle(a, lane ^ half);
  }
  return a[0];
}

inline Lanes load(const float* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

inline Lanes load(const BFloat16* from) {
  typedef uint16_t Half __attribute__((vector_size(32)));
  Half half;
  std::memcpy(&half, from, sizeof half);
  return (Lanes)(__builtin_convertvector(half, BitLanes) << 16);
}

inline Lanes load(const int8_t* from) {
  typedef int8_t Quarter __attribute__((vector_size(16)));
  Quarter quarter;
  std::memcpy(&quarter, from, sizeof quarter);
  return __builtin_convertvector(__builtin_convertvector(quarter, IntLanes), Lanes);
}

inline float load_one(const float* from) { return *from; }
inline float load_one(const int8_t* from) { return *from; }
inline float load_one(const BFloat16* from) {
  const uint32_t bits = uint32_t(from->bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline float load_one(const Float16* from) {
#if defined(__F16C__)
  return _cvtsh_ss(from->bits);
#else
  _Float16 value;
  std::memcpy(&value, from, sizeof value);
  return float(value);
#endif
}

inline Lanes load(const Float16* from) {
#if defined(__AVX512F__)
  __m256i half;
  std::memcpy(&half, from, sizeof half);
  return (Lanes)_mm512_cvtph_ps(half);
#else
  Lanes lanes;
  for (int i = 0; i < kLanes; ++i) lanes[i] = load_one(from + i);
  return lanes;
#endif
}

inline void store(float* to, Lanes lanes) { std::memcpy(to, &lanes, sizeof lanes); }

inline void store_one(float* to, float value) { *to = value; }
inline void store_one(BFloat16* to, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  to->bits = uint16_t(is_nan ? bits >> 16 | 0x40 : rounded);
}
inline void store_one(Float16* to, float value) {
#if defined(__F16C__)
  to->bits = _cvtss_sh(value, 0);
#else
  const _Float16 half = _Float16(value);
  std::memcpy(to, &half, sizeof half);
#endif
}

inline void store(BFloat16* to, Lanes lanes) {
  const BitLanes bits = (BitLanes)lanes;
  const BitLanes rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40;
  const BitLanes is_nan = (BitLanes)(lanes != lanes);
  typedef uint16_t Half __attribute__((vector_size(32)));
  const Half half = __builtin_convertvector((rounded & ~is_nan) | (quiet & is_nan), Half);
  std::memcpy(to, &half, sizeof half);
}
inline void store(Float16* to, Lanes lanes) {
#if defined(__AVX512F__)
  const __m256i half = _mm512_cvtps_ph((__m512)lanes, _MM_FROUND_TO_NEAREST_INT);
  std::memcpy(to, &half, sizeof half);
#else
  for (int i = 0; i < kLanes; ++i) store_one(to + i, lanes[i]);
#endif
}

// The same for what is left of a row, `count` elements, filled up with zeros.
template <class T>
inline Lanes load_some(const T* from, int64_t count) {
  if (count >= kLanes) return load(from);
  T filled[kLanes] = {};
  std::copy(from, from + count, filled);
  return load(filled);
}

template <class T>
inline void store_some(T* to, Lanes lanes, int64_t count) {
  if (count >= kLanes) return store(to, lanes);
  T filled[kLanes];
  store(filled, lanes);
  std::copy(filled, filled + count, to);
}

// e^x to about one unit in the last place, for x up to 88; 0 below the smallest normal number.
inline Lanes exponential(Lanes x) {
  const Lanes low = splat(-87.336544f), high = splat(88.0f);
  const Lanes bounded = x < low ? low : (x > high ? high : x);
  const Lanes magic = splat(12582912.0f);  // adding it rounds to a whole number
  const Lanes whole = fma(bounded, splat(1.44269504f), magic) - magic;
  Lanes rest = fma(whole, splat(-0.693359375f), bounded);
  rest = fma(whole, splat(2.12194440e-4f), rest);
  Lanes power = splat(1.9875691500e-4f);
  power = fma(power, rest, splat(1.3981999507e-3f));
  power = fma(power, rest, splat(8.3334519073e-3f));
  power = fma(power, rest, splat(4.1665795894e-2f));
  power = fma(power, rest, splat(1.6666665459e-1f));
  power = fma(power, rest, splat(5.0000001201e-1f));
  power = fma(power * rest, rest, rest + 1.0f);
  const IntLanes exponent = __builtin_convertvector(whole, IntLanes);
  const Lanes scale = (Lanes)((exponent + 127) << 23);
  return x < low ? Lanes{} : (x != x ? x : power * scale);
}

inline float exponential(float x) { return exponential(splat(x))[0]; }

}  // namespace swarm::wide
