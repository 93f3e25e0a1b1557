// What src/c_api/gpu/runtime.cu does between the functions of torch_ops.h and the kernels, on the
// devices of fake_cuda.h: errors of threads, of graphs, of two devices; devices that cannot be
// used. The kernels of this program run on the host.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "c_api/calls/activations.h"
#include "c_api/calls/rows.h"
#include "c_api/gpu/gpu.h"
#include "c_api/gpu/runtime.cuh"
#include "fake_cuda.h"
#include "scatter/scatter_launch.h"

namespace torch_ops {
namespace {

int host_calls = 0;  // that a device has computed
std::function<void()> graph;

// As record_bad_entry does.
void record(const IndexErrorSite& site, int64_t row, int64_t value) {
  if (site.slot->claimed != 0) return;
  site.slot->claimed = 1;
  site.slot->record->site = site;
  site.slot->record->row = row;
  site.slot->record->value = value;
  site.slot->record->sequence = ++site.slot->sequence;
}

}  // namespace

// The kernels of the calls on device pointers.
namespace kernels {

void gather(OnCuda on, const GatherCall<RowLayout>& call, const IndexErrorSite& site) {
  const HostScope scope(on.program);
  auto captured = fake_cuda::queue(current_stream(), [call, site] {
    const auto* index = static_cast<const int64_t*>(call.index.data);
    for (int64_t n = 0; n < call.layout.entries; ++n) {
      if (!in_range(index[n], call.layout.axis_size)) record(site, n, index[n]);
    }
  });
  if (captured) graph = captured;
}

template <>
void relu(OnCuda on, Slope, const StridedWalk<2>&, uint8_t*, float*, const float*) {
  const HostScope scope(on.program);
  fake_cuda::queue(current_stream(), [] {});
}

// The CPU's sums take half of the time of compiling everything, and are not what is tested here.
template <>
int64_t scatter_add(OnCpu, const ReduceCall<float, float>& call) {
  const auto* index = static_cast<const int64_t*>(call.index.data);
  std::fill_n(call.result, call.result_count(), 0.0f);
  for (int64_t n = 0; n < call.layout.entries; ++n) call.result[index[n]] += call.values[n];
  return kNoBadEntry;
}

}  // namespace kernels

namespace gpu {

void gather_host(const RowCall& call, torch_ops_stream, float*) {
  translated(need_kernels);
  ++host_calls;
  gather(OnCpu{host_program()}, call);
}

void scatter_add_host(const RowCall& call, torch_ops_stream, float*) {
  translated(need_kernels);
  ++host_calls;
  scatter(OnCpu{host_program()}, {call});
}

void apply_host(const ActivationCall& call, torch_ops_stream, float*) {
  translated(need_kernels);
  ++host_calls;
  apply(OnCpu{host_program()}, call);
}

void hello(int32_t) { translated(need_kernels); }

}  // namespace gpu
}  // namespace torch_ops

namespace {

using torch_ops::graph;
using torch_ops::host_calls;

int failures = 0;

#define EXPECT(condition)                                                             \
  do {                                                                                \
    if (!(condition)) {                                                               \
      std::printf("line %d: not so: %s (the last error: %s)\n", __LINE__, #condition, \
                  torch_ops_last_error());                                            \
      ++failures;                                                                     \
    }                                                                                 \
  } while (0)

// A gather of 4 entries on a device, of which entry 2 is `entry`, from a table of 10.
struct Call {
  explicit Call(int device = 0)
      : source(static_cast<float*>(fake_cuda::allocate(device, 40))),
        index(static_cast<int64_t*>(fake_cuda::allocate(device, 32))) {
    std::fill_n(index, 4, 1);
  }
  int run(int64_t entry, void* stream = nullptr, float* milliseconds = nullptr) {
    index[2] = entry;
    return torch_ops_gather(source, index, source, 10, 4, 1, TORCH_OPS_FLOAT32,
                            TORCH_OPS_INDEX_INT64, TORCH_OPS_DEVICE, stream, milliseconds);
  }
  float* source;
  int64_t* index;
};

int64_t last_bad_entry() {
  int64_t value = 0;
  torch_ops_last_index_error(nullptr, &value, nullptr);
  return value;
}

// Calls whose kernels run late, as those of a thread that ends without a wait do.
void threads_that_end() {
  Call call;
  std::vector<Call> bad_calls(400);
  const int before = fake_cuda::allocations;
  void* const streams[] = {&call, call.source};
  for (int n = 0; n < 400; ++n) {
    std::thread([&] { EXPECT(bad_calls[n].run(1000 + n, streams[0]) == 0); }).join();
    if (n % 2 == 0) cudaStreamSynchronize(static_cast<cudaStream_t>(streams[0]));
    std::thread([&] {
      EXPECT(call.run(3, streams[1]) == 0);
      EXPECT(torch_ops_check_errors(streams[1]) == 0);
      cudaStreamSynchronize(static_cast<cudaStream_t>(streams[0]));
      EXPECT(torch_ops_check_errors(streams[1]) == 0);
      EXPECT(call.run(20 + n, streams[1]) == 0);
      EXPECT(torch_ops_check_errors(streams[1]) == TORCH_OPS_INDEX_OUT_OF_RANGE);
      EXPECT(last_bad_entry() == 20 + n);
      EXPECT(torch_ops_check_errors(streams[1]) == 0);
    }).join();
  }
  // Each thread has two records of two allocations.
  EXPECT(fake_cuda::allocations - before < 4 * 200);
}

void graphs_that_outlive_their_thread() {
  Call captured, call;
  std::thread([&] {
    EXPECT(captured.run(3) == 0);  // once before, as docs/c_api.md says
    EXPECT(torch_ops_check_errors(nullptr) == 0);
    fake_cuda::capturing = true;
    EXPECT(captured.run(77) == 0);
    fake_cuda::capturing = false;
    EXPECT(torch_ops_check_errors(nullptr) == 0);
    graph();
    EXPECT(torch_ops_check_errors(nullptr) == TORCH_OPS_INDEX_OUT_OF_RANGE);
  }).join();
  for (int n = 0; n < 400; ++n) {
    std::thread([&] {
      EXPECT(call.run(3) == 0);
      graph();
      EXPECT(torch_ops_check_errors(nullptr) == 0);
      EXPECT(call.run(20) == 0);
      EXPECT(torch_ops_check_errors(nullptr) == TORCH_OPS_INDEX_OUT_OF_RANGE);
      EXPECT(last_bad_entry() == 20);
    }).join();
  }
}

void default_streams_of_two_devices() {
  Call call(1);
  EXPECT(call.run(42) == 0);
  EXPECT(torch_ops_check_errors(nullptr) == TORCH_OPS_INDEX_OUT_OF_RANGE);
  EXPECT(last_bad_entry() == 42);
  EXPECT(torch_ops_check_errors(nullptr) == 0);
  std::thread([&] {
    EXPECT(torch_ops_relu(call.source, call.source, 10, TORCH_OPS_FLOAT32, TORCH_OPS_DEVICE,
                          nullptr, nullptr) == 0);
    EXPECT(torch_ops_check_errors(nullptr) == 0);
    EXPECT(fake_cuda::pending() == 0);
  }).join();
}

// Calls that TORCH_OPS_HOST has a device compute where there is one. True where the results are
// right; `on_device` is how many of them it computed.
bool large_host_calls(int* on_device) {
  const int64_t size = int64_t{1} << 20;
  void* memory[4] = {};
  for (void*& each : memory) EXPECT(torch_ops_host_alloc(8 * size, &each) == 0);
  auto* source = static_cast<float*>(memory[0]);
  auto* index = static_cast<int64_t*>(memory[1]);
  auto* output = static_cast<float*>(memory[2]);
  auto* sums = static_cast<float*>(memory[3]);
  for (int64_t n = 0; n < size; ++n) {
    source[n] = static_cast<float>(n);
    index[n] = size - 1 - n;
  }
  host_calls = 0;
  EXPECT(torch_ops_gather(source, index, output, size, size, 1, TORCH_OPS_FLOAT32,
                          TORCH_OPS_INDEX_INT64, TORCH_OPS_HOST, nullptr, nullptr) == 0);
  bool right = output[5] == source[size - 6];
  EXPECT(torch_ops_scatter_add(source, index, sums, 1, size, size, 1, TORCH_OPS_FLOAT32,
                               TORCH_OPS_INDEX_INT64, TORCH_OPS_HOST, nullptr, nullptr, 0,
                               nullptr) == 0);
  right = right && std::memcmp(sums, output, 4 * size) == 0;
  EXPECT(torch_ops_relu(source, sums, size, TORCH_OPS_FLOAT32, TORCH_OPS_HOST, nullptr, nullptr) ==
         0);
  right = right && std::memcmp(sums, source, 4 * size) == 0;
  for (void* each : memory) EXPECT(torch_ops_host_free(each) == 0);
  *on_device = host_calls;
  return right;
}

// Demands a device: what is the status, and is the output as it was?
int demand_a_device() {
  const float source[2] = {1, 2};
  const int64_t index[2] = {1, 0};
  float output[2] = {-7, -7};
  const int status = torch_ops_gather(source, index, output, 2, 2, 1, TORCH_OPS_FLOAT32,
                                      TORCH_OPS_INDEX_INT64, TORCH_OPS_HOST_GPU, nullptr, nullptr);
  EXPECT(output[0] == (status == 0 ? 2 : -7));
  return status;
}

void devices_without_code() {
  fake_cuda::has_code[0] = false;
  int on_device = -1;
  EXPECT(large_host_calls(&on_device) && on_device == 0);
  EXPECT(demand_a_device() == TORCH_OPS_NO_DEVICE);
  EXPECT(std::strstr(torch_ops_last_error(), "has no kernels for device 0, of compute capability"));
  Call here, there(1);
  EXPECT(here.run(3) == TORCH_OPS_NO_DEVICE);
  EXPECT(torch_ops_relu(here.source, here.source, 10, TORCH_OPS_FLOAT32, TORCH_OPS_DEVICE, nullptr,
                        nullptr) == TORCH_OPS_NO_DEVICE);
  EXPECT(torch_ops_hello(1, TORCH_OPS_HOST_GPU) == TORCH_OPS_NO_DEVICE);
  EXPECT(torch_ops_hello(1, TORCH_OPS_HOST) == 0);
  EXPECT(there.run(3) == 0 && torch_ops_check_errors(nullptr) == 0);
  cudaSetDevice(1);
  EXPECT(large_host_calls(&on_device) && on_device == 3);
  EXPECT(demand_a_device() == 0);
}

// What `body` finds in a child of fork().
template <class Body>
void in_a_child(Body&& body) {
  const pid_t child = fork();
  if (child == 0) {
    failures = 0;
    body();
    std::exit(failures);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT(status == 0);
}

void children_of_fork() {
  int on_device = -1;
  in_a_child([&] {  // of a process that has not used CUDA
    EXPECT(torch_ops_device_count() == 2);
    EXPECT(large_host_calls(&on_device) && on_device == 3);
  });
  EXPECT(large_host_calls(&on_device) && on_device == 3);
  Call call;
  EXPECT(call.run(3) == 0 && torch_ops_check_errors(nullptr) == 0);
  void* pinned = nullptr;
  EXPECT(torch_ops_host_alloc(100, &pinned) == 0);
  in_a_child([&] {
    EXPECT(torch_ops_device_count() == 0);
    EXPECT(large_host_calls(&on_device) && on_device == 0);
    EXPECT(demand_a_device() == TORCH_OPS_NO_DEVICE);
    EXPECT(std::strstr(torch_ops_last_error(), "was forked from one that had used CUDA"));
    EXPECT(call.run(3) == TORCH_OPS_NO_DEVICE);
    EXPECT(torch_ops_check_errors(nullptr) == 0);
    EXPECT(torch_ops_hello(1, TORCH_OPS_HOST) == 0);
    EXPECT(torch_ops_host_free(pinned) == 0);
    in_a_child([&] { EXPECT(large_host_calls(&on_device) && on_device == 0); });
  });
  EXPECT(torch_ops_host_free(pinned) == 0);
  EXPECT(large_host_calls(&on_device) && on_device == 3);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "threads that end")
    threads_that_end();
  else if (what == "graphs")
    graphs_that_outlive_their_thread();
  else if (what == "two devices")
    default_streams_of_two_devices();
  else if (what == "no code")
    devices_without_code();
  else if (what == "fork")
    children_of_fork();
  else
    return 100;
  std::fflush(stdout);
  return std::min(failures, 99);
}
