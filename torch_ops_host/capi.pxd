# The C library for Cython: `from torch_ops_host cimport capi`. Compile with
# torch_ops_host.get_include(), link with torch_ops_host.get_library_dir(); docs/c_api.md shows how.
from libc.stdint cimport int32_t, int64_t

cdef extern from "torch_ops.h" nogil:
    int TORCH_OPS_API_VERSION

    ctypedef int32_t torch_ops_status
    torch_ops_status TORCH_OPS_SUCCESS
    torch_ops_status TORCH_OPS_NULL_POINTER
    torch_ops_status TORCH_OPS_NEGATIVE_SIZE
    torch_ops_status TORCH_OPS_SIZE_OVERFLOW
    torch_ops_status TORCH_OPS_UNKNOWN_DTYPE
    torch_ops_status TORCH_OPS_UNSUPPORTED_DTYPE
    torch_ops_status TORCH_OPS_UNKNOWN_INDEX_TYPE
    torch_ops_status TORCH_OPS_UNKNOWN_MEMORY
    torch_ops_status TORCH_OPS_MISALIGNED_POINTER
    torch_ops_status TORCH_OPS_WRONG_MEMORY
    torch_ops_status TORCH_OPS_SMALL_WORKSPACE
    torch_ops_status TORCH_OPS_INVALID_ARGUMENT
    torch_ops_status TORCH_OPS_NO_DEVICE
    torch_ops_status TORCH_OPS_INDEX_OUT_OF_RANGE
    torch_ops_status TORCH_OPS_OUT_OF_MEMORY
    torch_ops_status TORCH_OPS_CUDA_ERROR
    torch_ops_status TORCH_OPS_INTERNAL_ERROR

    ctypedef int32_t torch_ops_dtype
    torch_ops_dtype TORCH_OPS_FLOAT16
    torch_ops_dtype TORCH_OPS_BFLOAT16
    torch_ops_dtype TORCH_OPS_FLOAT32
    torch_ops_dtype TORCH_OPS_FLOAT64
    torch_ops_dtype TORCH_OPS_INT8
    torch_ops_dtype TORCH_OPS_UINT8
    torch_ops_dtype TORCH_OPS_INT16
    torch_ops_dtype TORCH_OPS_UINT16
    torch_ops_dtype TORCH_OPS_INT32
    torch_ops_dtype TORCH_OPS_UINT32
    torch_ops_dtype TORCH_OPS_INT64
    torch_ops_dtype TORCH_OPS_UINT64

    ctypedef int32_t torch_ops_index_type
    torch_ops_index_type TORCH_OPS_INDEX_INT32
    torch_ops_index_type TORCH_OPS_INDEX_INT64

    ctypedef int32_t torch_ops_memory
    torch_ops_memory TORCH_OPS_HOST
    torch_ops_memory TORCH_OPS_DEVICE
    torch_ops_memory TORCH_OPS_HOST_CPU
    torch_ops_memory TORCH_OPS_HOST_GPU

    ctypedef int32_t torch_ops_mode
    torch_ops_mode TORCH_OPS_MODE_RAISE
    torch_ops_mode TORCH_OPS_MODE_WRAP
    torch_ops_mode TORCH_OPS_MODE_CLIP
    torch_ops_mode TORCH_OPS_MODE_FILL
    torch_ops_mode TORCH_OPS_MODE_UNCHECKED
    torch_ops_mode TORCH_OPS_MODE_FROM_END

    ctypedef int32_t torch_ops_reduce
    torch_ops_reduce TORCH_OPS_REDUCE_SUM
    torch_ops_reduce TORCH_OPS_REDUCE_MEAN
    torch_ops_reduce TORCH_OPS_REDUCE_PROD
    torch_ops_reduce TORCH_OPS_REDUCE_AMAX
    torch_ops_reduce TORCH_OPS_REDUCE_AMIN

    int32_t TORCH_OPS_DETERMINISTIC
    int32_t TORCH_OPS_ONTO_RESULT

    ctypedef void* torch_ops_stream

    ctypedef struct torch_ops_plan:
        pass

    const char* torch_ops_status_string(torch_ops_status status)
    const char* torch_ops_last_error()
    torch_ops_status torch_ops_last_index_error(int64_t* position, int64_t* value, int64_t* bound)
    torch_ops_status torch_ops_check_errors(torch_ops_stream stream)
    int32_t torch_ops_api_version()
    const char* torch_ops_version()
    const char* torch_ops_build_config()
    int32_t torch_ops_device_count()
    torch_ops_status torch_ops_set_num_threads(int32_t threads)
    int32_t torch_ops_get_num_threads()
    torch_ops_status torch_ops_set_device_memory_limit(int64_t bytes)
    torch_ops_status torch_ops_host_alloc(int64_t bytes, void** memory)
    torch_ops_status torch_ops_host_free(void* memory)

    torch_ops_status torch_ops_gather(
        const void* source, const void* index, void* output, int64_t axis_size, int64_t entries,
        int64_t inner, torch_ops_dtype dtype, torch_ops_index_type index_type,
        torch_ops_memory memory, torch_ops_stream stream, float* milliseconds)
    torch_ops_status torch_ops_batch_gather(
        const void* source, const void* index, void* output, int64_t batch, int64_t axis_size,
        int64_t entries, int64_t inner, torch_ops_dtype dtype, torch_ops_index_type index_type,
        torch_ops_memory memory, torch_ops_stream stream, float* milliseconds)
    torch_ops_status torch_ops_scatter_add(
        const void* values, const void* index, void* result, int64_t batch, int64_t axis_size,
        int64_t entries, int64_t inner, torch_ops_dtype dtype, torch_ops_index_type index_type,
        torch_ops_memory memory, torch_ops_stream stream, void* workspace, int64_t workspace_bytes,
        float* milliseconds)
    torch_ops_status torch_ops_scatter_add_workspace(
        int64_t batch, int64_t axis_size, int64_t inner, torch_ops_dtype dtype,
        torch_ops_memory memory, int64_t* bytes)
    torch_ops_status torch_ops_gather_rows(
        const void* source, const void* index, void* output, int64_t batch, int64_t axis_size,
        int64_t entries, int64_t inner, torch_ops_dtype dtype, torch_ops_index_type index_type,
        torch_ops_mode mode, const void* fill, torch_ops_memory memory, torch_ops_stream stream,
        float* milliseconds)
    torch_ops_status torch_ops_scatter(
        const void* values, const void* index, void* result, int64_t batch, int64_t axis_size,
        int64_t entries, int64_t inner, torch_ops_dtype dtype, torch_ops_index_type index_type,
        torch_ops_reduce reduce, torch_ops_mode mode, int32_t flags, torch_ops_memory memory,
        torch_ops_stream stream, float* milliseconds)
    torch_ops_status torch_ops_scatter_arg(
        const void* values, const void* index, int64_t* positions, int64_t batch, int64_t
        axis_size, int64_t entries, int64_t inner, torch_ops_dtype dtype, torch_ops_index_type
        index_type, torch_ops_reduce reduce, torch_ops_mode mode, torch_ops_memory memory,
        torch_ops_stream stream, float* milliseconds)
    torch_ops_status torch_ops_gather_elements(
        const void* source, const void* index, void* output, int64_t outer, int64_t axis_size,
        int64_t entries, int64_t inner, torch_ops_dtype dtype, torch_ops_index_type index_type,
        torch_ops_mode mode, const void* fill, torch_ops_memory memory, torch_ops_stream stream,
        float* milliseconds)
    torch_ops_status torch_ops_scatter_elements_add(
        const void* values, const void* index, void* result, int64_t outer, int64_t axis_size,
        int64_t entries, int64_t inner, torch_ops_dtype dtype, torch_ops_index_type index_type,
        torch_ops_mode mode, int32_t flags, torch_ops_memory memory, torch_ops_stream stream,
        float* milliseconds)
    torch_ops_status torch_ops_gather_points(
        const void* source, const void* const* coordinates, const int64_t* sizes, int32_t count,
        void* output, int64_t batch, int64_t points, int64_t inner, torch_ops_dtype dtype,
        torch_ops_index_type index_type, torch_ops_mode mode, const void* fill, torch_ops_memory
        memory, torch_ops_stream stream, float* milliseconds)
    torch_ops_status torch_ops_put_points(
        void* table, const void* const* coordinates, const int64_t* sizes, int32_t count, const
        void* values, int64_t batch, int64_t points, int64_t inner, torch_ops_dtype dtype,
        torch_ops_index_type index_type, torch_ops_mode mode, torch_ops_memory memory,
        torch_ops_stream stream, float* milliseconds)
    torch_ops_status torch_ops_ravel_points(
        const void* const* coordinates, const int64_t* sizes, int32_t count, int64_t* places,
        int64_t points, torch_ops_index_type index_type, torch_ops_mode mode, torch_ops_memory
        memory, torch_ops_stream stream, float* milliseconds)
    torch_ops_status torch_ops_plan_create(
        const void* index, int64_t batch, int64_t axis_size, int64_t entries, torch_ops_index_type
        index_type, torch_ops_memory memory, torch_ops_stream stream, torch_ops_plan** plan)
    torch_ops_status torch_ops_plan_destroy(torch_ops_plan* plan)
    torch_ops_status torch_ops_plan_gather(
        const torch_ops_plan* plan, const void* source, void* output, int64_t inner,
        torch_ops_dtype dtype, torch_ops_stream stream, float* milliseconds)
    torch_ops_status torch_ops_plan_scatter(
        const torch_ops_plan* plan, const void* values, void* result, int64_t inner,
        torch_ops_dtype dtype, torch_ops_reduce reduce, int32_t flags, torch_ops_stream stream,
        float* milliseconds)
    torch_ops_status torch_ops_leaky_relu(
        const void* input, void* output, int64_t size, double slope, torch_ops_dtype dtype,
        torch_ops_memory memory, torch_ops_stream stream, float* milliseconds)
    torch_ops_status torch_ops_leaky_relu_backward(
        const void* grad_output, const void* input, void* grad_input, int64_t size, double slope,
        torch_ops_dtype dtype, torch_ops_memory memory, torch_ops_stream stream, float*
        milliseconds)
    torch_ops_status torch_ops_relu(
        const void* input, void* output, int64_t size, torch_ops_dtype dtype,
        torch_ops_memory memory, torch_ops_stream stream, float* milliseconds)
    torch_ops_status torch_ops_relu_backward(
        const void* grad_output, const void* output, void* grad_input, int64_t size,
        torch_ops_dtype dtype, torch_ops_memory memory, torch_ops_stream stream,
        float* milliseconds)
    torch_ops_status torch_ops_sigmoid(
        const void* input, void* output, int64_t size, torch_ops_dtype dtype,
        torch_ops_memory memory, torch_ops_stream stream, float* milliseconds)
    torch_ops_status torch_ops_sigmoid_backward(
        const void* grad_output, const void* output, void* grad_input, int64_t size,
        torch_ops_dtype dtype, torch_ops_memory memory, torch_ops_stream stream,
        float* milliseconds)
    float torch_ops_gather_host(const float* source, const int* index, float* res, int N, int M)
    float torch_ops_batch_gather_host(
        const float* source, const int* index, float* res, int N, int M, int B)
    torch_ops_status torch_ops_hello(int32_t threads, torch_ops_memory memory)
