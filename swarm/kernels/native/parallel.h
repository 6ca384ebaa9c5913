// Splits a loop over torch's own compute threads, for kernels that include no header of torch.
#pragma once

#include <cstdint>
#include <type_traits>

namespace swarm {

// Calls task(context, begin, end) on slices that together cover [0, count). `grain`: a slice is not
// smaller than this, so work below it stays on the calling thread. Defined in binding.cpp.
void run_parallel(int64_t count, int64_t grain, void (*task)(void*, int64_t, int64_t),
                  void* context);

int thread_count();

// body(begin, end). No result may depend on how the loop is split.
template <class Body>
void parallel(int64_t count, int64_t grain, Body&& body) {
  using Plain = std::remove_reference_t<Body>;
  run_parallel(
      count, grain,
      [](void* context, int64_t begin, int64_t end) {
        (*static_cast<Plain*>(context))(begin, end);
      },
      &body);
}

}  // namespace swarm
