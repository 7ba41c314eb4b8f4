//! The rules: what error messages of many frameworks mean, as tables.
//!
//! One file per family of kinds; each is a list of [`TextRule`]s. A rule has patterns (regular
//! expressions, ASCII, without case, within one line), words that forbid it, and what to tell
//! the user. The order of the tables doesn't matter; [`Weight`] does.

mod advice;
mod codes;
mod compile;
mod compute;
mod device;
mod files;
mod guarded;
mod lines;
mod memory;
mod mismatch;
mod ordinary;
mod phrasings;
mod shape;
mod topics;
mod type_names;

pub(super) use advice::{advice_for, cause_of};
pub(super) use compile::{Match, RuleSet, about, named, phrased};
pub(super) use lines::begins_message;

use surefoot_core::fault::FaultKind;

/// How much a match says. Heavier beats lighter, so that an error code beats a turn of phrase,
/// and a text that uses another kind's words in its own sense beats both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Weight {
    /// Words that go with this kind more often than with others.
    Hints,
    /// The usual words for this kind.
    Usual,
    /// An error code or a sentence that names the fault.
    Names,
    /// Another kind's words in another sense: a Triton "OutOfMemoryError: out of resource" is a
    /// kernel that doesn't fit; "no space left on device" is a disk.
    Overrides,
}

/// One thing that messages say.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextRule {
    pub(super) kind: FaultKind,
    pub(super) weight: Weight,
    /// Any of these in one line.
    any: &'static [&'static str],
    /// None of these in the same line.
    unless: &'static [&'static str],
    /// At least one of these anywhere in the text (if there are any).
    with: &'static [&'static str],
    /// None of these anywhere in the text.
    without: &'static [&'static str],
    /// A last look at the matched words, for what a pattern can't say.
    check: Option<fn(&str) -> bool>,
    /// Stack frames count too.
    frames: bool,
    /// What happened, where the kind's own sentence is too general.
    pub(super) cause: &'static str,
    /// What to change, before the kind's own advice.
    pub(super) advice: &'static [&'static str],
}

const fn rule(kind: FaultKind, weight: Weight, any: &'static [&'static str]) -> TextRule {
    TextRule {
        kind,
        weight,
        any,
        unless: &[],
        with: &[],
        without: &[],
        check: None,
        frames: false,
        cause: "",
        advice: &[],
    }
}

impl TextRule {
    const fn unless(mut self, unless: &'static [&'static str]) -> Self {
        self.unless = unless;
        self
    }

    const fn with(mut self, with: &'static [&'static str]) -> Self {
        self.with = with;
        self
    }

    const fn without(mut self, without: &'static [&'static str]) -> Self {
        self.without = without;
        self
    }

    const fn check(mut self, check: fn(&str) -> bool) -> Self {
        self.check = Some(check);
        self
    }

    const fn in_frames(mut self) -> Self {
        self.frames = true;
        self
    }

    const fn cause(mut self, cause: &'static str) -> Self {
        self.cause = cause;
        self
    }

    const fn advice(mut self, advice: &'static [&'static str]) -> Self {
        self.advice = advice;
        self
    }
}

/// Every table but that of the turns of phrase, which is asked when these say nothing.
const TABLES: &[&[TextRule]] = &[
    memory::RULES,
    mismatch::RULES,
    shape::RULES,
    device::RULES,
    compute::RULES,
    files::RULES,
    codes::RULES,
    ordinary::RULES,
];

/// Words before a phrase that make it advice or news instead of an error: "to avoid running out
/// of memory". They don't weaken error codes, only what people write in words.
const HEDGES: &str = r"\b(avoid(s|ing)?|prevents?|preventing|without (running|getting)|in case of|if (you|it|there|this|your|an?)\b|instead of|reduces? the (risk|chance)|fix(es|ed|ing)?|handles?|handling|handler for|detects?|detection of|recover(s|ed|y)? from|resolved|protects? (from|against)|simulat(e|es|ed|ing)|no more|never|not an?|tests? (for|that)|how to|what (is|does)|when you see|in the event of|to debug|documentation (on|of|for)|see also)\b[^.;:!?]{0,48}$";

/// Words after a phrase that do the same: "OOM killer is disabled".
const DISCLAIMERS: &str = r"^.{0,24}\b(is|was|are|has been|have been|were) (now )?(disabled|handled|enabled|fixed|resolved|avoided|ignored safely|not (the|an?) (issue|problem|error)|deprecated|supported|available|unlikely|set|registered|documented)\b|^.{0,12}\b(handler|handling|protection|detection|checks?|tests?|guide|documentation|docs|faq|section|policy|score|killer is|mitigation)\b";

/// Where messages come from: the first of these whose words occur.
const FRAMEWORKS: &[(&str, &[&str])] = &[
    ("candle", &["candle", "mistral.rs"]),
    ("cudarc", &["cudarc", "drivererror(", "cublaserror("]),
    ("burn", &["cubecl", "burn-", "burn_", "=== tensor operation error", "cubecount"]),
    ("wgpu", &["wgpu", "naga", "gpuadapter", "gpudevice", "webgpu"]),
    ("mlx", &["mlx", "[metal::malloc]", "[metal]", "malloc_or_wait"]),
    ("jax", &["jaxlib", "xlaruntimeerror", "jax.", "jax_", "xla_bridge", "/xla/"]),
    ("tensorflow", &["tensorflow", "resourceexhaustederror"]),
    ("onnxruntime", &["onnxruntime", "bfcarena"]),
    ("llama.cpp", &["ggml", "llama_", "gguf"]),
    ("triton", &["triton"]),
    ("rocm", &["hiperror", "hip error", "rocm", "hsa_status", "miopen", "gpu node-", "hipblas"]),
    (
        "pytorch-mps",
        &[
            "mps backend",
            "mps device",
            "mps tensor",
            "pytorch_mps",
            "mps:0",
            "mpsfloattype",
            "native/mps",
        ],
    ),
    (
        "metal",
        &[
            "mtlcommandbuffer",
            "kiogpu",
            "mtllibrary",
            "metal error",
            "mpsgraph",
            "mpsndarray",
            "ioaf code",
        ],
    ),
    ("vulkan", &["vk_error", "vulkan", "vkqueue", "vk::"]),
    (
        "pytorch-cuda",
        &[
            "torch.cuda",
            "cuda error:",
            "cuda out of memory",
            "cuda runtime error",
            "thcudacheck",
            "torch_use_cuda_dsa",
            "cuda:0",
            "cuda:1",
        ],
    ),
    ("cuda", &["cuda_error", "cublas", "cudnn", "cudaerror", "nvidia", "nvrtc"]),
    ("pytorch", &["torch", "dataloader", "aten::", "state_dict"]),
    ("numpy", &["numpy"]),
];
