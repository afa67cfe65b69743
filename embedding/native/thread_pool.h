// Table threads: a fixed set of threads that share out the parts of one verb. One verb uses them at a time; others run alone.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace embershard {

class ThreadPool {
 public:
  explicit ThreadPool(size_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  size_t threads() const { return workers_.size() + 1; }

  // Runs work(0) on the calling thread and work(1) … on the pool's, if they are free, and waits for those that began before
  // work(0) ended. The work shares itself out (an atomic cursor), so it is right for any number that really runs. Rethrows the
  // first exception.
  void run(const std::function<void(size_t)>& work);

 private:
  void loop(size_t index);

  std::mutex busy_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  const std::function<void(size_t)>* work_ = nullptr;
  size_t generation_ = 0;
  size_t running_ = 0;  // threads of the pool inside the work
  std::exception_ptr failure_;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace embershard
