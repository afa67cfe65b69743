// One lock a tablet: shared for readers; a waiting writer is let in before new readers, so that pulls cannot starve pushes.
#pragma once

#include <pthread.h>

namespace embershard {

class alignas(64) TabletLock {
 public:
  TabletLock() {
    pthread_rwlockattr_t attributes;
    pthread_rwlockattr_init(&attributes);
#ifdef __GLIBC__
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
#endif
    pthread_rwlock_init(&lock_, &attributes);
    pthread_rwlockattr_destroy(&attributes);
  }
  ~TabletLock() { pthread_rwlock_destroy(&lock_); }
  TabletLock(const TabletLock&) = delete;
  TabletLock& operator=(const TabletLock&) = delete;

  void lock() { pthread_rwlock_wrlock(&lock_); }
  void unlock() { pthread_rwlock_unlock(&lock_); }
  void lock_shared() { pthread_rwlock_rdlock(&lock_); }
  void unlock_shared() { pthread_rwlock_unlock(&lock_); }

 private:
  pthread_rwlock_t lock_;
};

}  // namespace embershard
