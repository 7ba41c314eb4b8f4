// A stand-in for NVRTC, CUDA's run-time compiler: it compiles a kernel's CUDA C++ for the host with g++ and
// hands out the path of the library in place of PTX. The driver in `driver.cpp` loads it. See README.md.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <regex>
#include <sstream>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#define API extern "C" __attribute__((visibility("default")))
static std::string wanted(const char *name) {
  const char *value = getenv(name);
  if (!value) {
    fprintf(stderr, "set %s, as README.md says\n", name);
    abort();
  }
  return value;
}
struct Prog {
  std::string src, log, ptx;
};
API int nvrtcVersion(int *a, int *b) {
  *a = 12;
  *b = 9;
  return 0;
}
API int nvrtcCreateProgram(void **p, const char *src, const char *, int, const char **, const char **) {
  *p = new Prog{src, "", ""};
  return 0;
}
static std::string sh(const std::string &c, int &rc) {
  std::string o;
  FILE *f = popen((c + " 2>&1").c_str(), "r");
  char b[4096];
  size_t n;
  while ((n = fread(b, 1, 4096, f)) > 0)
    o.append(b, n);
  rc = pclose(f);
  return o;
}
API int nvrtcCompileProgram(void *p, int, const char **) {
  Prog *g = (Prog *)p;
  std::string dir = wanted("EMULATION_KERNELS");
  mkdir(dir.c_str(), 0777);
  bool races = getenv("EMULATION_RACES");
  std::string home = wanted("EMULATION_HOME");
  size_t h = std::hash<std::string>()(g->src);
  char name[64];
  snprintf(name, 64, "k%016zx", h);
  std::string base = dir + "/" + name, so = base + (races ? ".race.so" : ".so");
  g->ptx = "EMU:" + so;
  if (access(so.c_str(), R_OK) == 0)
    return 0;
  { std::ofstream(base + ".cu") << g->src; }
  std::string s = g->src;
  s = std::regex_replace(s, std::regex("extern __shared__ __align__\\((\\d+)\\) char (\\w+)\\[\\];"),
                         "char* const $2 = emu_shared;");
  s = std::regex_replace(s,
                         std::regex("asm volatile\\(\"atom\\.relaxed\\.add\\.f32 %0, \\[%1\\], %2;\" : "
                                    "\"=f\"\\(result\\) : \"l\"\\((\\w+)\\), \"f\"\\((\\w+)\\) \\);"),
                         "result = *(float*)$1; *(float*)$1 = result + $2;");
  // the entry's name
  std::smatch m;
  std::string entry;
  if (std::regex_search(
          s, m, std::regex("extern \"C\" __global__ void[^(]*__launch_bounds__\\([^)]*\\)[^(]*?(\\w+)\\(")))
    entry = m[1];
  std::string t = base + "." + std::to_string(getpid()) + ".cpp";
  {
    std::ofstream o(t);
    o << "#include \"device.h\"\n#line 1 \"" << base << ".cu\"\n" << s << "\nEMU_ENTRY(" << entry << ")\n";
  }
  int rc;
  std::string tmp = so + "." + std::to_string(getpid());
  g->log = sh("g++ -w -std=c++17 -O1 -fno-strict-aliasing -mf16c -mfma -mavx2 -fPIC -shared " +
                  std::string(races ? "-fsanitize=thread --param tsan-instrument-func-entry-exit=0 "
                                      "-nostartfiles -nodefaultlibs -lm -lc -lstdc++ "
                                    : "") +
                  "-fno-gnu-unique -I" + home + "/include -I" + home + " -o " + tmp + " " + t + " " + home +
                  "/libcuda.so.1",
              rc);
  if (rc) {
    fprintf(stderr, "a kernel does not compile: %s\n%s\n", base.c_str(), g->log.substr(0, 3000).c_str());
    return 6;
  }
  rename(tmp.c_str(), so.c_str());
  unlink(t.c_str());
  return 0;
}
API int nvrtcGetPTXSize(void *p, size_t *n) {
  *n = ((Prog *)p)->ptx.size() + 1;
  return 0;
}
API int nvrtcGetPTX(void *p, char *b) {
  strcpy(b, ((Prog *)p)->ptx.c_str());
  return 0;
}
API int nvrtcGetProgramLogSize(void *p, size_t *n) {
  *n = ((Prog *)p)->log.size() + 1;
  return 0;
}
API int nvrtcGetProgramLog(void *p, char *b) {
  strcpy(b, ((Prog *)p)->log.c_str());
  return 0;
}
API int nvrtcDestroyProgram(void **p) {
  delete (Prog *)*p;
  return 0;
}
API const char *nvrtcGetErrorString(int) { return "emulated"; }
