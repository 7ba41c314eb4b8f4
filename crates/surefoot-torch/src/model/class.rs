//! Classes written in the file: is it a model, does it move its own inputs, does `eval()` matter.

use ruff_python_ast::{Stmt, StmtClassDef};
use ruff_text_size::Ranged;

use super::value::Value;
use super::walk::Walker;

/// A class of the file.
#[derive(Debug)]
pub(crate) struct Class<'a> {
    pub(crate) node: &'a StmtClassDef,
    /// Derives from `nn.Module`.
    pub(crate) is_model: bool,
    /// Derives from a `Dataset` of torch.
    pub(crate) is_dataset: bool,
    /// Derives from something else that came from elsewhere.
    pub(crate) has_foreign_base: bool,
    /// Has a `forward`: a model by its bases or by its habits.
    pub(crate) has_forward: bool,
    /// Says `.to(`, `.cuda(` or `device` somewhere, so its inputs may be moved inside.
    pub(crate) touches_devices: bool,
    /// A loss: no weights, so it has no device of its own.
    pub(crate) is_criterion: bool,
    /// Has weights of its own, as far as its text shows.
    pub(crate) has_weights: bool,
    /// Uses a layer that behaves differently while training.
    pub(crate) has_modes: bool,
}

/// Words of layers that `eval()` changes, or that stand for submodules that can't be seen.
const MODE_WORDS: [&str; 9] = [
    "ropout",
    "Norm",
    "DropPath",
    "RReLU",
    "self.training",
    "Transformer",
    "from_pretrained",
    "resnet",
    "models.",
];

/// Words of layers that have weights.
const WEIGHT_WORDS: [&str; 8] =
    ["Linear(", "Conv", "Embedding", "Parameter(", "LSTM", "GRU", "Attention", "Norm"];

impl<'a> Walker<'a> {
    /// Reads what a class is from its bases and its text.
    pub(super) fn describe_class(&mut self, node: &'a StmtClassDef) -> Class<'a> {
        let text = &self.facts.source[node.range()];
        let has = |needle: &str| memchr::memmem::find(text.as_bytes(), needle.as_bytes()).is_some();
        let mut class = Class {
            node,
            is_model: false,
            is_dataset: false,
            has_foreign_base: false,
            has_forward: has("def forward"),
            touches_devices: has(".to(") || has(".cuda(") || has("device"),
            is_criterion: node.name.as_str().ends_with("Loss"),
            has_weights: WEIGHT_WORDS.iter().any(|word| has(word)),
            has_modes: MODE_WORDS.iter().any(|word| has(word)),
        };
        for base in node.arguments.iter().flat_map(|arguments| &arguments.args) {
            match self.eval(base) {
                Value::Path(path) => match &*path {
                    "torch.nn.Module" | "torch.nn.Sequential" | "torch.nn.ModuleList" => {
                        class.is_model = true;
                    }
                    path if path.starts_with("torch.nn.")
                        || path.starts_with("torchvision.models.") =>
                    {
                        class.is_model = true;
                        class.has_modes = true;
                        class.is_criterion |= path.ends_with("Loss");
                    }
                    path if path.starts_with("torch.utils.data.") => class.is_dataset = true,
                    "object" | "abc.ABC" => {}
                    _ => class.has_foreign_base = true,
                },
                Value::Class(index) => {
                    if let Some(base) = self.facts.classes.get(index) {
                        class.is_model |= base.is_model;
                        class.is_dataset |= base.is_dataset;
                        class.is_criterion |= base.is_criterion;
                        class.has_weights |= base.has_weights;
                        class.has_foreign_base |= base.has_foreign_base;
                        class.touches_devices |= base.touches_devices;
                        class.has_modes |= base.has_modes;
                    }
                }
                _ => class.has_foreign_base = true,
            }
        }
        class
    }
}

/// The `self.…` names assigned in methods other than `__init__`: their value can't be relied on.
pub(super) fn reassigned_attributes(class: &StmtClassDef) -> Vec<&str> {
    let mut names = Vec::new();
    for stmt in &class.body {
        if let Stmt::FunctionDef(method) = stmt
            && method.name.as_str() != "__init__"
        {
            collect(&method.body, &mut names);
        }
    }
    names
}

fn collect<'a>(body: &'a [Stmt], names: &mut Vec<&'a str>) {
    for stmt in body {
        match stmt {
            Stmt::Assign(assign) => {
                for target in &assign.targets {
                    attribute_names(target, names);
                }
            }
            Stmt::AnnAssign(assign) => attribute_names(&assign.target, names),
            Stmt::AugAssign(assign) => attribute_names(&assign.target, names),
            Stmt::For(stmt) => {
                collect(&stmt.body, names);
                collect(&stmt.orelse, names);
            }
            Stmt::While(stmt) => collect(&stmt.body, names),
            Stmt::With(stmt) => collect(&stmt.body, names),
            Stmt::If(stmt) => {
                collect(&stmt.body, names);
                stmt.elif_else_clauses.iter().for_each(|clause| collect(&clause.body, names));
            }
            Stmt::Try(stmt) => {
                collect(&stmt.body, names);
                collect(&stmt.orelse, names);
                collect(&stmt.finalbody, names);
            }
            _ => {}
        }
    }
}

fn attribute_names<'a>(target: &'a ruff_python_ast::Expr, names: &mut Vec<&'a str>) {
    use ruff_python_ast::Expr;
    match target {
        Expr::Attribute(attribute) => names.push(attribute.attr.as_str()),
        Expr::Tuple(tuple) => tuple.elts.iter().for_each(|elt| attribute_names(elt, names)),
        Expr::List(list) => list.elts.iter().for_each(|elt| attribute_names(elt, names)),
        _ => {}
    }
}
