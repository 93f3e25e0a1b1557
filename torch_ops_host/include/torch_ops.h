/* The kernels of torch_ops as a C library, libtorch_ops_c: gathers, sums and other reductions by an
 * index, activations, on data in host memory or on a CUDA device. C99, and C++. Needs neither torch
 * nor Python; without a GPU, or a driver, it computes on the CPU. docs/c_api.md has examples.
 *
 * Every function that can fail returns a status; torch_ops_last_error() then says more. None ends
 * the process or throws. If a call fails because of its arguments (everything up to and
 * including TORCH_OPS_NO_DEVICE) nothing was written. After TORCH_OPS_INDEX_OUT_OF_RANGE, or an
 * error below it in the list, the output's contents are unspecified.
 *
 * All functions may be called from any number of threads at once. Arrays are contiguous, in
 * row-major order; sizes are in elements. If an array is empty, its pointer may be NULL. Outputs
 * must not overlap inputs, but the activations may overwrite their input.
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

/* The version of this header. The library's own, torch_ops_api_version(), is the number of its
 * soname: it changes only when programs that were built with another must be built again. */
#define TORCH_OPS_API_VERSION 1

/* ---- Types: integers, so that every language with an FFI can pass them ---------------------- */

typedef int32_t torch_ops_status;
enum {
  TORCH_OPS_SUCCESS = 0,
  TORCH_OPS_NULL_POINTER = 1,
  TORCH_OPS_NEGATIVE_SIZE = 2,
  TORCH_OPS_SIZE_OVERFLOW = 3,     /* 2^63 bytes or more; for rows, counted as 16 per element;
                                      at points, a table of 2^50 places or elements */
  TORCH_OPS_UNKNOWN_DTYPE = 4,     /* not one of the list below */
  TORCH_OPS_UNSUPPORTED_DTYPE = 5, /* relu and sigmoid are for floating types */
  TORCH_OPS_UNKNOWN_INDEX_TYPE = 6,
  TORCH_OPS_UNKNOWN_MEMORY = 7,
  TORCH_OPS_MISALIGNED_POINTER = 8, /* not a multiple of the element's size */
  TORCH_OPS_WRONG_MEMORY = 9,       /* TORCH_OPS_DEVICE, but the device cannot access it */
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

/* Where the arrays of a call are, and where it is computed. */
typedef int32_t torch_ops_memory;
enum {
  /* In host memory. For gather, batch_gather, scatter_add and the activations the library chooses
   * what is fastest, by sizes and by whether memory is pinned: the CPU's kernels, a device kernel
   * that reads pinned memory in place, or a device to which the data goes in pieces. The CPU
   * computes all other functions. Waits for the result. */
  TORCH_OPS_HOST = 0,
  /* On one CUDA device, or in memory that it can access. Returns when the work is queued on
   * `stream`, unless the time is requested. An index out of range gives zeros (reductions and puts
   * leave it out) and is reported by torch_ops_check_errors, or by this call if the time is
   * requested. */
  TORCH_OPS_DEVICE = 1,
  /* In host memory; computed by the CPU. */
  TORCH_OPS_HOST_CPU = 2,
  /* In host memory; computed by the current CUDA device: in pieces by the functions that
   * TORCH_OPS_HOST chooses for. The others copy all arrays to the device, and fail with
   * TORCH_OPS_OUT_OF_MEMORY if these do not fit. */
  TORCH_OPS_HOST_GPU = 3
};

/* What an index entry means that names no row of its axis, which has `size` rows. */
typedef int32_t torch_ops_mode;
enum {
  TORCH_OPS_MODE_RAISE = 0,     /* TORCH_OPS_INDEX_OUT_OF_RANGE: entries are in [0, size) */
  TORCH_OPS_MODE_WRAP = 1,      /* it names the row of its value modulo the size */
  TORCH_OPS_MODE_CLIP = 2,      /* it names the nearest row */
  TORCH_OPS_MODE_FILL = 3,      /* gathers write `fill`, others leave it out; outside
                                   [-size, size), where -1 is the last row */
  TORCH_OPS_MODE_UNCHECKED = 4, /* the caller promises that there is none */
  TORCH_OPS_MODE_FROM_END = 5   /* as RAISE, but entries are in [-size, size): -1 is the last row */
};

/* How the values that an index sends to one row are reduced, and what a row without values gets. */
typedef int32_t torch_ops_reduce;
enum {
  TORCH_OPS_REDUCE_SUM = 0,  /* without values 0 */
  TORCH_OPS_REDUCE_MEAN = 1, /* without values 0; integers are summed in their type, rounded down */
  TORCH_OPS_REDUCE_PROD = 2, /* without values 1 */
  TORCH_OPS_REDUCE_AMAX = 3, /* without values 0; NaN is larger than any number */
  TORCH_OPS_REDUCE_AMIN = 4  /* without values 0; NaN is smaller than any number */
};

/* Flags, which may be added up. */
enum {
  /* The same bits on every run. On a device sums and means of floats may take longer with it; all
   * other results, and all results of the CPU, have the same bits on every run without it. */
  TORCH_OPS_DETERMINISTIC = 1,
  /* Sums are added to the values in the result; each of its elements is rounded once. */
  TORCH_OPS_ONTO_RESULT = 2
};

/* A cudaStream_t; NULL is the default stream. Host-pointer calls use their own streams, which
 * start when the work queued on this one is done. */
typedef void* torch_ops_stream;

/* ---- Statuses and versions ------------------------------------------------------------------ */

/* A few words, for an unknown status too. Never NULL. */
TORCH_OPS_API const char* torch_ops_status_string(torch_ops_status status);

/* What was wrong with the last call of this thread that failed: function, argument, its value and
 * the allowed values. "" before there is one. Valid until the thread's next call of the library. */
TORCH_OPS_API const char* torch_ops_last_error(void);

/* For the last TORCH_OPS_INDEX_OUT_OF_RANGE of this thread: the entry's position in the index, in
 * row-major order, its value, and the bound: entries must be in [0, bound), or with
 * TORCH_OPS_MODE_FROM_END in [-bound, bound). For an axis without rows the value is 0.
 * torch_ops_last_error says which coordinate of a point it is. Pointers may be NULL. */
TORCH_OPS_API torch_ops_status torch_ops_last_index_error(int64_t* position, int64_t* value,
                                                          int64_t* bound);

/* Waits for `stream`, and returns TORCH_OPS_INDEX_OUT_OF_RANGE if a TORCH_OPS_DEVICE call of this
 * thread met such an entry since this was last called, or another error of the stream. NULL means
 * the default stream of each device that this thread's calls used, and of the current one. */
TORCH_OPS_API torch_ops_status torch_ops_check_errors(torch_ops_stream stream);

TORCH_OPS_API int32_t torch_ops_api_version(void);
TORCH_OPS_API const char* torch_ops_version(void);
/* How the library was built, as "name=value" separated by "; ": cuda (its version, or "none"),
 * archs and compiler. */
TORCH_OPS_API const char* torch_ops_build_config(void);

/* How many CUDA devices can be used: 0 without a GPU, a driver, or CUDA kernels, and in a child of
 * fork() whose parent has used CUDA. Does not check whether the library was built for them. */
TORCH_OPS_API int32_t torch_ops_device_count(void);

/* ---- Settings of the whole process ---------------------------------------------------------- */

/* Threads of CPU kernels; 0 is the default: TORCH_OPS_NUM_THREADS or OMP_NUM_THREADS in the
 * environment, else one for each CPU that the process may use. */
TORCH_OPS_API torch_ops_status torch_ops_set_num_threads(int32_t threads);
TORCH_OPS_API int32_t torch_ops_get_num_threads(void);

/* The most bytes of a device that a host-pointer call may use; 0, the default, is what is free
 * there. Data that does not fit is processed in pieces. */
TORCH_OPS_API torch_ops_status torch_ops_set_device_memory_limit(int64_t bytes);

/* Host memory that is pinned if there is a device, else plain memory. */
TORCH_OPS_API torch_ops_status torch_ops_host_alloc(int64_t bytes, void** memory);
TORCH_OPS_API torch_ops_status torch_ops_host_free(void* memory);

/* ---- Operations ----------------------------------------------------------------------------- */

/* Each has a `milliseconds` that may be NULL. Otherwise it gets the kernels' time, by CUDA
 * events, or on the CPU by a monotonic clock, and the call waits for its result. For a host-pointer
 * call on a device it is the sum over its kernels, without the copies.
 *
 * Scratch memory of a call on a device comes from the stream's pool (cudaMallocAsync).
 */

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
 * same bits on every run, on a device in no fixed order (torch_ops_scatter has a flag for one).
 *
 * `workspace`: with TORCH_OPS_DEVICE, memory of the device, of at least the bytes that
 * torch_ops_scatter_add_workspace gives, aligned to 16. The call's scratch memory is taken
 * from it as far as it fits. The rest, or with NULL all of it, comes from the stream's pool
 * (cudaMallocAsync): the algorithm, which depends on the sizes, may need more. */
TORCH_OPS_API torch_ops_status torch_ops_scatter_add(
    const void* values, const void* index, void* result, int64_t batch, int64_t axis_size,
    int64_t entries, int64_t inner, torch_ops_dtype dtype, torch_ops_index_type index_type,
    torch_ops_memory memory, torch_ops_stream stream, void* workspace, int64_t workspace_bytes,
    float* milliseconds);

/* What sums by atomics need: 0 unless `memory` is TORCH_OPS_DEVICE and the dtype has 8 or 16 bits.
 */
TORCH_OPS_API torch_ops_status torch_ops_scatter_add_workspace(int64_t batch, int64_t axis_size,
                                                               int64_t inner, torch_ops_dtype dtype,
                                                               torch_ops_memory memory,
                                                               int64_t* bytes);

/* ---- By an index, with modes ---- */

/* Like torch_ops_batch_gather. `fill`: an element in host memory for TORCH_OPS_MODE_FILL; NULL: 0.
 */
TORCH_OPS_API torch_ops_status
torch_ops_gather_rows(const void* source, const void* index, void* output, int64_t batch,
                      int64_t axis_size, int64_t entries, int64_t inner, torch_ops_dtype dtype,
                      torch_ops_index_type index_type, torch_ops_mode mode, const void* fill,
                      torch_ops_memory memory, torch_ops_stream stream, float* milliseconds);

/* result[b, m, d] = values[b, n, d] reduced over the n with index[b, n] == m. Arrays as for
 * torch_ops_scatter_add, all of the result written, 16-bit floats computed in float32 and rounded
 * once. AMAX and AMIN are not for uint16, uint32 and uint64. `flags`: those above;
 * TORCH_OPS_ONTO_RESULT is only for sums. */
TORCH_OPS_API torch_ops_status torch_ops_scatter(
    const void* values, const void* index, void* result, int64_t batch, int64_t axis_size,
    int64_t entries, int64_t inner, torch_ops_dtype dtype, torch_ops_index_type index_type,
    torch_ops_reduce reduce, torch_ops_mode mode, int32_t flags, torch_ops_memory memory,
    torch_ops_stream stream, float* milliseconds);

/* positions[b, m, d] = the first n of [0, entries) that has the largest values[b, n, d] for
 * TORCH_OPS_REDUCE_AMAX, or the smallest for AMIN; `entries` if there is none. */
TORCH_OPS_API torch_ops_status
torch_ops_scatter_arg(const void* values, const void* index, int64_t* positions, int64_t batch,
                      int64_t axis_size, int64_t entries, int64_t inner, torch_ops_dtype dtype,
                      torch_ops_index_type index_type, torch_ops_reduce reduce, torch_ops_mode mode,
                      torch_ops_memory memory, torch_ops_stream stream, float* milliseconds);

/* ---- With an entry for each element ---- */

/* output[o, n, i] = source[o, index[o, n, i], i]: source [outer, axis_size, inner], index and
 * output [outer, entries, inner]. `fill` as above. */
TORCH_OPS_API torch_ops_status
torch_ops_gather_elements(const void* source, const void* index, void* output, int64_t outer,
                          int64_t axis_size, int64_t entries, int64_t inner, torch_ops_dtype dtype,
                          torch_ops_index_type index_type, torch_ops_mode mode, const void* fill,
                          torch_ops_memory memory, torch_ops_stream stream, float* milliseconds);

/* result[o, m, i] = the sum of values[o, n, i] over the n with index[o, n, i] == m: values and
 * index [outer, entries, inner], result [outer, axis_size, inner], all of it written. `flags`:
 * TORCH_OPS_DETERMINISTIC, or 0. */
TORCH_OPS_API torch_ops_status torch_ops_scatter_elements_add(
    const void* values, const void* index, void* result, int64_t outer, int64_t axis_size,
    int64_t entries, int64_t inner, torch_ops_dtype dtype, torch_ops_index_type index_type,
    torch_ops_mode mode, int32_t flags, torch_ops_memory memory, torch_ops_stream stream,
    float* milliseconds);

/* ---- At points ---- */

/* A point has a coordinate for each of the first `count` axes of a table, 1 to 16: coordinates[j],
 * [batch, points], is for the axis with sizes[j]. The arrays `coordinates` and `sizes` themselves
 * are in host memory. The product of the sizes, and that times inner, must be below 2^50. A
 * position in an error counts the points.
 *
 * output[b, p, d] = source[b, c0[b, p], c1[b, p], ..., d]: source [batch, sizes..., inner], output
 * [batch, points, inner]. `fill` as above. */
TORCH_OPS_API torch_ops_status torch_ops_gather_points(
    const void* source, const void* const* coordinates, const int64_t* sizes, int32_t count,
    void* output, int64_t batch, int64_t points, int64_t inner, torch_ops_dtype dtype,
    torch_ops_index_type index_type, torch_ops_mode mode, const void* fill, torch_ops_memory memory,
    torch_ops_stream stream, float* milliseconds);

/* table[b, c0[b, p], c1[b, p], ..., d] = values[b, p, d]. If several points are at one place, any
 * of them is written, or some elements of each. */
TORCH_OPS_API torch_ops_status torch_ops_put_points(
    void* table, const void* const* coordinates, const int64_t* sizes, int32_t count,
    const void* values, int64_t batch, int64_t points, int64_t inner, torch_ops_dtype dtype,
    torch_ops_index_type index_type, torch_ops_mode mode, torch_ops_memory memory,
    torch_ops_stream stream, float* milliseconds);

/* places[p] = the number of each point's place in an array of the sizes, in row-major order: an
 * index for the functions above, for example to add up at points. With TORCH_OPS_MODE_FILL a point
 * that names no place gets the product of the sizes, which torch_ops_scatter leaves out in that
 * mode. */
TORCH_OPS_API torch_ops_status torch_ops_ravel_points(const void* const* coordinates,
                                                      const int64_t* sizes, int32_t count,
                                                      int64_t* places, int64_t points,
                                                      torch_ops_index_type index_type,
                                                      torch_ops_mode mode, torch_ops_memory memory,
                                                      torch_ops_stream stream, float* milliseconds);

/* ---- Plans ---- */

/* A plan of an index that stays the same over many calls: checked and, on a device, sorted once.
 * It keeps a copy of the index. Any number of threads may use it at once. */
typedef struct torch_ops_plan torch_ops_plan;

/* For an index [batch, entries] of an axis, whose entries are in [0, axis_size). `memory` says
 * where the index is, and so where the arrays of all later calls are and where these are computed.
 * On a device it waits for the work on `stream`, which must not capture a CUDA graph. Entries are
 * not sorted for the CPU. *plan is NULL if it fails. */
TORCH_OPS_API torch_ops_status torch_ops_plan_create(const void* index, int64_t batch,
                                                     int64_t axis_size, int64_t entries,
                                                     torch_ops_index_type index_type,
                                                     torch_ops_memory memory,
                                                     torch_ops_stream stream,
                                                     torch_ops_plan** plan);

/* On a device waits for the device, and must not be called while a CUDA graph is captured. NULL is
 * allowed. */
TORCH_OPS_API torch_ops_status torch_ops_plan_destroy(torch_ops_plan* plan);

/* Like torch_ops_batch_gather by the plan's index. */
TORCH_OPS_API torch_ops_status torch_ops_plan_gather(const torch_ops_plan* plan, const void* source,
                                                     void* output, int64_t inner,
                                                     torch_ops_dtype dtype, torch_ops_stream stream,
                                                     float* milliseconds);

/* Like torch_ops_scatter by the plan's index, always with TORCH_OPS_DETERMINISTIC. */
TORCH_OPS_API torch_ops_status torch_ops_plan_scatter(const torch_ops_plan* plan,
                                                      const void* values, void* result,
                                                      int64_t inner, torch_ops_dtype dtype,
                                                      torch_ops_reduce reduce, int32_t flags,
                                                      torch_ops_stream stream, float* milliseconds);

/* ---- Activations ---- */

/* output = max(input, 0); NaN stays NaN. `size` elements of a floating type. */
TORCH_OPS_API torch_ops_status torch_ops_relu(const void* input, void* output, int64_t size,
                                              torch_ops_dtype dtype, torch_ops_memory memory,
                                              torch_ops_stream stream, float* milliseconds);

/* grad_input = grad_output where output > 0 or NaN, else 0. `output` is relu's output or input. */
TORCH_OPS_API torch_ops_status torch_ops_relu_backward(
    const void* grad_output, const void* output, void* grad_input, int64_t size,
    torch_ops_dtype dtype, torch_ops_memory memory, torch_ops_stream stream, float* milliseconds);

/* output = input where input > 0, else slope * input. */
TORCH_OPS_API torch_ops_status torch_ops_leaky_relu(const void* input, void* output, int64_t size,
                                                    double slope, torch_ops_dtype dtype,
                                                    torch_ops_memory memory,
                                                    torch_ops_stream stream, float* milliseconds);

/* grad_input = grad_output where input > 0, else slope * grad_output. */
TORCH_OPS_API torch_ops_status torch_ops_leaky_relu_backward(
    const void* grad_output, const void* input, void* grad_input, int64_t size, double slope,
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
 * TORCH_OPS_HOST_GPU, of the host for TORCH_OPS_HOST_CPU; TORCH_OPS_HOST uses a device if there is
 * one. At most 1024. */
TORCH_OPS_API torch_ops_status torch_ops_hello(int32_t threads, torch_ops_memory memory);

#ifdef __cplusplus
}
#endif

#endif /* TORCH_OPS_H */
