// The threads of the C library's own calls on the CPU.
//
// A thread that has work takes part in it, so a call makes progress even if the pool is busy
// with the calls of others, or cannot start a thread.
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include "c_api/frame/failure.h"
#include "c_api/own_program.h"

namespace torch_ops::own {
namespace {

constexpr int64_t kMaxThreads = 1024;

// Lives on the stack of the call that it belongs to.
struct Job {
  void (*part)(void* context, int64_t n);
  void* context;
  int64_t parts;
  int64_t next = 0;     // the first part that nobody has taken; guarded by the pool's mutex
  int64_t running = 0;  // parts that are taken and not done; guarded by it too
  std::exception_ptr error;
};

class Pool {
 public:
  void run(Job& job) {
    std::unique_lock<std::mutex> lock(mutex_);
    jobs_.push_back(&job);
    // The calling thread takes one part itself.
    while (threads_ < std::min<int64_t>(num_threads() - 1, kMaxThreads) && idle_ < job.parts - 1 &&
           start_thread()) {
    }
    for (int64_t n = 1; n < job.parts; ++n) wake_.notify_one();
    while (job.next < job.parts) run_part(job, lock);
    done_.wait(lock, [&] { return job.running == 0; });
    lock.unlock();
    if (job.error) std::rethrow_exception(job.error);
  }

 private:
  bool start_thread() {
    try {
      std::thread([this] { work(); }).detach();
    } catch (const std::system_error&) {
      return false;  // the existing threads do it
    }
    ++threads_;
    ++idle_;
    return true;
  }

  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return !jobs_.empty(); });
      --idle_;
      while (!jobs_.empty()) run_part(*jobs_.front(), lock);
      ++idle_;
    }
  }

  void run_part(Job& job, std::unique_lock<std::mutex>& lock) {
    const int64_t n = job.next++;
    ++job.running;
    if (job.next == job.parts) jobs_.erase(std::find(jobs_.begin(), jobs_.end(), &job));
    lock.unlock();
    std::exception_ptr error;
    try {
      job.part(job.context, n);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error) job.error = error;
    if (--job.running == 0 && job.next == job.parts) done_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::deque<Job*> jobs_;  // with parts that nobody has taken
  int64_t threads_ = 0;
  int64_t idle_ = 0;  // those that wait, or have just been started
};

// Never destroyed: its threads may run until the process ends. A child of fork() has none of them,
// so it gets a pool of its own.
std::atomic<Pool*> the_pool{nullptr};

Pool& pool() {
  static const bool renewed_by_children = [] {
    return pthread_atfork(nullptr, nullptr, [] { the_pool.store(nullptr); }) == 0;
  }();
  (void)renewed_by_children;
  Pool* found = the_pool.load();
  if (found == nullptr) {
    auto* made = new Pool;
    if (the_pool.compare_exchange_strong(found, made)) return *made;
    delete made;
  }
  return *found;
}

int64_t default_threads() {
  for (const char* name : {"TORCH_OPS_NUM_THREADS", "OMP_NUM_THREADS"}) {
    const char* text = std::getenv(name);
    const long number = text == nullptr ? 0 : std::strtol(text, nullptr, 10);
    if (number > 0) return std::min<int64_t>(number, kMaxThreads);
  }
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) return CPU_COUNT(&allowed);
  return std::max<int64_t>(std::thread::hardware_concurrency(), 1);
}

std::atomic<int64_t> wanted_threads{0};  // 0: the default

}  // namespace

int64_t num_threads() {
  static const int64_t by_default = default_threads();
  const int64_t wanted = wanted_threads.load(std::memory_order_relaxed);
  return wanted > 0 ? wanted : by_default;
}

void run_parts(int64_t parts, void (*part)(void* context, int64_t n), void* context) {
  if (parts <= 0) return;
  Job job{part, context, parts};
  pool().run(job);
}

}  // namespace torch_ops::own

extern "C" {

torch_ops_status torch_ops_set_num_threads(int32_t threads) {
  return torch_ops::guarded(__func__, [&] {
    if (threads < 0 || threads > torch_ops::own::kMaxThreads) {
      torch_ops::fail(TORCH_OPS_INVALID_ARGUMENT, "threads must be between 0 and ",
                      torch_ops::own::kMaxThreads, ", but it is ", threads);
    }
    torch_ops::own::wanted_threads.store(threads);
  });
}

int32_t torch_ops_get_num_threads(void) {
  return static_cast<int32_t>(torch_ops::own::num_threads());
}

}  // extern "C"
