#!/usr/bin/env python3
"""Compiles kernels that the emulation has run with the real NVRTC and ptxas, and lists their registers and what spills.

    compile_kernels.py PACKAGES KERNELS [--all]

PACKAGES is the folder `nvidia` of the packages that README.md names, KERNELS the folder of the kernels (EMULATION_KERNELS). Without
--all only those that spill are listed. Ends with 1 if a kernel does not compile.
"""

import ctypes
import pathlib
import re
import subprocess
import sys


def main():
    packages, kernels = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    everything = "--all" in sys.argv[3:]
    ctypes.CDLL(next((packages / "cuda_nvrtc/lib").glob("libnvrtc-builtins.so.*")), mode=ctypes.RTLD_GLOBAL)
    nvrtc = ctypes.CDLL(packages / "cuda_nvrtc/lib/libnvrtc.so.12")
    includes = [packages / name / "include" for name in ("cuda_runtime", "cuda_cccl", "cuda_nvcc")]
    options = [b"--gpu-architecture=sm_90a", *(f"--include-path={include}".encode() for include in includes)]
    failed, rows = 0, []
    for source in sorted(kernels.glob("*.cu")):
        ptx = source.with_suffix(".ptx")
        text = source.read_bytes()
        if not ptx.exists():
            error = compiled(nvrtc, text, options, ptx)
            if error:
                print(f"NVRTC does not compile {source}: {error[:1500]}")
                failed += 1
                continue
        told = subprocess.run(
            [packages / "cuda_nvcc/bin/ptxas", "-arch=sm_90a", "-v", "-o", "/dev/null", ptx],
            capture_output=True,
            text=True,
        )
        if told.returncode:
            print(f"ptxas does not compile {source}: {told.stderr[:800]}")
            failed += 1
            continue
        name = re.search(rb"__launch_bounds__\((\d+)\)[^(]*?(\w+)\(", text)
        number = lambda pattern: int(re.search(pattern, told.stderr + told.stdout).group(1))
        rows.append((name[2].decode(), int(name[1]), number(r"Used (\d+) registers"), number(r"(\d+) bytes spill stores"), source.name))
    for name, units, registers, spilled, file in sorted(rows):
        if everything or spilled:
            print(f"{name[:70]:70} {units:5} units {registers:4} registers {spilled:6} bytes spilled  {file}")
    print(f"{len(rows)} kernels compiled by NVRTC and ptxas, {failed} failed")
    sys.exit(failed > 0)


def compiled(nvrtc, text, options, ptx):
    """Writes the PTX of a kernel, or returns what NVRTC says."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, None, 0, None, None)
    refused = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    ask = (nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog) if refused else (nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
    ask[0](program, ctypes.byref(size))
    told = ctypes.create_string_buffer(size.value)
    ask[1](program, told)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    if refused:
        return told.value.decode()
    ptx.write_bytes(told.value)
    return None


if __name__ == "__main__":
    main()
