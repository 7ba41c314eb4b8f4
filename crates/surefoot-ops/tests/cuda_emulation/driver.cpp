// A stand-in for CUDA's driver that computes on the CPU, one unit of a cube at a time: each has a stack of
// its own, and waits at barriers and at what a plane does together. It reports barriers that units meet
// differently, and with EMULATION_RACES=1 accesses to shared and global memory that no barrier orders. Memory
// is filled with NaN before it is handed out. See README.md.
#include "emulation.h"
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <time.h>
#include <unordered_map>
#include <vector>
#define API extern "C" __attribute__((visibility("default")))
typedef int R;
typedef unsigned long long DP;
static std::recursive_mutex mu;
static const size_t STACK = 256 << 10;
enum { RUN, WAIT_BLOCK, WAIT_WARP, DONE };
extern "C" {
EmuFiber *emu_cur;
EmuDim emu_block, emu_grid, emu_bdim;
char *emu_shared;
int emu_quiet = 1;
}
static void *sched_sp;
static std::vector<EmuFiber> fibers;
static int nf;
static char *stacks;
static char *shared_mem;
static size_t shared_size;
static std::string kernel_name;
static unsigned bepoch;
extern "C" void emu_switch(void **from, void *to);
asm(R"(
.globl emu_switch
emu_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
)");
typedef void (*Entry)(void **);
static Entry cur_entry;
static void **cur_params;
static void fiber_main() {
  cur_entry(cur_params);
  EmuFiber *f = emu_cur;
  f->state = DONE;
  emu_switch(&f->sp, sched_sp);
  abort();
}
static void yield_to_sched() {
  EmuFiber *f = emu_cur;
  emu_switch(&f->sp, sched_sp);
}
API void emu_block_sync(void *site) {
  emu_cur->state = WAIT_BLOCK;
  emu_cur->site = site;
  yield_to_sched();
}
API void emu_collective(void (*fn)(void **, int, unsigned), void *arg, void *site) {
  emu_cur->state = WAIT_WARP;
  emu_cur->site = site;
  emu_cur->fn = fn;
  emu_cur->arg = arg;
  yield_to_sched();
}
API unsigned emu_activemask() { return 0xffffffffu; }
static long divergences = 0;
static void fail(const char *what) {
  fprintf(stderr, "EMULATION FAILS in %s: %s\n", kernel_name.c_str(), what);
  if (getenv("EMULATION_ABORT"))
    abort();
}
static long fails = 0;
static void run_block() {
  bepoch++;
  for (int i = 0; i < nf; i++) {
    EmuFiber &f = fibers[i];
    f.state = RUN;
    f.wepoch = 0;
    void **sp = (void **)(f.stack + STACK - 64);
    *--sp = nullptr; // alignment
    *--sp = (void *)fiber_main;
    for (int k = 0; k < 6; k++)
      *--sp = nullptr;
    f.sp = sp;
  }
  int warps = (nf + 31) / 32;
  for (;;) {
    bool progress = false;
    int done = 0, blocked = 0;
    for (int i = 0; i < nf; i++)
      if (fibers[i].state == RUN) {
        emu_cur = &fibers[i];
        emu_quiet = 0;
        emu_switch(&sched_sp, fibers[i].sp);
        emu_quiet = 1;
        progress = true;
      }
    for (int w = 0; w < warps; w++) {
      // groups by call site
      int from = w * 32, to = std::min(nf, from + 32);
      void *args[32];
      for (;;) {
        int first = -1;
        bool any_run = false;
        for (int i = from; i < to; i++) {
          if (fibers[i].state == RUN)
            any_run = true;
          if (fibers[i].state == WAIT_WARP && first < 0)
            first = i;
        }
        if (first < 0 || any_run) {
          if (first >= 0 && any_run) { /* others of this group were released; let them run first */
          }
          break;
        }
        void *site = fibers[first].site;
        unsigned mask = 0;
        bool all = true;
        for (int i = from; i < to; i++) {
          args[i - from] = nullptr;
          if (fibers[i].state == WAIT_WARP && fibers[i].site == site) {
            args[i - from] = fibers[i].arg;
            mask |= 1u << (i - from);
          } else if (fibers[i].state != DONE)
            all = false;
        }
        if (!all) {
          if (divergences++ < 5 && getenv("EMULATION_WARN"))
            fprintf(stderr, "emulation: divergent collective in %s mask %08x\n", kernel_name.c_str(), mask);
        }
        if (fibers[first].fn)
          fibers[first].fn(args, to - from, mask);
        for (int i = from; i < to; i++)
          if (mask >> (i - from) & 1) {
            fibers[i].state = RUN;
            fibers[i].wepoch++;
          }
        progress = true;
        break;
      }
    }
    for (int i = 0; i < nf; i++) {
      if (fibers[i].state == DONE)
        done++;
      if (fibers[i].state == WAIT_BLOCK)
        blocked++;
    }
    if (done == nf)
      return;
    if (blocked && done + blocked == nf) {
      void *site = nullptr;
      bool same = true;
      for (int i = 0; i < nf; i++)
        if (fibers[i].state == WAIT_BLOCK) {
          if (!site)
            site = fibers[i].site;
          else if (site != fibers[i].site)
            same = false;
        }
      if (!same && fails++ < 20)
        fail("units wait at different barriers");
      if (done && fails++ < 20)
        fail("some units have ended while others wait at a barrier");
      for (int i = 0; i < nf; i++)
        if (fibers[i].state == WAIT_BLOCK)
          fibers[i].state = RUN;
      bepoch++;
      progress = true;
    }
    if (!progress) {
      fail("stuck");
      abort();
    }
  }
}
// ---- races: accesses that a kernel compiled with -fsanitize=thread reports
struct Cell {
  unsigned wtid, wblk, wep, wwep;
  unsigned rtid, rblk, rep, rwep;
  bool has_w, has_r, many_r;
};
static std::vector<Cell> scells;
static std::unordered_map<uintptr_t, Cell> gcells;
static unsigned cur_block;
static bool races_on;
static long races, oob;
struct Alloc {
  size_t size;
};
static std::map<uintptr_t, size_t> allocs;
static uintptr_t last_lo, last_hi;
static bool in_alloc(uintptr_t a) {
  if (a >= last_lo && a < last_hi)
    return true;
  auto it = allocs.upper_bound(a);
  if (it == allocs.begin())
    return false;
  --it;
  if (a < it->first + it->second) {
    last_lo = it->first;
    last_hi = it->first + it->second;
    return true;
  }
  return false;
}
static void *race_site;
static void access(uintptr_t a, size_t n, bool write) {
  if (emu_quiet || !races_on)
    return;
  if (a >= (uintptr_t)stacks && a < (uintptr_t)stacks + STACK * 1024)
    return;
  bool sh = a >= (uintptr_t)shared_mem && a < (uintptr_t)shared_mem + (256 << 10);
  if (sh && a + n > (uintptr_t)shared_mem + shared_size) {
    if (oob++ < 30)
      fprintf(stderr, "EMULATION FAILS in %s: shared memory out of bounds: %ld of %zu\n", kernel_name.c_str(),
              (long)(a + n - (uintptr_t)shared_mem), shared_size);
    return;
  }
  if (!sh && !in_alloc(a))
    return;
  for (uintptr_t w = a >> 2; w <= (a + n - 1) >> 2; w++) {
    Cell &c = sh ? scells[w - ((uintptr_t)shared_mem >> 2)] : gcells[w];
    unsigned tid = emu_cur - fibers.data(), ep = bepoch, we = emu_cur->wepoch;
    auto ordered = [&](unsigned t, unsigned b, unsigned e, unsigned wep) {
      if (t == tid && b == cur_block)
        return true;
      if (b != cur_block)
        return sh; // shared memory is new in each block
      if (e != ep)
        return true;
      return t / 32 == tid / 32 && wep != we; // a plane's collective in between
    };
    bool bad = false;
    const char *kind = "";
    if (c.has_w && !ordered(c.wtid, c.wblk, c.wep, c.wwep)) {
      bad = true;
      kind = write ? "write after write" : "read after write";
    }
    if (write && c.has_r &&
        (!ordered(c.rtid, c.rblk, c.rep, c.rwep) ||
         (c.many_r && c.rep == ep && c.rblk == cur_block && c.rtid / 32 != tid / 32))) {
      bad = true;
      kind = "write after read";
    }
    if (bad && races++ < 40)
      fprintf(stderr, "EMULATION FAILS in %s: race (%s) in %s memory, units %u and %u, at %p\n",
              kernel_name.c_str(), kind, sh ? "shared" : "global", c.has_w ? c.wtid : c.rtid, tid, race_site);
    if (write) {
      c.has_w = true;
      c.wtid = tid;
      c.wblk = cur_block;
      c.wep = ep;
      c.wwep = we;
      c.has_r = false;
      c.many_r = false;
    } else {
      if (c.has_r && c.rtid != tid && c.rep == ep && c.rblk == cur_block)
        c.many_r = true;
      c.has_r = true;
      c.rtid = tid;
      c.rblk = cur_block;
      c.rep = ep;
      c.rwep = we;
    }
  }
}
#define ACC(n)                                                                                               \
  API void __tsan_read##n(void *p) {                                                                         \
    race_site = __builtin_return_address(0);                                                                 \
    access((uintptr_t)p, n, false);                                                                          \
  }                                                                                                          \
  API void __tsan_write##n(void *p) {                                                                        \
    race_site = __builtin_return_address(0);                                                                 \
    access((uintptr_t)p, n, true);                                                                           \
  }                                                                                                          \
  API void __tsan_unaligned_read##n(void *p) { access((uintptr_t)p, n, false); }                             \
  API void __tsan_unaligned_write##n(void *p) { access((uintptr_t)p, n, true); }                             \
  API void __tsan_volatile_read##n(void *p) { access((uintptr_t)p, n, false); }                              \
  API void __tsan_volatile_write##n(void *p) { access((uintptr_t)p, n, true); }
ACC(1) ACC(2) ACC(4) ACC(8) ACC(16) API void __tsan_read_range(void *p, unsigned long n) {
  access((uintptr_t)p, n, false);
}
API void __tsan_write_range(void *p, unsigned long n) { access((uintptr_t)p, n, true); }
API void __tsan_func_entry(void *) {}
API void __tsan_func_exit() {}
API void __tsan_init() {}
API void __tsan_vptr_update(void **, void *) {}
API void __tsan_vptr_read(void **) {}
API void emu_access(void *p, size_t n, bool w) { access((uintptr_t)p, n, w); }
// ---- functions
struct Func {
  Entry entry;
  size_t *sizes;
  int count;
  std::string name;
};
struct Node {
  Func *f;
  EmuDim g, b;
  unsigned sh;
  std::vector<std::vector<char>> params;
  void *dst, *src;
  size_t n;
};
struct Graph {
  std::vector<Node> nodes;
};
struct Stream {
  Graph *capturing = nullptr;
};
static void ensure() {
  if (stacks)
    return;
  stacks = (char *)mmap(nullptr, STACK * 1024, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  shared_mem = (char *)mmap(nullptr, 512 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  fibers.resize(1024);
  for (int i = 0; i < 1024; i++)
    fibers[i].stack = stacks + STACK * i;
  races_on = getenv("EMULATION_RACES") != nullptr;
  scells.resize((256 << 10) / 4);
}
static long launches;
static void launch(Func *f, EmuDim g, EmuDim b, unsigned sh, void **params) {
  std::lock_guard<std::recursive_mutex> lock(mu);
  ensure();
  launches++;
  kernel_name = f->name;
  nf = b.x * b.y * b.z;
  emu_grid = g;
  emu_bdim = b;
  emu_shared = shared_mem;
  shared_size = sh;
  cur_entry = f->entry;
  cur_params = params;
  for (int i = 0; i < nf; i++) {
    fibers[i].tid = {i % b.x, i / b.x % b.y, i / b.x / b.y};
    fibers[i].lane = i % 32;
    fibers[i].warp = i / 32;
  }
  if (races_on)
    gcells.clear();
  cur_block = 0;
  bepoch = 1;
  struct timespec t0, t1;
  clock_gettime(CLOCK_MONOTONIC, &t0);
  for (unsigned z = 0; z < g.z; z++)
    for (unsigned y = 0; y < g.y; y++)
      for (unsigned x = 0; x < g.x; x++) {
        emu_block = {x, y, z};
        cur_block++;
        memset(shared_mem, 0xff, sh);
        if (races_on)
          std::fill(scells.begin(), scells.begin() + (sh + 3) / 4, Cell{});
        run_block();
      }
  clock_gettime(CLOCK_MONOTONIC, &t1);
  if (getenv("EMULATION_TRACE"))
    fprintf(stderr, "emulation: launch %s grid %u %u %u block %u %u %u shared %u: %.1f ms\n", f->name.c_str(),
            g.x, g.y, g.z, b.x, b.y, b.z, sh,
            (t1.tv_sec - t0.tv_sec) * 1e3 + (t1.tv_nsec - t0.tv_nsec) / 1e6);
}
API R cuInit(unsigned) { return 0; }
API R cuDriverGetVersion(int *v) {
  *v = 12090;
  return 0;
}
API R cuDeviceGetCount(int *n) {
  *n = 1;
  return 0;
}
API R cuDeviceGet(int *d, int) {
  *d = 0;
  return 0;
}
API R cuDeviceGetName(char *s, int n, int) {
  snprintf(s, n, "NVIDIA H200 (emulated)");
  return 0;
}
API R cuDeviceTotalMem_v2(size_t *n, int) {
  *n = 8ull << 30;
  return 0;
}
API R cuDeviceGetUuid_v2(char *u, int) {
  memset(u, 1, 16);
  return 0;
}
API R cuDeviceGetPCIBusId(char *s, int n, int) {
  snprintf(s, n, "0000:01:00.0");
  return 0;
}
API R cuDeviceGetAttribute(int *v, int a, int) {
  switch (a) {
  case 1:
    *v = 1024;
    break;
  case 2:
  case 3:
    *v = 1024;
    break;
  case 4:
    *v = 64;
    break;
  case 5:
    *v = 2147483647;
    break;
  case 6:
  case 7:
    *v = 65535;
    break;
  case 8:
    *v = 49152;
    break;
  case 10:
    *v = 32;
    break;
  case 12:
    *v = 65536;
    break;
  case 16:
    *v = 132;
    break;
  case 39:
    *v = 2048;
    break;
  case 75:
    *v = 9;
    break;
  case 76:
    *v = 0;
    break;
  case 81:
    *v = 233472;
    break;
  case 97:
    *v = 232448;
    break;
  case 115:
    *v = 1;
    break;
  default:
    *v = 0;
  }
  return 0;
}
API R cuDevicePrimaryCtxRetain(void **c, int) {
  *c = (void *)0x10;
  return 0;
}
API R cuDevicePrimaryCtxRelease_v2(int) { return 0; }
API R cuCtxSetCurrent(void *) { return 0; }
API R cuCtxGetCurrent(void **c) {
  *c = (void *)0x10;
  return 0;
}
API R cuCtxGetDevice(int *d) {
  *d = 0;
  return 0;
}
API R cuCtxSynchronize() { return 0; }
API R cuCtxGetStreamPriorityRange(int *a, int *b) {
  *a = 0;
  *b = -5;
  return 0;
}
API R cuStreamCreate(void **s, unsigned) {
  *s = new Stream;
  return 0;
}
API R cuStreamCreateWithPriority(void **s, unsigned, int) {
  *s = new Stream;
  return 0;
}
API R cuStreamDestroy_v2(void *) { return 0; }
API R cuStreamSynchronize(void *) { return 0; }
API R cuStreamQuery(void *) { return 0; }
API R cuStreamWaitEvent(void *, void *, unsigned) { return 0; }
API R cuStreamIsCapturing(void *s, int *st) {
  *st = s && ((Stream *)s)->capturing ? 1 : 0;
  return 0;
}
struct Event {
  double t;
};
API R cuEventCreate(void **e, unsigned) {
  *e = new Event{0};
  return 0;
}
API R cuEventRecord(void *e, void *) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  ((Event *)e)->t = t.tv_sec * 1e3 + t.tv_nsec / 1e6;
  return 0;
}
API R cuEventSynchronize(void *) { return 0; }
API R cuEventQuery(void *) { return 0; }
API R cuEventDestroy_v2(void *) { return 0; }
API R cuEventElapsedTime(float *ms, void *a, void *b) {
  *ms = ((Event *)b)->t - ((Event *)a)->t;
  return 0;
}
API R cuEventElapsedTime_v2(float *ms, void *a, void *b) { return cuEventElapsedTime(ms, a, b); }
static size_t used;
static R alloc(DP *p, size_t n) {
  std::lock_guard<std::recursive_mutex> lock(mu);
  if (used + n > (8ull << 30))
    return 2;
  void *m = nullptr;
  if (posix_memalign(&m, 512, n + 512))
    return 2;
  memset(m, 0xff, n);
  allocs[(uintptr_t)m] = n;
  used += n;
  *p = (DP)m;
  return 0;
}
static R dealloc(DP p) {
  std::lock_guard<std::recursive_mutex> lock(mu);
  auto it = allocs.find(p);
  if (it != allocs.end()) {
    used -= it->second;
    allocs.erase(it);
    last_lo = last_hi = 0;
    free((void *)p);
  }
  return 0;
}
API R cuMemAlloc_v2(DP *p, size_t n) { return alloc(p, n); }
API R cuMemAllocAsync(DP *p, size_t n, void *) { return alloc(p, n); }
API R cuMemFree_v2(DP p) { return dealloc(p); }
API R cuMemFreeAsync(DP p, void *) { return dealloc(p); }
API R cuMemAllocHost_v2(void **p, size_t n) { return posix_memalign(p, 4096, n) ? 2 : 0; }
API R cuMemFreeHost(void *p) {
  free(p);
  return 0;
}
API R cuMemGetInfo_v2(size_t *f, size_t *t) {
  *t = 8ull << 30;
  *f = *t - used;
  return 0;
}
static R copy(void *d, const void *s, size_t n, void *st) {
  if (st && ((Stream *)st)->capturing) {
    Node nd{};
    nd.dst = d;
    nd.src = (void *)s;
    nd.n = n;
    ((Stream *)st)->capturing->nodes.push_back(nd);
    return 0;
  }
  std::lock_guard<std::recursive_mutex> lock(mu);
  memcpy(d, s, n);
  return 0;
}
API R cuMemcpyHtoDAsync_v2(DP d, const void *s, size_t n, void *st) { return copy((void *)d, s, n, st); }
API R cuMemcpyDtoHAsync_v2(void *d, DP s, size_t n, void *st) { return copy(d, (void *)s, n, st); }
API R cuMemcpyDtoDAsync_v2(DP d, DP s, size_t n, void *st) { return copy((void *)d, (void *)s, n, st); }
API R cuMemcpyHtoD_v2(DP d, const void *s, size_t n) {
  memcpy((void *)d, s, n);
  return 0;
}
API R cuMemcpyDtoH_v2(void *d, DP s, size_t n) {
  memcpy(d, (void *)s, n);
  return 0;
}
API R cuMemsetD8Async(DP d, unsigned char v, size_t n, void *) {
  memset((void *)d, v, n);
  return 0;
}
struct Copy2D {
  size_t sx, sy;
  int st;
  const void *sh;
  DP sd;
  void *sa;
  size_t sp;
  size_t dx, dy;
  int dt;
  void *dh;
  DP dd;
  void *da;
  size_t dpitch;
  size_t w, h;
};
API R cuMemcpy2DAsync_v2(const Copy2D *c, void *) {
  std::lock_guard<std::recursive_mutex> lock(mu);
  const char *s = c->st == 1 ? (const char *)c->sh : (const char *)c->sd;
  char *d = c->dt == 1 ? (char *)c->dh : (char *)c->dd;
  for (size_t y = 0; y < c->h; y++)
    memcpy(d + (c->dy + y) * c->dpitch + c->dx, s + (c->sy + y) * c->sp + c->sx, c->w);
  return 0;
}
struct Mod {
  void *h;
  std::string path;
};
API R cuModuleLoadData(void **m, const void *image) {
  const char *p = (const char *)image;
  if (strncmp(p, "EMU:", 4))
    return 300;
  void *h = dlopen(p + 4, RTLD_NOW | RTLD_LOCAL);
  if (!h) {
    fprintf(stderr, "emulation: dlopen: %s\n", dlerror());
    return 301;
  }
  *m = new Mod{h, p + 4};
  return 0;
}
API R cuModuleUnload(void *) { return 0; }
API R cuModuleGetFunction(void **f, void *m, const char *name) {
  Mod *mod = (Mod *)m;
  std::string e = std::string("emu_entry_") + name;
  void *s = dlsym(mod->h, e.c_str());
  if (!s) {
    fprintf(stderr, "emulation: no %s\n", e.c_str());
    return 500;
  }
  *f = new Func{(Entry)s, (size_t *)dlsym(mod->h, ("emu_sizes_" + std::string(name)).c_str()),
                *(int *)dlsym(mod->h, ("emu_count_" + std::string(name)).c_str()), name};
  ((Func *)*f)->name += " " + mod->path.substr(mod->path.rfind('/') + 1);
  return 0;
}
API R cuFuncSetAttribute(void *, int, int v) { return v > 232448 ? 1 : 0; }
API R cuFuncGetAttribute(int *v, int, void *) {
  *v = 0;
  return 0;
}
API R cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                     unsigned sh, void *st, void **params, void **) {
  Func *fn = (Func *)f;
  EmuDim g{gx, gy, gz}, b{bx, by, bz};
  if (!gx || !gy || !gz || gy > 65535 || gz > 65535 || bx * by * bz > 1024) {
    fprintf(stderr, "EMULATION FAILS: launch %s %u %u %u\n", fn->name.c_str(), gx, gy, gz);
    return 1;
  }
  if (st && ((Stream *)st)->capturing) {
    Node nd{};
    nd.f = fn;
    nd.g = g;
    nd.b = b;
    nd.sh = sh;
    for (int i = 0; i < fn->count; i++)
      nd.params.emplace_back((char *)params[i], (char *)params[i] + fn->sizes[i]);
    ((Stream *)st)->capturing->nodes.push_back(nd);
    return 0;
  }
  launch(fn, g, b, sh, params);
  return 0;
}
API R cuStreamBeginCapture_v2(void *s, int) {
  ((Stream *)s)->capturing = new Graph;
  return 0;
}
API R cuStreamEndCapture(void *s, void **g) {
  *g = ((Stream *)s)->capturing;
  ((Stream *)s)->capturing = nullptr;
  return 0;
}
API R cuGraphDestroy(void *) { return 0; }
API R cuGraphGetNodes(void *g, void **n, size_t *c) {
  Graph *gr = (Graph *)g;
  if (!n) {
    *c = gr->nodes.size();
    return 0;
  }
  for (size_t i = 0; i < *c && i < gr->nodes.size(); i++)
    n[i] = &gr->nodes[i];
  return 0;
}
API R cuGraphNodeGetType(void *n, int *t) {
  *t = ((Node *)n)->f ? 0 : 1;
  return 0;
}
API R cuGraphInstantiateWithFlags(void **e, void *g, unsigned long long) {
  *e = g;
  return 0;
}
API R cuGraphUpload(void *, void *) { return 0; }
API R cuGraphExecDestroy(void *g) {
  delete (Graph *)g;
  return 0;
}
API R cuGraphLaunch(void *g, void *) {
  for (auto &n : ((Graph *)g)->nodes) {
    if (!n.f) {
      memcpy(n.dst, n.src, n.n);
      continue;
    }
    std::vector<void *> p;
    for (auto &x : n.params)
      p.push_back(x.data());
    launch(n.f, n.g, n.b, n.sh, p.data());
  }
  return 0;
}
API R cuGetErrorName(int, const char **s) {
  *s = "CUDA_ERROR_EMULATED";
  return 0;
}
API R cuGetErrorString(int, const char **s) {
  *s = "an error of the emulated driver";
  return 0;
}
API R cuDeviceCanAccessPeer(int *v, int, int) {
  *v = 0;
  return 0;
}
API R cuDeviceGetDefaultMemPool(void **p, int) {
  *p = (void *)0x20;
  return 0;
}
API R cuMemPoolSetAttribute(void *, int, void *) { return 0; }
API R cuMemPoolGetAttribute(void *, int, void *v) {
  *(unsigned long long *)v = 0;
  return 0;
}
API R cuMemPoolTrimTo(void *, size_t) { return 0; }
__attribute__((destructor)) static void bye() {
  fprintf(stderr,
          "emulation: %ld launches, %ld races, %ld out of bounds, %ld barrier failures, %ld divergent "
          "collectives\n",
          launches, races, oob, fails, divergences);
}
