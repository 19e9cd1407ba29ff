// The macros of the functors that a host loop and a CUDA kernel share.
#pragma once

/// Marks a function that host and device may call.
#if defined(__CUDACC__)
#define GALVATRON_HD __host__ __device__
#else
#define GALVATRON_HD
#endif

/// An inline function that must take the instruction set of its caller (device/host/team.hpp).
#if defined(__CUDACC__)
#define GALVATRON_INLINE __forceinline__
#else
#define GALVATRON_INLINE inline __attribute__((always_inline))
#endif

/// Goes behind the parameters of a lambda that must take the instruction set of its caller.
#define GALVATRON_INLINE_LAMBDA __attribute__((always_inline))

/// 1 where functions can be compiled for x86 instruction sets of their own.
#if defined(__x86_64__) && defined(__GNUC__)
#define GALVATRON_X86 1
#else
#define GALVATRON_X86 0
#endif
