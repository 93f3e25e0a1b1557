/* The kernels of torch_ops as a C library, libtorch_ops_c: gathers, their gradient, activations, on
 * data in host memory or on a CUDA device. C99, and C++. Needs neither torch nor Python; without a
 * GPU, or a driver, it computes on the CPU. docs/c_api.md has examples.
 *
 * Every function that can fail returns a status; torch_ops_last_error() then says more. None ends
 * the process or throws. Where a call fails because of its arguments (everything up to and
 * including TORCH_OPS_NO_DEVICE) nothing was written. After TORCH_OPS_INDEX_OUT_OF_RANGE, or an
 * error below it in the list, the output's contents are unspecified.
 *
 * All functions may be called from any number of threads at once. Arrays are contiguous, in
 * row-major order; sizes are in elements. Where an array is empty its pointer may be NULL. Outputs
 * must not overlap inputs, but relu and sigmoid may overwrite their input.
 */
#ifndef TORCH_OPS_H
#define TORCH_OPS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TORCH_OPS_API __attribute__((visibility("default")))
#else
#define TORCH_OPS_API
#endif

/* Of this header. The library's own, torch_ops_api_version(), is the number of its soname: it
 * changes only when programs that were built with another must be built again. */
#define TORCH_OPS_API_VERSION 1

/* ---- Types: integers, so that every language with an FFI can pass them ---------------------- */

typedef int32_t torch_ops_status;
enum {
  TORCH_OPS_SUCCESS = 0,
  TORCH_OPS_NULL_POINTER = 1,
  TORCH_OPS_NEGATIVE_SIZE = 2,
  TORCH_OPS_SIZE_OVERFLOW = 3,     /* 2^63 bytes or more; of rows, counted at 16 an element */
  TORCH_OPS_UNKNOWN_DTYPE = 4,     /* not one of the list below */
  TORCH_OPS_UNSUPPORTED_DTYPE = 5, /* relu and sigmoid are for floating types */
  TORCH_OPS_UNKNOWN_INDEX_TYPE = 6,
  TORCH_OPS_UNKNOWN_MEMORY = 7,
  TORCH_OPS_MISALIGNED_POINTER = 8, /* to no multiple of the element's size */
  TORCH_OPS_WRONG_MEMORY = 9,       /* TORCH_OPS_DEVICE, but the device cannot reach it */
  TORCH_OPS_SMALL_WORKSPACE = 10,
  TORCH_OPS_INVALID_ARGUMENT = 11, /* any other */
  TORCH_OPS_NO_DEVICE = 12,        /* a device was demanded: there is none, or no kernels for it */
  TORCH_OPS_INDEX_OUT_OF_RANGE = 13, /* torch_ops_last_index_error() has the numbers */
  TORCH_OPS_OUT_OF_MEMORY = 14,      /* on the host or on the device */
  TORCH_OPS_CUDA_ERROR = 15,         /* the text names the failing call, its file and line */
  TORCH_OPS_INTERNAL_ERROR = 16
};

typedef int32_t torch_ops_dtype;
enum {
  TORCH_OPS_FLOAT16 = 0, /* IEEE binary16 */
  TORCH_OPS_BFLOAT16 = 1,
  TORCH_OPS_FLOAT32 = 2,
  TORCH_OPS_FLOAT64 = 3,
  TORCH_OPS_INT8 = 4,
  TORCH_OPS_UINT8 = 5,
  TORCH_OPS_INT16 = 6,
  TORCH_OPS_UINT16 = 7,
  TORCH_OPS_INT32 = 8,
  TORCH_OPS_UINT32 = 9,
  TORCH_OPS_INT64 = 10,
  TORCH_OPS_UINT64 = 11
};

typedef int32_t torch_ops_index_type;
enum { TORCH_OPS_INDEX_INT32 = 0, TORCH_OPS_INDEX_INT64 = 1 };

/* Where the arrays of a call are, and who computes. */
typedef int32_t torch_ops_memory;
enum {
  /* In host memory. The library chooses by sizes, and whether memory is pinned, what is fastest:
   * the CPU's kernels, a device kernel that reads pinned memory in place, or a device to which the
   * data goes in pieces. Waits for the result. */
  TORCH_OPS_HOST = 0,
  /* On one CUDA device, or in memory that it can reach. Returns when the work is queued on
   * `stream`, unless the time is asked for. An index out of range gives zeros (of scatter_add: is
   * left out) and is told by torch_ops_check_errors, or by this call when the time is asked for. */
  TORCH_OPS_DEVICE = 1,
  /* In host memory; computed by the CPU. */
  TORCH_OPS_HOST_CPU = 2,
  /* In host memory; computed by the current CUDA device. */
  TORCH_OPS_HOST_GPU = 3
};

/* A cudaStream_t; NULL is the default stream. Host-pointer calls use streams of their own, which
 * start when what is queued on this one is done. */
typedef void* torch_ops_stream;

/* ---- Statuses and versions ------------------------------------------------------------------ */

/* A few words, for an unknown status too. Never NULL. */
TORCH_OPS_API const char* torch_ops_status_string(torch_ops_status status);

/* What was wrong with the last call of this thread that failed: function, argument, what it was and
 * what it may be. "" before there is one. Valid until the thread's next call of this library. */
TORCH_OPS_API const char* torch_ops_last_error(void);

/* Of the last TORCH_OPS_INDEX_OUT_OF_RANGE of this thread: the entry's position in the index, in
 * row-major order, its value, and the bound: entries must be in [0, bound). Pointers may be NULL.
 */
TORCH_OPS_API torch_ops_status torch_ops_last_index_error(int64_t* position, int64_t* value,
                                                          int64_t* bound);

/* Waits for `stream`, and returns TORCH_OPS_INDEX_OUT_OF_RANGE if a TORCH_OPS_DEVICE call of this
 * thread met such an entry since this was last called, or what else went wrong on the stream. NULL
 * is the default stream of each device that this thread's calls went to, and of the current one. */
TORCH_OPS_API torch_ops_status torch_ops_check_errors(torch_ops_stream stream);

TORCH_OPS_API int32_t torch_ops_api_version(void);
TORCH_OPS_API const char* torch_ops_version(void);
/* How the library was built, as "name=value" separated by "; ": cuda (its version, or "none"),
 * archs and compiler. */
TORCH_OPS_API const char* torch_ops_build_config(void);

/* How many CUDA devices can be used: 0 without a GPU, a driver, or CUDA kernels, and in a child of
 * fork() whose parent has used CUDA. Not asked: whether the library was built for these devices. */
TORCH_OPS_API int32_t torch_ops_device_count(void);

/* ---- Settings, of the whole process --------------------------------------------------------- */

/* Threads of CPU kernels; 0 is the default: TORCH_OPS_NUM_THREADS or OMP_NUM_THREADS of the
 * environment, else one for each CPU that the process may use. */
TORCH_OPS_API torch_ops_status torch_ops_set_num_threads(int32_t threads);
TORCH_OPS_API int32_t torch_ops_get_num_threads(void);

/* How many bytes of a device a host-pointer call may take at most; 0, the default, is what is free
 * there. What does not fit is processed in pieces. */
TORCH_OPS_API torch_ops_status torch_ops_set_device_memory_limit(int64_t bytes);

/* Host memory that is pinned where there is a device, else plain memory. */
TORCH_OPS_API torch_ops_status torch_ops_host_alloc(int64_t bytes, void** memory);
TORCH_OPS_API torch_ops_status torch_ops_host_free(void* memory);

/* ---- Operations ----------------------------------------------------------------------------- */

/* Each takes a `milliseconds` that may be NULL. Else it gets how long the kernels took, by CUDA
 * events, or on the CPU by a monotonic clock, and the call waits for its result. Of a host-pointer
 * call on a device it is the sum over its kernels, without the copies. */

/* output[n, d] = source[index[n], d]: source [axis_size, inner], index [entries],
 * output [entries, inner]. */
TORCH_OPS_API torch_ops_status torch_ops_gather(const void* source, const void* index, void* output,
                                                int64_t axis_size, int64_t entries, int64_t inner,
                                                torch_ops_dtype dtype,
                                                torch_ops_index_type index_type,
                                                torch_ops_memory memory, torch_ops_stream stream,
                                                float* milliseconds);

/* output[b, n, d] = source[b, index[b, n], d]: source [batch, axis_size, inner],
 * index [batch, entries], output [batch, entries, inner]. */
TORCH_OPS_API torch_ops_status torch_ops_batch_gather(
    const void* source, const void* index, void* output, int64_t batch, int64_t axis_size,
    int64_t entries, int64_t inner, torch_ops_dtype dtype, torch_ops_index_type index_type,
    torch_ops_memory memory, torch_ops_stream stream, float* milliseconds);

/* result[b, m, d] = the sum of values[b, n, d] over the n with index[b, n] == m:
 * values [batch, entries, inner], index [batch, entries], result [batch, axis_size, inner], all of
 * it written. 16-bit floats are summed in float32 and rounded once; integers wrap. On the CPU the
 * same bits on every run, on a device in no given order.
 *
 * `workspace`: on a device, memory of the bytes that torch_ops_scatter_add_workspace gives, aligned
 * to 16; NULL: the call allocates from the stream's pool. */
TORCH_OPS_API torch_ops_status torch_ops_scatter_add(
    const void* values, const void* index, void* result, int64_t batch, int64_t axis_size,
    int64_t entries, int64_t inner, torch_ops_dtype dtype, torch_ops_index_type index_type,
    torch_ops_memory memory, torch_ops_stream stream, void* workspace, int64_t workspace_bytes,
    float* milliseconds);

/* 0 unless `memory` is TORCH_OPS_DEVICE and the dtype has 8 or 16 bits. */
TORCH_OPS_API torch_ops_status torch_ops_scatter_add_workspace(int64_t batch, int64_t axis_size,
                                                               int64_t inner, torch_ops_dtype dtype,
                                                               torch_ops_memory memory,
                                                               int64_t* bytes);

/* output = max(input, 0); NaN stays NaN. `size` elements of a floating type. */
TORCH_OPS_API torch_ops_status torch_ops_relu(const void* input, void* output, int64_t size,
                                              torch_ops_dtype dtype, torch_ops_memory memory,
                                              torch_ops_stream stream, float* milliseconds);

/* grad_input = grad_output where output > 0 or NaN, else 0. `output` is relu's output or input. */
TORCH_OPS_API torch_ops_status torch_ops_relu_backward(
    const void* grad_output, const void* output, void* grad_input, int64_t size,
    torch_ops_dtype dtype, torch_ops_memory memory, torch_ops_stream stream, float* milliseconds);

/* output = 1 / (1 + exp(-input)). */
TORCH_OPS_API torch_ops_status torch_ops_sigmoid(const void* input, void* output, int64_t size,
                                                 torch_ops_dtype dtype, torch_ops_memory memory,
                                                 torch_ops_stream stream, float* milliseconds);

/* grad_input = grad_output * output * (1 - output). `output` is sigmoid's output. */
TORCH_OPS_API torch_ops_status torch_ops_sigmoid_backward(
    const void* grad_output, const void* output, void* grad_input, int64_t size,
    torch_ops_dtype dtype, torch_ops_memory memory, torch_ops_stream stream, float* milliseconds);

/* ---- Plain forms, for float and int in host memory ------------------------------------------ */

/* res[n] = source[index[n]] for N entries and M source elements. Returns the kernels' milliseconds,
 * or a negative number, -status, on error. */
TORCH_OPS_API float torch_ops_gather_host(const float* source, const int* index, float* res, int N,
                                          int M);

/* The same for B batches: source [B, M], index [B, N], res [B, N]. */
TORCH_OPS_API float torch_ops_batch_gather_host(const float* source, const int* index, float* res,
                                                int N, int M, int B);

/* ---- hello ---------------------------------------------------------------------------------- */

/* `threads` threads print a line each to stdout: those of a kernel for TORCH_OPS_DEVICE and
 * TORCH_OPS_HOST_GPU, of the host for TORCH_OPS_HOST_CPU; TORCH_OPS_HOST takes a device if there is
 * one. At most 1024. */
TORCH_OPS_API torch_ops_status torch_ops_hello(int32_t threads, torch_ops_memory memory);

#ifdef __cplusplus
}
#endif

#endif /* TORCH_OPS_H */
