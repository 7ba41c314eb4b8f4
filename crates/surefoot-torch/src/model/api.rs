//! What the names of PyTorch and its neighbours stand for.

use super::value::TorchDtype;

/// One spelling for names that PyTorch offers in several places.
pub(crate) fn canonical(path: &str) -> &str {
    match path {
        "torch.amp.autocast" | "torch.amp.autocast_mode.autocast" => "torch.autocast",
        "torch.autograd.no_grad" => "torch.no_grad",
        "torch.autograd.inference_mode" => "torch.inference_mode",
        "torch.autograd.set_grad_enabled" => "torch.set_grad_enabled",
        "torch.cuda.amp.autocast_mode.autocast" => "torch.cuda.amp.autocast",
        "torch.double" => "torch.float64",
        "torch.half" => "torch.float16",
        "torch.float" => "torch.float32",
        "torch.cuda.OutOfMemoryError" => "torch.OutOfMemoryError",
        "torch.utils.data.dataloader.DataLoader" => "torch.utils.data.DataLoader",
        "torch.utils.data.dataset.Dataset" => "torch.utils.data.Dataset",
        "torch.nn.modules.Module" | "torch.nn.modules.module.Module" => "torch.nn.Module",
        other => other,
    }
}

/// The dtype a dotted name stands for.
pub(crate) fn dtype(path: &str) -> Option<TorchDtype> {
    Some(match path {
        "torch.float64" | "torch.double" => TorchDtype::F64,
        "torch.float32" | "torch.float" => TorchDtype::F32,
        "torch.float16" | "torch.half" => TorchDtype::F16,
        "torch.bfloat16" => TorchDtype::Bf16,
        "torch.int8" | "torch.int16" | "torch.int32" | "torch.int64" | "torch.long"
        | "torch.int" | "torch.short" | "torch.uint8" | "torch.bool" => TorchDtype::Other,
        _ => return None,
    })
}

/// What calling a dotted name does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    /// Makes a tensor; false: its storage is never written.
    Make {
        filled: bool,
    },
    /// Makes a tensor like another.
    MakeLike {
        filled: bool,
    },
    /// `torch.tensor`, `torch.as_tensor`.
    FromData,
    FromNumpy,
    /// The old constructors: sizes or data.
    OldConstructor,
    Device,
    Module,
    Criterion,
    Optimizer,
    Scheduler,
    Loader,
    Dataset,
    Scaler,
    /// Wraps a model and gives it back.
    Wrapper,
    /// Spreads a model over devices.
    Parallel,
    /// A function of tensors.
    Function,
    /// Makes a NumPy array of float64 unless told otherwise.
    Float64Array,
    Array,
    /// Shows progress over what it is given.
    Progress,
    Unknown,
}

/// Looks up a dotted name.
pub(crate) fn lookup(path: &str) -> Api {
    let Some((home, last)) = path.rsplit_once('.') else {
        return if path == "tqdm" { Api::Progress } else { Api::Unknown };
    };
    let class = last.starts_with(|c: char| c.is_ascii_uppercase());
    match home {
        "torch" => torch(last),
        "torch.nn" if last == "DataParallel" => Api::Parallel,
        "torch.nn" if last == "Parameter" => Api::Unknown,
        "torch.nn" if last.ends_with("Loss") => Api::Criterion,
        "torch.nn" if class => Api::Module,
        "torch.nn.parallel" if class => Api::Parallel,
        "torch.nn.functional" => Api::Function,
        "torch.optim" if class => Api::Optimizer,
        "torch.optim.lr_scheduler" if class => Api::Scheduler,
        "torch.utils.data" if last == "DataLoader" => Api::Loader,
        "torch.utils.data" if class => Api::Dataset,
        "torch.amp" | "torch.cuda.amp" if last == "GradScaler" => Api::Scaler,
        "torch.cuda" if last.ends_with("Tensor") => Api::Unknown,
        "torch.hub" if last == "load" => Api::Unknown,
        "torchvision.datasets" if class => Api::Dataset,
        "numpy.random" if matches!(last, "rand" | "randn" | "random" | "normal" | "uniform") => {
            Api::Float64Array
        }
        "numpy" if matches!(last, "zeros" | "ones" | "linspace" | "full" | "eye" | "empty") => {
            Api::Float64Array
        }
        "numpy" => Api::Array,
        "tqdm" | "tqdm.auto" | "tqdm.notebook" | "tqdm.rich" if last == "tqdm" => Api::Progress,
        "timm" if last == "create_model" => Api::Module,
        home if home.starts_with("torchvision.models") && !last.ends_with("Weights") => Api::Module,
        home if home.starts_with("transformers.")
            && last == "from_pretrained"
            && home.contains("Model") =>
        {
            Api::Module
        }
        _ => Api::Unknown,
    }
}

fn torch(last: &str) -> Api {
    match last {
        "empty" | "empty_strided" | "empty_permuted" => Api::Make { filled: false },
        "zeros" | "ones" | "rand" | "randn" | "randint" | "randperm" | "full" | "arange"
        | "linspace" | "logspace" | "eye" | "range" => Api::Make { filled: true },
        "empty_like" => Api::MakeLike { filled: false },
        "zeros_like" | "ones_like" | "rand_like" | "randn_like" | "full_like" | "randint_like" => {
            Api::MakeLike { filled: true }
        }
        "tensor" | "as_tensor" => Api::FromData,
        "from_numpy" => Api::FromNumpy,
        "Tensor" | "FloatTensor" | "DoubleTensor" | "HalfTensor" | "LongTensor" | "IntTensor" => {
            Api::OldConstructor
        }
        "device" => Api::Device,
        "compile" => Api::Wrapper,
        "load" | "save" | "manual_seed" | "is_tensor" | "is_grad_enabled" | "no_grad"
        | "autocast" | "inference_mode" | "set_grad_enabled" | "Generator" | "finfo" | "iinfo"
        | "Size" | "numel" | "equal" | "allclose" | "is_floating_point" => Api::Unknown,
        _ => Api::Function,
    }
}

/// Functions that need all their tensors on one device.
pub(crate) fn mixes(path: &str) -> bool {
    match path.rsplit_once('.') {
        Some(("torch.nn.functional", last)) => {
            last.ends_with("loss")
                || last.ends_with("cross_entropy")
                || last.ends_with("cross_entropy_with_logits")
                || matches!(
                    last,
                    "kl_div"
                        | "linear"
                        | "conv1d"
                        | "conv2d"
                        | "conv3d"
                        | "bilinear"
                        | "cosine_similarity"
                        | "pairwise_distance"
                        | "scaled_dot_product_attention"
                )
        }
        Some(("torch", last)) => matches!(
            last,
            "matmul"
                | "mm"
                | "bmm"
                | "mv"
                | "dot"
                | "add"
                | "sub"
                | "mul"
                | "div"
                | "cat"
                | "stack"
                | "concat"
                | "hstack"
                | "vstack"
                | "einsum"
                | "addmm"
                | "baddbmm"
                | "outer"
                | "cdist"
                | "cross"
                | "inner"
                | "maximum"
                | "minimum"
        ),
        _ => false,
    }
}
