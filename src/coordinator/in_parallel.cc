#include "coordinator/in_parallel.h"

#include <thread>
#include <vector>

namespace stasis::coordinator {

Status InParallel(size_t count, const std::function<Status(size_t)>& step) {
  if (count == 1) return step(0);
  std::vector<Status> results(count);
  std::vector<std::thread> threads;
  // Not one of them on ours: a phase that waits there would seem to wait with all it does
  // (plan.cc).
  for (size_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] { results[i] = step(i); });
  }
  for (auto& thread : threads) thread.join();
  for (auto& result : results) STASIS_TRY(std::move(result));
  return {};
}

}  // namespace stasis::coordinator
