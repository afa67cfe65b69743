// Threads of the batch helpers: those of an OpenMP runtime that the process has anyway, or else one pool for the process, made
// when it is first wanted.
//
// Thread safety: any thread. A helper that finds the pool at work, or that runs in a forked child, works alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace embershard {

// Calls on fewer values work alone: to wake a thread takes longer.
constexpr int64_t kThreadedValues = 16384;

// 1 or more. Until it is set: the CPUs this process may run on, at most 8.
void set_batch_threads(size_t threads);
size_t batch_threads();

// libgomp's entry to a parallel region: function(data) on each of `threads` threads, the caller's among them.
using GompParallel = void (*)(void (*function)(void*), void* data, unsigned threads, unsigned flags);
void use_openmp(GompParallel parallel);

// work(part) for each part of [0, parts), shared out among the threads.
void for_each_part(size_t parts, const std::function<void(size_t)>& work);

}  // namespace embershard
