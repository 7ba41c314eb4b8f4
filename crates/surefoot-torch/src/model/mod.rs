//! The semantic model: one walk over a parsed file that resolves imports, follows values through
//! each function and writes down what happens as [`event::Event`]s for the rules to read.
//!
//! Order: the module's body runs first; then the functions found in it, each with the names of
//! the scope around it as they stand at that scope's end; then the functions inside those. In a
//! class, `__init__` runs before the other methods and hands its `self.…` names on. Branches are
//! walked separately and joined: what differs between them becomes unknown. A loop's body is walked
//! once, as its first turn, and joined with not having run. Nothing is followed into calls.

pub(crate) mod api;
mod assign;
mod calls;
mod class;
pub(crate) mod context;
mod define;
pub(crate) mod device;
mod eval;
pub(crate) mod event;
mod flow;
mod join;
mod make;
pub(crate) mod methods;
pub(crate) mod questions;
mod roles;
pub(crate) mod value;
mod walk;

use ruff_python_ast::{Expr, ModModule, Stmt, StmtFunctionDef};
use ruff_text_size::TextRange;
use rustc_hash::FxHashSet;

pub(crate) use class::Class;
use context::{Context, ContextId};
use event::Event;
use value::Object;

/// A function of the file, or its module body (index 0).
#[derive(Debug)]
pub(crate) struct Function<'a> {
    pub(crate) name: &'a str,
    pub(crate) node: Option<&'a StmtFunctionDef>,
    pub(crate) class: Option<usize>,
    /// Decorated with `no_grad`, `inference_mode` or the like.
    pub(crate) no_grad: bool,
    /// The function it is written in.
    pub(crate) parent: usize,
    pub(crate) context: ContextId,
    pub(crate) events: Vec<Event<'a>>,
    /// Tests that must have held for what follows: `assert …`, `if …: return`.
    pub(crate) guards: Vec<&'a Expr>,
}

/// What the text of the file mentions at all: cheap questions that decide for the whole file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mentions {
    /// MPS as a device that may be chosen.
    pub(crate) mps: bool,
    /// A changed default device, so that a tensor made without one may be anywhere.
    pub(crate) default_device: bool,
    /// A library that moves, scales and zeroes on the program's behalf.
    pub(crate) framework: bool,
    pub(crate) scaler: bool,
    pub(crate) zero_grad: bool,
    pub(crate) eval_call: bool,
    /// Devices other than the CPU.
    pub(crate) accelerator: bool,
}

impl Mentions {
    fn of(source: &str) -> Self {
        let has =
            |needle: &str| memchr::memmem::find(source.as_bytes(), needle.as_bytes()).is_some();
        Self {
            mps: mentions_mps(source),
            default_device: has("set_default_device") || has("set_default_tensor_type"),
            framework: has("accelerate") && has("Accelerator(")
                || has("lightning")
                || has("deepspeed")
                || has("Fabric("),
            scaler: has("Scaler") || has("scaler"),
            zero_grad: has("zero_grad") || has(".grad = None") || has(".grad.zero_"),
            eval_call: has(".eval()") || has(".train(False)") || has(".train(mode=False)"),
            accelerator: has("cuda") || has("mps") || has("device"),
        }
    }
}

/// Whether a file names MPS as a device.
pub(crate) fn mentions_mps(source: &str) -> bool {
    ["\"mps\"", "'mps'", "backends.mps", "torch.mps"]
        .iter()
        .any(|word| memchr::memmem::find(source.as_bytes(), word.as_bytes()).is_some())
}

/// Everything the rules may ask about one file.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) source: &'a str,
    /// The statements of the file.
    pub(crate) module: &'a [Stmt],
    pub(crate) contexts: Vec<Context<'a>>,
    pub(crate) objects: Vec<Object<'a>>,
    pub(crate) functions: Vec<Function<'a>>,
    pub(crate) classes: Vec<Class<'a>>,
    pub(crate) mentions: Mentions,
    /// Imports of torch and its family, and the function each is written in.
    pub(crate) torch_imports: Vec<(TextRange, usize)>,
    /// What devices that differ by branch are called, by symbol.
    pub(crate) chosen: Vec<(u32, &'a str)>,
    /// The functions of the file that are called where gradients are off.
    pub(crate) called_without_gradients: FxHashSet<usize>,
    /// The functions of the file that are called in a loop.
    pub(crate) called_in_loops: FxHashSet<usize>,
    /// What the module calls torch, if it imports it whole.
    pub(crate) torch_name: Option<&'a str>,
}

impl<'a> Facts<'a> {
    /// Walks a parsed module.
    pub(crate) fn gather(source: &'a str, module: &'a ModModule) -> Self {
        walk::Walker::new(source, &module.body, Mentions::of(source)).run(module)
    }
}
