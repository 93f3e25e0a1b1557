// Stands in for CUDA's header of this name, which torch's own packages of CUDA do not hold: only
// the compiler nvcc comes with it. Other headers of CUDA mark their declarations with these words,
// which to a C++ compiler mean nothing but an alignment. A toolkit's own header is found first.
#pragma once

#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __host__
#define __device__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define CUDARTAPI
#define CUDARTAPI_CDECL
