#include "glue.h"

#include <algorithm>
#include <cmath>

#include "lanes.h"
#include "parallel.h"

namespace swarm::glue {
namespace {

using namespace wide;

// Below this, waking a thread costs more than it saves.
constexpr int64_t kGrainElements = 64 * 1024;

int64_t grain(int64_t size) {
  return std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, size));
}

// Calls body(T{}) with the element's type.
template <class Body>
void typed(Element element, Body&& body) {
  switch (element) {
    case Element::kFloat32: return body(float{});
    case Element::kBFloat16: return body(BFloat16{});
    case Element::kFloat16: return body(Float16{});
  }
}

template <class T>
Lanes rounded(Lanes lanes) {
  T narrow[kLanes];
  store(narrow, lanes);
  return load(narrow);
}

template <class T>
void norm_row(const T* x, int64_t size, const Norm& norm, T* output) {
  Lanes squares[4] = {};
  for (int64_t i = 0, n = 0; i < size; i += kLanes, ++n) {
    const Lanes value = load_some(x + i, size - i);
    squares[n % 4] = fma(value, value, squares[n % 4]);
  }
  const float mean = sum((squares[0] + squares[1]) + (squares[2] + squares[3])) / float(size);
  const float factor = 1.0f / std::sqrt(mean + norm.epsilon);
  const T* weight = static_cast<const T*>(norm.weight);
  for (int64_t i = 0; i < size; i += kLanes) {
    Lanes value = load_some(x + i, size - i) * factor;
    if (weight != nullptr) {
      const Lanes by = load_some(weight + i, size - i);
      if (norm.weighing == Weighing::kRounded) value = rounded<T>(value) * by;
      if (norm.weighing == Weighing::kExact) value = value * by;
      if (norm.weighing == Weighing::kPlusOne) value = value * (by + 1.0f);
    }
    store_some(output + i, value, size - i);
  }
}

Lanes silu(Lanes x) { return x / (exponential(-x) + 1.0f); }

Lanes gelu_tanh(Lanes x) {
  const Lanes inner = (x + x * x * x * 0.044715f) * 0.79788456f;
  return x / (exponential(inner * -2.0f) + 1.0f);
}

template <class T>
void gate_some(const T* gate, const T* up, int64_t count, Gate act, T* output) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const Lanes value = load_some(gate + i, count - i);
    const Lanes gated = act == Gate::kSilu ? silu(value) : gelu_tanh(value);
    store_some(output + i, gated * load_some(up + i, count - i), count - i);
  }
}

template <class T>
void turn_head(const T* x, const T* cos, const T* sin, const Turn& turn, T* output) {
  const int64_t half = turn.turned / 2;
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t left = half - i;
    const Lanes a = load_some(x + i, left), b = load_some(x + half + i, left);
    const Lanes first = a * load_some(cos + i, left) - b * load_some(sin + i, left);
    const Lanes second =
        b * load_some(cos + half + i, left) + a * load_some(sin + half + i, left);
    store_some(output + i, first, left);
    store_some(output + half + i, second, left);
  }
  std::copy(x + turn.turned, x + turn.size, output + turn.turned);
}

}  // namespace

void rms_norm(const void* x, Element element, int64_t rows, int64_t size, const Norm& norm,
              void* output) {
  typed(element, [&](auto type) {
    using T = decltype(type);
    parallel(rows, grain(size), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        norm_row(static_cast<const T*>(x) + row * size, size, norm,
                 static_cast<T*>(output) + row * size);
    });
  });
}

void gated(const void* gate, const void* up, Element element, int64_t count, Gate act,
           void* output) {
  typed(element, [&](auto type) {
    using T = decltype(type);
    parallel(count, kGrainElements / 4, [&](int64_t begin, int64_t end) {
      gate_some(static_cast<const T*>(gate) + begin, static_cast<const T*>(up) + begin,
                end - begin, act, static_cast<T*>(output) + begin);
    });
  });
}

void rotate(const Heads& heads, const Turn& turn, Element element) {
  typed(element, [&](auto type) {
    using T = decltype(type);
    const int64_t width = heads.heads * turn.size;
    parallel(turn.sequences * turn.tokens, grain(width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t sequence = row / turn.tokens, token = row % turn.tokens;
        const int64_t at = sequence * turn.cos_sequence_stride + token * turn.turned;
        const T* x = static_cast<const T*>(heads.data) + sequence * heads.sequence_stride +
                     token * heads.token_stride;
        T* output = static_cast<T*>(heads.output) + row * width;
        for (int64_t head = 0; head < heads.heads; ++head)
          turn_head(x + head * heads.head_stride, static_cast<const T*>(turn.cos) + at,
                    static_cast<const T*>(turn.sin) + at, turn, output + head * turn.size);
      }
    });
  });
}

}  // namespace swarm::glue
