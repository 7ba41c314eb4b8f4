//! Where an event stands: the loops, branches, `with` blocks and handlers around it, as a tree
//! of contexts that each event points into.

use ruff_python_ast::{ExceptHandlerExceptHandler, Expr};
use ruff_text_size::TextRange;

use super::device::Device;
use super::value::TorchDtype;

/// Index of a context; 0 is the module.
pub(crate) type ContextId = u32;

/// What a `with` item does to the code inside.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum With {
    /// Gradients are off.
    NoGrad,
    /// Gradients are on or off by a run-time value.
    GradByValue,
    /// Mixed precision on this device type, in this dtype.
    Autocast {
        device: Device,
        dtype: TorchDtype,
    },
    /// Tensors are made on another device than the CPU.
    DefaultDevice,
    Other,
}

/// One step outwards.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ContextKind<'a> {
    Module,
    Function(usize),
    Class,
    /// A `for` or `while`; `loader` when it goes over batches, `target` what a `for` assigns.
    Loop {
        loader: bool,
        target: Option<&'a Expr>,
    },
    /// Any branch of an `if`, a conditional expression or a short circuit.
    Branch(&'a Expr),
    With(With),
    Try,
    /// An `except` clause, and the body it watches.
    Handler {
        node: &'a ExceptHandlerExceptHandler,
        tried: TextRange,
    },
    Comprehension,
}

/// A node of the tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context<'a> {
    pub(crate) parent: ContextId,
    pub(crate) kind: ContextKind<'a>,
    pub(crate) range: TextRange,
}
