// Matrix units (`nvcuda::wmma`): a fragment's numbers are shared out to the 32 units of a plane, and the last
// one to come multiplies.
#pragma once
#include "device.h"
extern "C" void emu_access(void *, size_t, bool);
namespace nvcuda {
namespace wmma {
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
namespace precision {
struct tf32 {};
} // namespace precision
enum layout_t { mem_row_major, mem_col_major };
template <class T> struct Elem { typedef T type; };
template <> struct Elem<precision::tf32> { typedef float type; };
template <class Use, int M, int N, int K> struct Dims;
template <int M, int N, int K> struct Dims<matrix_a, M, N, K> { static const int R = M, C = K; };
template <int M, int N, int K> struct Dims<matrix_b, M, N, K> { static const int R = K, C = N; };
template <int M, int N, int K> struct Dims<accumulator, M, N, K> { static const int R = M, C = N; };
template <class Use, int M, int N, int K, class T, class L = void> struct fragment {
  typedef typename Elem<T>::type E;
  static const int R = Dims<Use, M, N, K>::R, C = Dims<Use, M, N, K>::C;
  static const int num_elements = R * C / 32;
  E x[R * C / 32];
};
template <class F> inline typename F::E &at(void **frags, int r, int c) {
  int i = r * F::C + c;
  return ((F *)frags[i / F::num_elements])->x[i % F::num_elements];
}
struct Site {
  void *s;
};
template <class F> struct LoadArg {
  F *f;
  const void *p;
  unsigned ld;
  bool col;
};
template <class F, class P> void load_fn(void **a, int n, unsigned mask) {
  void *fr[32];
  for (int i = 0; i < 32; i++) {
    if (i >= n || !a[i]) {
      fprintf(stderr, "emulation: matrix unit of an incomplete plane\n");
      abort();
    }
    fr[i] = ((LoadArg<F> *)a[i])->f;
  }
  auto *l = (LoadArg<F> *)a[0];
  const P *p = (const P *)l->p;
  for (int i = 1; i < 32; i++)
    if (((LoadArg<F> *)a[i])->p != l->p || ((LoadArg<F> *)a[i])->ld != l->ld) {
      fprintf(stderr, "emulation: units of a plane load from different places\n");
      abort();
    }
  if (((size_t)p) % 32) {
    static int w;
    if (w++ < 3)
      fprintf(stderr,
              "EMULATION FAILS: matrix loaded from an address that is not a multiple of 32 bytes: %p\n", p);
  }
  if ((l->ld * sizeof(P)) % 16) {
    static int w;
    if (w++ < 3)
      fprintf(stderr, "EMULATION FAILS: matrix with a leading dimension of %u numbers of %zu bytes\n", l->ld,
              sizeof(P));
  }
  for (int r = 0; r < F::R; r++)
    for (int c = 0; c < F::C; c++)
      at<F>(fr, r, c) = typename F::E(l->col ? p[(size_t)c * l->ld + r] : p[(size_t)r * l->ld + c]);
}
template <class F, class P> inline void load(F &f, const P *p, unsigned ld, bool col, void *site) {
  // what this lane reads, for the search for races
  for (int t = 0; t < F::num_elements; t++) {
    int i = emu_lane * F::num_elements + t, r = i / F::C, c = i % F::C;
    emu_access((void *)&p[col ? (size_t)c * ld + r : (size_t)r * ld + c], sizeof(P), false);
  }
  LoadArg<F> l{&f, p, ld, col};
  emu_collective(load_fn<F, P>, &l, site);
}
template <class F, class P> void store_fn(void **a, int n, unsigned mask) {
  void *fr[32];
  for (int i = 0; i < 32; i++) {
    if (i >= n || !a[i]) {
      fprintf(stderr, "emulation: matrix unit of an incomplete plane\n");
      abort();
    }
    fr[i] = ((LoadArg<F> *)a[i])->f;
  }
  auto *l = (LoadArg<F> *)a[0];
  P *p = (P *)l->p;
  if (((size_t)p) % 32) {
    static int w;
    if (w++ < 3)
      fprintf(stderr, "EMULATION FAILS: matrix stored to an address that is not a multiple of 32 bytes: %p\n",
              p);
  }
  for (int r = 0; r < F::R; r++)
    for (int c = 0; c < F::C; c++)
      p[l->col ? (size_t)c * l->ld + r : (size_t)r * l->ld + c] = P(at<F>(fr, r, c));
}
template <class F, class P> inline void store(P *p, F &f, unsigned ld, bool col, void *site) {
  LoadArg<F> l{&f, p, ld, col};
  emu_collective(store_fn<F, P>, &l, site);
  for (int t = 0; t < F::num_elements; t++) {
    int i = emu_lane * F::num_elements + t, r = i / F::C, c = i % F::C;
    emu_access((void *)&p[col ? (size_t)c * ld + r : (size_t)r * ld + c], sizeof(P), true);
  }
}
template <class L> constexpr bool is_col() { return std::is_same<L, col_major>::value; }
template <class U, int M, int N, int K, class T, class L, class P>
inline void load_l(fragment<U, M, N, K, T, L> &f, const P *p, unsigned ld, void *s) {
  load(f, p, ld, is_col<L>(), s);
}
template <class F, class P> inline void load_l(F &f, const P *p, unsigned ld, layout_t l, void *s) {
  load(f, p, ld, l == mem_col_major, s);
}
template <class F, class P> inline void store_l(P *p, F &f, unsigned ld, layout_t l, void *s) {
  store(p, f, ld, l == mem_col_major, s);
}
#define load_matrix_sync(...) load_l(__VA_ARGS__, EMU_SITE)
#define store_matrix_sync(...) store_l(__VA_ARGS__, EMU_SITE)
template <class F, class V> inline void fill_fragment(F &f, V v) {
  for (int i = 0; i < F::num_elements; i++)
    f.x[i] = typename F::E(v);
}
template <class D, class A, class B, class C> struct MmaArg {
  D *d;
  A *a;
  B *b;
  C *c;
};
template <class T> inline float rounded(T v) { return (float)v; }
inline float tf32(float f) {
  unsigned u;
  memcpy(&u, &f, 4);
  u += 0xfff + ((u >> 13) & 1);
  u &= ~0x1fffu;
  memcpy(&f, &u, 4);
  return f;
}
template <class D, class A, class B, class C, bool TF> void mma_fn(void **a, int n, unsigned) {
  typedef MmaArg<D, A, B, C> G;
  void *fd[32], *fa[32], *fb[32], *fc[32];
  for (int i = 0; i < 32; i++) {
    if (i >= n || !a[i]) {
      fprintf(stderr, "emulation: matrix unit of an incomplete plane\n");
      abort();
    }
    G *g = (G *)a[i];
    fd[i] = g->d;
    fa[i] = g->a;
    fb[i] = g->b;
    fc[i] = g->c;
  }
  static float x[64 * 64], y[64 * 64], z[64 * 64];
  for (int r = 0; r < A::R; r++)
    for (int k = 0; k < A::C; k++) {
      float v = (float)at<A>(fa, r, k);
      x[r * A::C + k] = TF ? tf32(v) : v;
    }
  for (int k = 0; k < B::R; k++)
    for (int c = 0; c < B::C; c++) {
      float v = (float)at<B>(fb, k, c);
      y[k * B::C + c] = TF ? tf32(v) : v;
    }
  for (int r = 0; r < C::R; r++)
    for (int c = 0; c < C::C; c++)
      z[r * C::C + c] = (float)at<C>(fc, r, c);
  for (int r = 0; r < A::R; r++)
    for (int k = 0; k < A::C; k++) {
      float v = x[r * A::C + k];
      for (int c = 0; c < B::C; c++)
        z[r * C::C + c] += v * y[k * B::C + c];
    }
  for (int r = 0; r < D::R; r++)
    for (int c = 0; c < D::C; c++)
      at<D>(fd, r, c) = typename D::E(z[r * D::C + c]);
}
template <class D, class C, int M, int N, int K, class T, class LA, class LB>
inline void mma_l(D &d, fragment<matrix_a, M, N, K, T, LA> &a, fragment<matrix_b, M, N, K, T, LB> &b, C &c,
                  void *s) {
  typedef fragment<matrix_a, M, N, K, T, LA> A;
  typedef fragment<matrix_b, M, N, K, T, LB> B;
  MmaArg<D, A, B, C> g{&d, &a, &b, &c};
  emu_collective(mma_fn<D, A, B, C, std::is_same<T, precision::tf32>::value>, &g, s);
}
#define mma_sync(...) mma_l(__VA_ARGS__, EMU_SITE)
inline float __float_to_tf32(float f) { return tf32(f); }
} // namespace wmma
} // namespace nvcuda
