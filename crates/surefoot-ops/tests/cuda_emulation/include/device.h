// What CUDA C++ has and C++ has not, for kernels that are compiled for the host: indices, barriers, planes,
// half precision.
#pragma once
#include "emulation.h"
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <immintrin.h>
#include <tuple>
#include <type_traits>
#include <utility>
#define EMU_SITE ((void *)(size_t)(__COUNTER__ + 1))
#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
#define __noinline__
#define threadIdx (emu_cur->tid)
#define blockIdx emu_block
#define blockDim emu_bdim
#define gridDim emu_grid
#define warpSize 32
#define __syncthreads() emu_block_sync(EMU_SITE)
#define __syncwarp(...) emu_collective(nullptr, nullptr, EMU_SITE)
#define __threadfence() ((void)0)
#define __activemask() 0xffffffffu
#define uint64_t emu_uint64_t
#define int64_t emu_int64_t
typedef unsigned long long emu_u64;
inline unsigned __popc(unsigned x) { return __builtin_popcount(x); }
inline unsigned __popcll(emu_u64 x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((emu_u64)a * b) >> 32); }
inline emu_u64 __umul64hi(emu_u64 a, emu_u64 b) { return (emu_u64)(((unsigned __int128)a * b) >> 64); }
inline float rsqrt(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / ::sqrt(x); }
inline float __emu_f(float x) { return x; }
using std::abs;
using std::atan2;
using std::ceil;
using std::cos;
using std::cosh;
using std::erf;
using std::exp;
using std::expm1;
using std::fabs;
using std::floor;
using std::fma;
using std::fmod;
using std::hypot;
using std::isinf;
using std::isnan;
using std::log;
using std::log1p;
using std::pow;
using std::rint;
using std::sin;
using std::sinh;
using std::sqrt;
using std::tan;
using std::tanh;
using std::trunc;
template <class A, class B> inline auto emu_max(A a, B b) {
  typedef typename std::common_type<A, B>::type T;
  if constexpr (std::is_floating_point<T>::value)
    return (T)std::fmax((T)a, (T)b);
  else
    return (T)a > (T)b ? (T)a : (T)b;
}
template <class A, class B> inline auto emu_min(A a, B b) {
  typedef typename std::common_type<A, B>::type T;
  if constexpr (std::is_floating_point<T>::value)
    return (T)std::fmin((T)a, (T)b);
  else
    return (T)a < (T)b ? (T)a : (T)b;
}
#define max emu_max
#define min emu_min
struct __half {
  unsigned short v;
  __half() = default;
  __half(float f) : v(_cvtss_sh(f, 0)) {}
  __half(double f) : __half((float)f) {}
  __half(int f) : __half((float)f) {}
  __half(unsigned f) : __half((float)f) {}
  __half(long long f) : __half((float)f) {}
  __half(emu_u64 f) : __half((float)f) {}
  __half(bool f) : __half((float)f) {}
  operator float() const { return _cvtsh_ss(v); }
  __half &operator+=(__half o) {
    *this = __half((float)*this + (float)o);
    return *this;
  }
};
struct __nv_bfloat16 {
  unsigned short v;
  __nv_bfloat16() = default;
  __nv_bfloat16(float f) {
    unsigned u;
    memcpy(&u, &f, 4);
    if (f != f)
      v = 0x7fff;
    else {
      u += 0x7fff + ((u >> 16) & 1);
      v = u >> 16;
    }
  }
  __nv_bfloat16(double f) : __nv_bfloat16((float)f) {}
  __nv_bfloat16(int f) : __nv_bfloat16((float)f) {}
  __nv_bfloat16(unsigned f) : __nv_bfloat16((float)f) {}
  __nv_bfloat16(emu_u64 f) : __nv_bfloat16((float)f) {}
  __nv_bfloat16(bool f) : __nv_bfloat16((float)f) {}
  operator float() const {
    unsigned u = (unsigned)v << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
  }
};
#define EMU_OPS(T)                                                                                           \
  inline T operator+(T a, T b) { return T((float)a + (float)b); }                                            \
  inline T operator-(T a, T b) { return T((float)a - (float)b); }                                            \
  inline T operator*(T a, T b) { return T((float)a * (float)b); }                                            \
  inline T operator/(T a, T b) { return T((float)a / (float)b); }                                            \
  inline T operator-(T a) { return T(-(float)a); }                                                           \
  inline bool operator<(T a, T b) { return (float)a < (float)b; }                                            \
  inline bool operator>(T a, T b) { return (float)a > (float)b; }                                            \
  inline bool operator<=(T a, T b) { return (float)a <= (float)b; }                                          \
  inline bool operator>=(T a, T b) { return (float)a >= (float)b; }                                          \
  inline bool operator==(T a, T b) { return (float)a == (float)b; }                                          \
  inline bool operator!=(T a, T b) { return (float)a != (float)b; }                                          \
  inline T __habs(T a) { return T(fabsf((float)a)); }                                                        \
  inline T __hmax(T a, T b) { return T(fmaxf(a, b)); }                                                       \
  inline T __hmin(T a, T b) { return T(fminf(a, b)); }                                                       \
  inline T __hfma(T a, T b, T c) { return T(fmaf(a, b, c)); }                                                \
  inline bool __hisnan(T a) { return std::isnan((float)a); }                                                 \
  inline bool __hisinf(T a) { return std::isinf((float)a); }                                                 \
  inline T hexp(T a) { return T(expf(a)); }                                                                  \
  inline T hlog(T a) { return T(logf(a)); }                                                                  \
  inline T hsqrt(T a) { return T(sqrtf(a)); }                                                                \
  inline T hrsqrt(T a) { return T(1.0f / sqrtf(a)); }                                                        \
  inline T htanh(T a) { return T(tanhf(a)); }                                                                \
  inline T hsin(T a) { return T(sinf(a)); }                                                                  \
  inline T hcos(T a) { return T(cosf(a)); }                                                                  \
  inline T hfloor(T a) { return T(floorf(a)); }                                                              \
  inline T hceil(T a) { return T(ceilf(a)); }                                                                \
  inline T hrint(T a) { return T(rintf(a)); }                                                                \
  inline T htrunc(T a) { return T(truncf(a)); }                                                              \
  inline T hrcp(T a) { return T(1.0f / (float)a); }
EMU_OPS(__half)
EMU_OPS(__nv_bfloat16)
#define EMU_PAIR(P, T)                                                                                       \
  struct P {                                                                                                 \
    T x, y;                                                                                                  \
    P() = default;                                                                                           \
    P(T a, T b) : x(a), y(b) {}                                                                              \
  };                                                                                                         \
  inline P operator+(P a, P b) { return {a.x + b.x, a.y + b.y}; }                                            \
  inline P operator-(P a, P b) { return {a.x - b.x, a.y - b.y}; }                                            \
  inline P operator*(P a, P b) { return {a.x * b.x, a.y * b.y}; }                                            \
  inline P operator/(P a, P b) { return {a.x / b.x, a.y / b.y}; }                                            \
  inline P operator-(P a) { return {-a.x, -a.y}; }                                                           \
  inline P __habs2(P a) { return {__habs(a.x), __habs(a.y)}; }                                               \
  inline P __hmax2(P a, P b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }                                \
  inline P __hmin2(P a, P b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }                                \
  inline P __hfma2(P a, P b, P c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }                 \
  inline P h2exp(P a) { return {hexp(a.x), hexp(a.y)}; }                                                     \
  inline P h2log(P a) { return {hlog(a.x), hlog(a.y)}; }                                                     \
  inline P h2sqrt(P a) { return {hsqrt(a.x), hsqrt(a.y)}; }                                                  \
  inline P h2rsqrt(P a) { return {hrsqrt(a.x), hrsqrt(a.y)}; }                                               \
  inline P h2tanh(P a) { return {htanh(a.x), htanh(a.y)}; }                                                  \
  inline P h2rcp(P a) { return {hrcp(a.x), hrcp(a.y)}; }                                                     \
  inline P h2sin(P a) { return {hsin(a.x), hsin(a.y)}; }                                                     \
  inline P h2cos(P a) { return {hcos(a.x), hcos(a.y)}; }
    EMU_PAIR(__half2, __half) EMU_PAIR(__nv_bfloat162, __nv_bfloat16) inline float __half2float(__half h) {
  return h;
}
inline __half __float2half(float f) { return f; }
inline float __bfloat162float(__nv_bfloat16 h) { return h; }
inline __nv_bfloat16 __float2bfloat16(float f) { return f; }
// warp
template <class T> struct EmuShfl {
  T in, out;
  int src;
};
template <class T> inline void emu_shfl(void **a, int n, unsigned mask) {
  for (int i = 0; i < n; i++)
    if (a[i]) {
      auto *s = (EmuShfl<T> *)a[i];
      int j = s->src;
      s->out = j >= 0 && j < n && a[j] ? ((EmuShfl<T> *)a[j])->in : s->in;
    }
}
template <class T> inline T emu_shuffle(T v, int src, void *site) {
  EmuShfl<T> s{v, v, src};
  emu_collective(emu_shfl<T>, &s, site);
  return s.out;
}
#define emu_lane ((int)((emu_cur->tid.x + emu_bdim.x * (emu_cur->tid.y + emu_bdim.y * emu_cur->tid.z)) & 31))
#define __shfl_sync(m, v, l) emu_shuffle(v, (int)(l)&31, EMU_SITE)
#define __shfl_xor_sync(m, v, x) emu_shuffle(v, emu_lane ^ (int)(x), EMU_SITE)
#define __shfl_up_sync(m, v, d) emu_shuffle(v, emu_lane - (int)(d), EMU_SITE)
#define __shfl_down_sync(m, v, d) emu_shuffle(v, emu_lane + (int)(d), EMU_SITE)
struct EmuVote {
  unsigned in, out;
};
inline void emu_ballot_fn(void **a, int n, unsigned) {
  unsigned b = 0;
  for (int i = 0; i < n; i++)
    if (a[i] && ((EmuVote *)a[i])->in)
      b |= 1u << i;
  for (int i = 0; i < n; i++)
    if (a[i])
      ((EmuVote *)a[i])->out = b;
}
inline unsigned emu_ballot(bool v, void *site) {
  EmuVote s{v, 0};
  emu_collective(emu_ballot_fn, &s, site);
  return s.out;
}
#define __ballot_sync(m, v) emu_ballot(v, EMU_SITE)
#define __any_sync(m, v) (emu_ballot(v, EMU_SITE) != 0)
#define __all_sync(m, v) (emu_ballot(!(v), EMU_SITE) == 0)
// entry
template <class... A, size_t... I>
inline void emu_call(void (*f)(A...), void **p, std::index_sequence<I...>) {
  f(*(typename std::remove_const<typename std::remove_reference<A>::type>::type *)p[I]...);
}
template <class... A> inline void emu_invoke(void (*f)(A...), void **p) {
  emu_call(f, p, std::index_sequence_for<A...>());
}
template <class... A> constexpr int emu_arity(void (*)(A...)) { return sizeof...(A); }
template <class F> struct EmuSizes;
template <class... A> struct EmuSizes<void (*)(A...)> {
  static constexpr size_t v[sizeof...(A) + 1] = {sizeof(A)..., 0};
};
#define EMU_ENTRY(n)                                                                                         \
  extern "C" __attribute__((no_sanitize("thread"))) void emu_entry_##n(void **p) { emu_invoke(&n, p); }      \
  extern "C" size_t emu_sizes_##n[sizeof(EmuSizes<decltype(&n)>::v) / sizeof(size_t)];                       \
  extern "C" int emu_count_##n;                                                                              \
  size_t emu_sizes_##n[sizeof(EmuSizes<decltype(&n)>::v) / sizeof(size_t)];                                  \
  int emu_count_##n = emu_arity(&n);                                                                         \
  __attribute__((constructor)) static void emu_init_##n() {                                                  \
    memcpy(emu_sizes_##n, EmuSizes<decltype(&n)>::v, sizeof(emu_sizes_##n));                                 \
  }
