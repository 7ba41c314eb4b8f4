"""PyTorch, used wrongly. Needs no device: what it cannot have here is part of the errors."""

import os
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from provoke import case


@case("shape_mismatch")
def matmul(): torch.ones(3, 4) @ torch.ones(5, 6)

@case("shape_mismatch")
def broadcast(): torch.ones(3, 4) + torch.ones(3, 5)

@case("shape_mismatch")
def linear_width(): nn.Linear(10, 2)(torch.ones(4, 11))

@case("shape_mismatch")
def conv_channels(): nn.Conv2d(3, 8, 3)(torch.ones(1, 4, 8, 8))

@case("shape_mismatch")
def conv_too_small(): nn.Conv2d(3, 8, 7)(torch.ones(1, 3, 4, 4))

@case("shape_mismatch")
def view_size(): torch.ones(6).view(4, 2)

@case("shape_mismatch")
def cat_sizes(): torch.cat([torch.ones(2, 3), torch.ones(2, 4)])

@case("shape_mismatch")
def stack_sizes(): torch.stack([torch.ones(2), torch.ones(3)])

@case("shape_mismatch")
def cross_entropy_batch(): nn.functional.cross_entropy(torch.ones(4, 3), torch.zeros(5, dtype=torch.long))

@case("shape_mismatch")
def lstm_input(): nn.LSTM(8, 4)(torch.ones(5, 2, 7))

@case("shape_mismatch")
def attention_heads(): nn.MultiheadAttention(16, 4)(torch.ones(3, 1, 15), torch.ones(3, 1, 15), torch.ones(3, 1, 15))

@case("shape_mismatch")
def einsum_dims(): torch.einsum("ij,jk->ik", torch.ones(2, 3), torch.ones(4, 5))

@case("shape_mismatch")
def expand_size(): torch.ones(3).expand(4)

@case("shape_mismatch")
def layer_norm_shape(): nn.LayerNorm(8)(torch.ones(2, 7))

@case("shape_mismatch")
def batch_collate():
    class Ragged(Dataset):
        def __len__(self): return 4
        def __getitem__(self, i): return torch.ones(i + 1)
    next(iter(DataLoader(Ragged(), batch_size=4)))

@case("dtype_mismatch")
def linear_half(): nn.Linear(4, 4)(torch.ones(2, 4, dtype=torch.float64))

@case("dtype_mismatch")
def matmul_dtypes(): torch.ones(2, 2) @ torch.ones(2, 2, dtype=torch.long)

@case("dtype_mismatch")
def conv_bf16(): nn.Conv1d(1, 1, 1)(torch.ones(1, 1, 4, dtype=torch.bfloat16))

@case("dtype_mismatch")
def embedding_float(): nn.Embedding(4, 2)(torch.ones(3))

@case("dtype_mismatch")
def index_copy_dtype(): torch.zeros(4).index_copy_(0, torch.tensor([0]), torch.ones(1, dtype=torch.float64))

@case("dtype_mismatch")
def cross_entropy_target(): nn.functional.nll_loss(torch.ones(2, 3), torch.ones(2))

@case("dtype_mismatch")
def scatter_dtype(): torch.zeros(4).scatter_(0, torch.tensor([1]), torch.ones(1, dtype=torch.float16))

@case("dtype_mismatch")
def mse_backward_int(): torch.ones(3, dtype=torch.long, requires_grad=True)

@case("device_mismatch")
def meta_and_cpu(): nn.Linear(4, 4, device="meta")(torch.ones(2, 4)) + torch.ones(2, 4).matmul(torch.ones(4, 4, device="meta"))

@case("device_mismatch")
def optimizer_state_device():
    w = torch.ones(2, requires_grad=True); w.grad = torch.ones(2, device="meta")

@case("placeholder_storage")
def meta_to_cpu(): nn.Linear(4, 4, device="meta").to("cpu")

@case("placeholder_storage")
def meta_item(): torch.ones(1, device="meta").item()

@case("placeholder_storage")
def meta_numpy(): torch.ones(1, device="meta").numpy()

@case("unsupported_dtype")
def svd_half(): torch.linalg.svd(torch.ones(2, 2, dtype=torch.float16))

@case("unsupported_dtype")
def inverse_int(): torch.linalg.inv(torch.ones(2, 2, dtype=torch.long))

@case("unsupported_dtype")
def softmax_int(): torch.softmax(torch.ones(3, dtype=torch.long), 0)

@case("unsupported_dtype")
def fft_bf16(): torch.fft.fft(torch.ones(4, dtype=torch.bfloat16))

@case("unsupported_dtype")
def float8_add(): torch.ones(2).to(torch.float8_e4m3fn) + torch.ones(2).to(torch.float8_e4m3fn)

@case("unsupported_dtype")
def cholesky_half(): torch.linalg.cholesky(torch.eye(3, dtype=torch.float16))

@case("unsupported_dtype")
def bool_minus(): torch.ones(2, dtype=torch.bool) - torch.ones(2, dtype=torch.bool)

@case("unsupported_op")
def sparse_conv(): nn.functional.conv2d(torch.ones(1, 1, 3, 3).to_sparse(), torch.ones(1, 1, 1, 1))

@case("unsupported_op")
def sparse_view(): torch.eye(3).to_sparse().view(9)

@case("unsupported_op")
def quantized_add(): torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8) + 1

@case("driver_or_init")
def cuda_tensor(): torch.ones(1, device="cuda")

@case("driver_or_init")
def mps_tensor(): torch.ones(1, device="mps")

@case("driver_or_init")
def xpu_tensor(): torch.ones(1, device="xpu")

@case("driver_or_init")
def nccl_without_gpu():
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29533", RANK="0", WORLD_SIZE="1")
    torch.distributed.init_process_group("nccl")
    torch.distributed.barrier()

@case("driver_or_init")
def load_cuda_checkpoint():
    with tempfile.NamedTemporaryFile() as f:
        data = torch.ones(2); torch.save(data, f.name)
        torch.load(f.name, map_location="cuda")

@case("out_of_memory")
def host_allocation(): torch.empty(1 << 50, dtype=torch.uint8)

@case("model_loading")
def missing_keys(): nn.Linear(2, 2).load_state_dict({"weight": torch.ones(2, 2)})

@case("model_loading")
def wrong_size(): nn.Linear(2, 2).load_state_dict({"weight": torch.ones(3, 2), "bias": torch.ones(2)})

@case("model_loading")
def truncated_file():
    with tempfile.NamedTemporaryFile(suffix=".pt") as f:
        torch.save(torch.ones(1000), f.name)
        data = open(f.name, "rb").read(); open(f.name, "wb").write(data[: len(data) // 2])
        torch.load(f.name)

@case("model_loading")
def not_a_checkpoint():
    with tempfile.NamedTemporaryFile(suffix=".pt") as f:
        f.write(b"hello world, this is no checkpoint"); f.flush()
        torch.load(f.name)

@case("model_loading")
def weights_only_class():
    with tempfile.NamedTemporaryFile(suffix=".pt") as f:
        torch.save(nn.Linear(2, 2), f.name)
        torch.load(f.name, weights_only=True)

@case("model_loading")
def jit_of_garbage():
    with tempfile.NamedTemporaryFile(suffix=".pt") as f:
        f.write(b"no archive"); f.flush()
        torch.jit.load(f.name)

@case("numeric")
def anomaly():
    with torch.autograd.set_detect_anomaly(True):
        x = torch.zeros(1, requires_grad=True); (torch.sqrt(x) * 0).backward()

@case("numeric")
def singular(): torch.linalg.inv(torch.zeros(2, 2))

@case("numeric")
def not_positive_definite(): torch.linalg.cholesky(-torch.eye(3))

@case("numeric")
def multinomial_nan(): torch.multinomial(torch.tensor([float("nan"), 1.0]), 1)

@case("numeric")
def normal_nan(): torch.distributions.Normal(torch.tensor([float("nan")]), 1.0)

@case("numeric")
def clip_nonfinite():
    p = torch.ones(1, requires_grad=True); p.grad = torch.tensor([float("inf")])
    nn.utils.clip_grad_norm_([p], 1.0, error_if_nonfinite=True)

class Breaks(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): raise OSError("cannot identify image file")

class Dies(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): os.kill(os.getpid(), 9)

@case("data_loading")
def worker_raises(): next(iter(DataLoader(Breaks(), num_workers=1)))

@case("data_loading")
def worker_dies(): next(iter(DataLoader(Dies(), num_workers=1)))

@case("data_loading")
def no_samples(): DataLoader([], shuffle=True)

@case("kernel_compile")
def compile_without_compiler():
    os.environ["CXX"] = "/bin/false"
    torch.compile(lambda x: (x * 2 + 1).sin().sum())(torch.ones(64))

@case("kernel_compile")
def extension_does_not_build():
    from torch.utils.cpp_extension import load_inline
    load_inline("broken", "int f( { return 1; }", functions=["f"])

@case("not_device_related")
def graph_break_fullgraph():
    def f(x):
        print("side effect"); return x + 1
    torch.compile(f, fullgraph=True, backend="eager")(torch.ones(2)); open("/no/such/config.yaml")

@case("not_device_related")
def backward_twice():
    x = torch.ones(1, requires_grad=True); y = (x * x).sum(); y.backward(); y.backward()

@case("not_device_related")
def no_grad(): torch.ones(1).backward()

@case("not_device_related")
def leaf_in_place():
    x = torch.ones(1, requires_grad=True); x += 1

@case("not_device_related")
def wrong_argument(): nn.Linear(2, 2, size=3)

@case("not_device_related")
def index_range(): torch.ones(3)[5]

@case("not_device_related")
def unknown_module(): nn.Sequential().no_such_layer

@case("not_device_related")
def empty_optimizer(): torch.optim.SGD([], lr=0.1)
