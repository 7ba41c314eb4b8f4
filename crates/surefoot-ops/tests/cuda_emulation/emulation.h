// What the driver and the compiled kernels share.
#pragma once
#include <cstddef>
#include <cstdint>
struct EmuDim {
  unsigned x, y, z;
};
struct EmuFiber {
  void *sp;
  EmuDim tid;
  int state;
  int lane;
  int warp;
  void *site;
  void (*fn)(void **, int, unsigned);
  void *arg;
  unsigned mask;
  char *stack;
  unsigned wepoch;
};
extern "C" {
extern EmuFiber *emu_cur;
extern EmuDim emu_block, emu_grid, emu_bdim;
extern char *emu_shared;
extern int emu_quiet; // tsan callbacks off while >0
void emu_block_sync(void *site);
// fn(args by lane (null where absent), lanes, mask) is run once when all lanes have come.
void emu_collective(void (*fn)(void **, int, unsigned), void *arg, void *site);
unsigned emu_activemask();
}
