#include "batch_threads.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "thread_pool.h"

namespace embershard {
namespace {

constexpr size_t kMostByDefault = 8;

size_t usable_cpus() {
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return static_cast<size_t>(CPU_COUNT(&set));
#endif
  return std::max(1U, std::thread::hardware_concurrency());
}

struct SharedPool {
  std::mutex mutex;
  size_t threads = std::min(usable_cpus(), kMostByDefault);
  std::shared_ptr<ThreadPool> pool;
  GompParallel openmp = nullptr;
  pid_t pool_owner = 0, openmp_owner = 0;  // a child has the memory of the threads, but not the threads
};

// Never destroyed: its threads may be at work when the process ends.
SharedPool& shared() {
  static auto* pool = new SharedPool;
  return *pool;
}

// What one call works with; nothing of it where the call works alone.
struct Helpers {
  GompParallel openmp = nullptr;
  size_t threads = 1;
  std::shared_ptr<ThreadPool> pool;  // held, so that its threads stay if the number is set anew
};

Helpers helpers() {
  SharedPool& mine = shared();
  std::lock_guard guard(mine.mutex);
  if (mine.threads == 1) return {};
  if (mine.openmp != nullptr) return mine.openmp_owner == getpid() ? Helpers{mine.openmp, mine.threads, nullptr} : Helpers{};
  if (mine.pool == nullptr) {
    mine.pool = std::make_shared<ThreadPool>(mine.threads);
    mine.pool_owner = getpid();
  }
  return mine.pool_owner == getpid() ? Helpers{nullptr, mine.threads, mine.pool} : Helpers{};
}

// The parts of one call, taken one after the other by whoever comes.
struct Parts {
  const std::function<void(size_t)>& work;
  const size_t count;
  std::atomic<size_t> cursor{0};
  std::mutex mutex{};
  std::exception_ptr failure = nullptr;

  void take() {
    for (size_t part; (part = cursor.fetch_add(1, std::memory_order_relaxed)) < count;) work(part);
  }
  // An exception must not leave an OpenMP region.
  static void take_in_region(void* parts) {
    auto& mine = *static_cast<Parts*>(parts);
    try {
      mine.take();
    } catch (...) {
      std::lock_guard guard(mine.mutex);
      mine.failure = std::current_exception();
    }
  }
};

}  // namespace

void set_batch_threads(size_t threads) {
  SharedPool& mine = shared();
  std::lock_guard guard(mine.mutex);
  if (threads == mine.threads) return;
  mine.threads = threads;
  if (mine.pool_owner == getpid()) mine.pool = nullptr;  // a child must not wait for its parent's threads
}

size_t batch_threads() {
  SharedPool& mine = shared();
  std::lock_guard guard(mine.mutex);
  return mine.threads;
}

void use_openmp(GompParallel parallel) {
  SharedPool& mine = shared();
  std::lock_guard guard(mine.mutex);
  mine.openmp = parallel;
  mine.openmp_owner = getpid();
}

void for_each_part(size_t count, const std::function<void(size_t)>& work) {
  const Helpers with = count > 1 ? helpers() : Helpers{};
  Parts parts{work, count};
  if (with.openmp != nullptr) {
    with.openmp(&Parts::take_in_region, &parts, static_cast<unsigned>(with.threads), 0);
    if (parts.failure != nullptr) std::rethrow_exception(parts.failure);
  } else if (with.pool != nullptr) {
    with.pool->run([&](size_t) { parts.take(); });
  } else {
    parts.take();
  }
}

}  // namespace embershard
