// What every kernel here shares. Kernels are plain C++; only files named binding*.cpp include torch,
// since its headers take most of the build's time. All are compiled side by side.
#include <ATen/Parallel.h>
#include <torch/library.h>

#include "parallel.h"

namespace swarm {

void run_parallel(int64_t count, int64_t grain, void (*task)(void*, int64_t, int64_t),
                  void* context) {
  at::parallel_for(0, count, grain,
                   [&](int64_t begin, int64_t end) { task(context, begin, end); });
}

int thread_count() { return at::get_num_threads(); }

// What the compiler was allowed to use: the kernels choose their code by the same marks.
static std::string instruction_set() {
#if defined(__AMX_INT8__)
  return "amx";
#elif defined(__AVX512VNNI__) && defined(__AVX512BW__)
  return "avx512vnni";
#elif defined(__AVX2__) && defined(__FMA__)
  return "avx2";
#else
  return "portable";
#endif
}

}  // namespace swarm

TORCH_LIBRARY_FRAGMENT(swarm, library) {
  library.def("instruction_set() -> str", &swarm::instruction_set);
}
