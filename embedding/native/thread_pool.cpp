#include "thread_pool.h"

#include <exception>

namespace embershard {

ThreadPool::ThreadPool(size_t threads) {
  for (size_t index = 1; index < threads; ++index) workers_.emplace_back([this, index] { loop(index); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard guard(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::run(const std::function<void(size_t)>& work) {
  std::unique_lock busy(busy_, std::try_to_lock);
  if (workers_.empty() || !busy.owns_lock()) {
    work(0);
    return;
  }
  {
    std::lock_guard guard(mutex_);
    work_ = &work;
    failure_ = nullptr;
    ++generation_;
  }
  wake_.notify_all();
  std::exception_ptr failure;
  try {
    work(0);
  } catch (...) {
    failure = std::current_exception();
  }
  std::unique_lock lock(mutex_);
  work_ = nullptr;  // a thread that wakes up late finds nothing to do, and is not waited for
  done_.wait(lock, [this] { return running_ == 0; });
  if (failure == nullptr) failure = failure_;
  lock.unlock();
  if (failure != nullptr) std::rethrow_exception(failure);
}

void ThreadPool::loop(size_t index) {
  size_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stopping_ || generation_ != seen; });
    if (stopping_) return;
    seen = generation_;
    const auto* work = work_;
    if (work == nullptr) continue;
    ++running_;
    lock.unlock();
    std::exception_ptr failure;
    try {
      (*work)(index);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure != nullptr && failure_ == nullptr) failure_ = failure;
    if (--running_ == 0) done_.notify_one();
  }
}

}  // namespace embershard
