"""The same GGUF file under Surefoot and under llama.cpp.

    python benches/peers/bytes.py SUREFOOT [--llama-cpp DIR] [--mib 600] [--formats F32,BF16,Q8_0,Q4_0] [--rounds 5]
                                  [--surefoot-options='--precision bf16']

SUREFOOT is the program. A Llama with random weights, of so many MiB in F32, is written in each format;
a file can be given instead (`--model FILE.gguf`). Every run is a process of its own on the same threads,
with one sequence; it reports the time for a prompt and for each token behind it, both without loading, and
its peak memory. Rounds are interleaved; the best of each counts, since others may use the machine; processor time is
shown beside it (llama.cpp's threads also spend it while they wait for each other). Formats that the gguf package can't write
(Q4_K_S, Q4_K_M, Q6_K) are made by llama.cpp. Needs gguf and numpy, and llama.cpp built on the machine that is measured: its programs
llama-bench and llama-quantize in the folder DIR, or else the package llama-cpp-python. With llama-bench, tokens are decoded
behind a prompt of the same length, and the processor time for them is what such a run takes more than one with the prompt alone.
In each round as many threads read memory and do nothing else, so that it can be said which share of a token's time reading the weights once takes. llama.cpp
rounds activations to bf16 where weights are in BF16; Surefoot does so with `--precision bf16`.
"""

import argparse
import concurrent.futures
import json
import os
import platform
import resource
import shlex
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of each thread of `read_rate`

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

PEER = r"""
import json, resource, sys, time
from llama_cpp import Llama
path, prompt, new, threads = sys.argv[1], *map(int, sys.argv[2:5])
model = Llama(path, n_ctx=prompt + new + 8, n_batch=prompt, n_ubatch=prompt, n_threads=threads,
              n_threads_batch=threads, verbose=False)
model.eval([5] * 4); model.reset()
start = time.perf_counter(); model.eval([(5 + at) % 250 for at in range(prompt)])
forward = time.perf_counter() - start
start, spent = time.perf_counter(), time.process_time()
for _ in range(new): model.eval([7])
decode, spent = (time.perf_counter() - start) / new, (time.process_time() - spent) / new
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps(dict(forward=forward, decode=decode, spent=spent, peak=peak)))
"""

# Numbers of llama.cpp's file types.
MADE_BY_LLAMA_CPP = {"Q4_K_S": 14, "Q4_K_M": 15, "Q6_K": 18}
QUANTIZE = r"""
import sys, llama_cpp
params = llama_cpp.llama_model_quantize_default_params()
params.ftype, params.nthread = int(sys.argv[3]), 2
sys.exit(llama_cpp.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), params))
"""


def make(path, mib, form):
    random = np.random.default_rng(0)
    hidden, inner, heads, kv_heads, vocab = 1024, 2816, 16, 4, 4096
    block = 2 * hidden * hidden + 2 * hidden * hidden // 4 + 3 * hidden * inner
    layers = max(1, ((mib << 20) // 4 - 2 * vocab * hidden) // block)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_context_length(4096)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(hidden // heads)
    writer.add_vocab_size(vocab)
    letters = [chr(at) for at in range(33, 127)]
    tokens = letters + ["ab"] + [f"<{at}>" for at in range(vocab - len(letters) - 1)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * vocab)
    writer.add_token_merges(["a b"])
    writer.add_add_bos_token(False)

    def matrix(name, rows, cols):
        weight = random.standard_normal((rows, cols), dtype=np.float32) * np.float32(cols**-0.5)
        raw = None if form == Type.F32 else form
        writer.add_tensor(name, gguf.quants.quantize(weight, form), raw_dtype=raw)

    ones = np.ones(hidden, dtype=np.float32)
    matrix("token_embd.weight", vocab, hidden)
    for at in range(layers):
        writer.add_tensor(f"blk.{at}.attn_norm.weight", ones)
        matrix(f"blk.{at}.attn_q.weight", hidden, hidden)
        matrix(f"blk.{at}.attn_k.weight", hidden // heads * kv_heads, hidden)
        matrix(f"blk.{at}.attn_v.weight", hidden // heads * kv_heads, hidden)
        matrix(f"blk.{at}.attn_output.weight", hidden, hidden)
        writer.add_tensor(f"blk.{at}.ffn_norm.weight", ones)
        matrix(f"blk.{at}.ffn_gate.weight", inner, hidden)
        matrix(f"blk.{at}.ffn_up.weight", inner, hidden)
        matrix(f"blk.{at}.ffn_down.weight", hidden, inner)
    writer.add_tensor("output_norm.weight", ones)
    matrix("output.weight", vocab, hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def bench(arguments, path):
    """llama.cpp by its own benchmark: a run for the prompt, and one for the tokens behind it."""
    def run(*options):
        command = [os.path.join(arguments.llama_cpp, "llama-bench"), "-m", path, "-t", str(arguments.threads), "-r", "1",
                   "-b", str(arguments.prompt), "-ub", str(arguments.prompt), "-o", "json", *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            sys.exit(f"{' '.join(command)} failed")
        return json.loads(output)[0]["avg_ns"] / 1e9, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024

    forward, forward_spent, _ = run("-p", str(arguments.prompt), "-n", "0", "--no-warmup")
    decode, spent, peak = run("-p", "0", "-n", str(arguments.new), "-d", str(arguments.prompt), "--no-warmup")
    return dict(forward=forward, forward_spent=forward_spent, decode=decode / arguments.new,
                spent=(spent - forward_spent) / arguments.new, peak=peak)


def peer(arguments, path):
    if arguments.llama_cpp:
        return bench(arguments, path)
    command = [sys.executable, "-c", PEER, path, str(arguments.prompt), str(arguments.new),
               str(arguments.threads)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.strip().splitlines()[-1])


def surefoot(arguments, path):
    environment = dict(os.environ, RAYON_NUM_THREADS=str(arguments.threads))

    def run(prompt, count):
        """With `seconds` less those of loading what stays."""
        command = [arguments.surefoot, "generate", path, "!" * prompt, "--max-tokens", str(count), "--json",
                   *shlex.split(arguments.surefoot_options)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            sys.exit(done.stderr)
        document = json.loads(done.stdout)
        document["spent"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        document["seconds"] -= document["load_seconds"]
        return document

    forward, all_of_them = run(arguments.prompt, 1), run(arguments.prompt, 1 + arguments.new)
    return dict(forward=forward["seconds"], forward_spent=forward["spent"], all=all_of_them["seconds"],
                all_spent=all_of_them["spent"], peak=all_of_them["peak_bytes"])


def read_rate(arguments):
    """Bytes a second that the threads read together: dot products of long vectors with themselves."""
    vectors = [np.ones(48 << 20, dtype=np.float32) for _ in range(arguments.threads)]
    with concurrent.futures.ThreadPoolExecutor(arguments.threads) as pool:
        best = 0.0
        for _ in range(5):
            start = time.perf_counter()
            list(pool.map(lambda vector: np.dot(vector, vector), vectors))
            best = max(best, sum(vector.nbytes for vector in vectors) / (time.perf_counter() - start))
    return best


def best_of(arguments, rounds):
    """The least of each figure; what is the difference of two runs is that of their best ones."""
    best = {key: min(r[key] for r in rounds) for key in rounds[0]}
    if "all" in best:
        best["decode"] = (best["all"] - best["forward"]) / arguments.new
        best["spent"] = (best["all_spent"] - best["forward_spent"]) / arguments.new
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("surefoot")
    parser.add_argument("--llama-cpp", help="the folder of llama-bench and llama-quantize; llama-cpp-python is used otherwise")
    parser.add_argument("--surefoot-options", default="", help="options for `surefoot generate`, as one text")
    parser.add_argument("--model", help="a GGUF file")
    parser.add_argument("--mib", type=int, default=600)
    parser.add_argument("--formats", default="F32,BF16,Q8_0,Q4_0")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--new", type=int, default=96)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {arguments.threads} threads, "
          f"prompt of {arguments.prompt} tokens, {arguments.new} tokens behind it")
    if arguments.model:
        return compare(arguments, os.path.basename(arguments.model), arguments.model)
    for name in arguments.formats.split(","):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.gguf")
            if name in MADE_BY_LLAMA_CPP:
                make(path + ".f32", arguments.mib, Type.F32)
                command = [sys.executable, "-c", QUANTIZE, path + ".f32", path, str(MADE_BY_LLAMA_CPP[name])]
                if arguments.llama_cpp:
                    command = [os.path.join(arguments.llama_cpp, "llama-quantize"), path + ".f32", path, name]
                made = subprocess.run(command, capture_output=True, text=True)
                if made.returncode:
                    sys.exit(made.stderr)
                os.remove(path + ".f32")
            else:
                make(path, arguments.mib, Type[name])
            compare(arguments, name, path)


def compare(arguments, name, path):
    sides = {"llama.cpp": peer, "surefoot": surefoot}
    results = {side: [] for side in sides}
    rate = 0.0
    for _ in range(arguments.rounds):
        for side, run in sides.items():
            results[side].append(run(arguments, path))
        rate = max(rate, read_rate(arguments))
    best = {side: best_of(arguments, rounds) for side, rounds in results.items()}
    for side, numbers in best.items():
        print(f"{name:5} {os.path.getsize(path) >> 20} MiB {side:10} prompt {numbers['forward']:.2f} s  "
              f"({numbers.get('forward_spent', 0):.2f} s of processors)  "
              f"decode {numbers['decode'] * 1e3:.1f} ms/token ({numbers['spent'] * 1e3:.1f} ms of processors)  "
              f"peak {numbers['peak'] / 2**20:.0f} MiB", flush=True)
    reading = os.path.getsize(path) / rate
    print(f"{name:5} reading {rate / 1e9:.1f} GB/s: {reading * 1e3:.1f} ms for the file, "
          + ", ".join(f"{100 * reading / numbers['decode']:.0f} % of {side}'s token" for side, numbers in best.items()))
    ratio = lambda key: best["llama.cpp"][key] / best["surefoot"][key]
    print(f"{name:5} surefoot is {ratio('forward'):.2f} x as fast for the prompt, "
          f"{ratio('decode'):.2f} x in decode ({ratio('spent'):.2f} x by processor time), peak {1 / ratio('peak'):.2f} x")


if __name__ == "__main__":
    main()
