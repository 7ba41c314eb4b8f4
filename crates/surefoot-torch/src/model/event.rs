//! What happens in a function, in the order in which it runs: the rules read these.

use std::rc::Rc;

use ruff_python_ast::{Expr, ExprBinOp, ExprCall, Operator};
use ruff_text_size::TextRange;

use super::context::ContextId;
use super::value::{State, Value};

/// A value and the state it was in at that moment.
#[derive(Clone, Debug)]
pub(crate) struct Snap<'a> {
    pub(crate) value: Value<'a>,
    pub(crate) state: State,
}

/// What is called.
#[derive(Clone, Debug)]
pub(crate) enum Target<'a> {
    /// An imported dotted name.
    Path(Rc<str>),
    /// A method; `place` is the receiver's text if it is a plain dotted name.
    Method {
        name: &'a str,
        place: Option<&'a str>,
    },
    /// An object itself: `model(x)`.
    Object,
    /// A function of this file.
    Local(usize),
    /// A class of this file.
    Class(usize),
    /// A name that resolves to nothing known: a builtin, a parameter.
    Name(&'a str),
    Unknown,
}

/// A call.
#[derive(Clone, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) node: &'a ExprCall,
    pub(crate) target: Target<'a>,
    /// The receiver of a method, or the object called.
    pub(crate) receiver: Snap<'a>,
    pub(crate) args: Vec<Snap<'a>>,
    pub(crate) keywords: Vec<(Option<&'a str>, Snap<'a>)>,
    pub(crate) result: Snap<'a>,
    /// Whether it is a statement of its own, its result dropped.
    pub(crate) dropped: bool,
}

impl<'a> Call<'a> {
    pub(crate) fn path(&self) -> Option<&str> {
        match &self.target {
            Target::Path(path) => Some(path),
            _ => None,
        }
    }

    pub(crate) fn method(&self) -> Option<&'a str> {
        match self.target {
            Target::Method { name, .. } => Some(name),
            _ => None,
        }
    }

    /// The receiver's dotted name.
    pub(crate) fn place(&self) -> Option<&'a str> {
        match self.target {
            Target::Method { place, .. } => place,
            _ => None,
        }
    }

    pub(crate) fn keyword(&self, name: &str) -> Option<&Snap<'a>> {
        self.keywords.iter().find(|(key, _)| *key == Some(name)).map(|(_, snap)| snap)
    }

    /// The argument given by this keyword, or else by this position.
    pub(crate) fn argument(&self, position: usize, name: &str) -> Option<&Snap<'a>> {
        self.keyword(name).or_else(|| self.args.get(position))
    }

    /// Whether it has `**kwargs` or `*args`, so that not every argument is seen.
    pub(crate) fn is_open(&self) -> bool {
        self.keywords.iter().any(|(key, _)| key.is_none())
            || self.node.arguments.args.iter().any(Expr::is_starred_expr)
    }
}

/// What happened.
#[derive(Clone, Debug)]
pub(crate) enum EventKind<'a> {
    Call(Box<Call<'a>>),
    Binary {
        node: &'a ExprBinOp,
        left: Snap<'a>,
        right: Snap<'a>,
    },
    /// `place = value`, one for each target with a dotted name.
    Assign {
        place: &'a str,
        target: &'a Expr,
        node: &'a Expr,
        value: Snap<'a>,
    },
    /// `place += value`.
    Augment {
        place: &'a str,
        op: Operator,
        node: &'a Expr,
        value: Snap<'a>,
        target: Snap<'a>,
    },
}

/// One event.
#[derive(Clone, Debug)]
pub(crate) struct Event<'a> {
    pub(crate) range: TextRange,
    pub(crate) context: ContextId,
    pub(crate) kind: EventKind<'a>,
}

impl<'a> Event<'a> {
    pub(crate) fn call(&self) -> Option<&Call<'a>> {
        match &self.kind {
            EventKind::Call(call) => Some(call),
            _ => None,
        }
    }
}
