//! SF024 and SF025: `torch.load` that depends on where, and by whom, the file was written.

use ruff_python_ast::visitor::{Visitor, walk_expr, walk_stmt};
use ruff_python_ast::{Expr, ExprCall, Stmt};
use ruff_text_size::{Ranged, TextRange};

use super::{CheckRule, Findings, fix};
use crate::finding::{Fix, Severity};
use crate::model::event::{Call, Event};
use crate::model::{Facts, Function};

pub(super) static DEVICE: CheckRule = CheckRule {
    code: "SF024",
    name: "load-without-map-location",
    severity: Severity::Warning,
    summary: "`torch.load` without `map_location` fails where the saving device is missing",
    fixable: true,
    page: include_str!("pages/SF024.md"),
    check: device,
};

pub(super) static PICKLE: CheckRule = CheckRule {
    code: "SF025",
    name: "load-without-weights-only",
    severity: Severity::Warning,
    summary: "`torch.load` without `weights_only` runs code from the file in older versions",
    fixable: true,
    page: include_str!("pages/SF025.md"),
    check: pickle,
};

fn loads<'f, 'a>(
    facts: &'f Facts<'a>,
) -> impl Iterator<Item = (&'f Function<'a>, &'f Event<'a>, &'f Call<'a>)> {
    facts.calls().filter(|(_, _, call)| call.path() == Some("torch.load") && !call.is_open())
}

fn device(facts: &Facts<'_>, findings: &mut Findings) {
    for (function, event, call) in loads(facts) {
        if call.argument(1, "map_location").is_some() {
            continue;
        }
        let finding = findings.add(
            &DEVICE,
            event.range,
            "without `map_location` the tensors go back to the device they were saved from"
                .to_owned(),
            "give `map_location=\"cpu\"` (load_state_dict copies from there), or the device in use",
        );
        if is_moved_afterwards(facts, function, call) {
            finding.fix = argument(call, "Load to the CPU", "map_location=\"cpu\"");
        }
    }
}

fn pickle(facts: &Facts<'_>, findings: &mut Findings) {
    for (function, event, call) in loads(facts) {
        if call.keyword("weights_only").is_some()
            || call.keyword("pickle_module").is_some()
            || call.args.len() > 2
        {
            continue;
        }
        let finding = findings.add(
            &PICKLE,
            event.range,
            "before PyTorch 2.6 this unpickles whatever the file holds, code included".to_owned(),
            "give `weights_only=True`, or `weights_only=False` for a file you trust",
        );
        if is_state_dict(facts, function, call) {
            finding.fix = argument(call, "Load weights only", "weights_only=True");
        }
    }
}

/// Whether all that is loaded goes into `load_state_dict`: then it is a state dict, which holds
/// nothing but weights.
fn is_state_dict(facts: &Facts<'_>, function: &Function<'_>, call: &Call<'_>) -> bool {
    let uses = uses(facts, function, call);
    !uses.is_empty() && uses.iter().all(|used| *used == Use::WholeState)
}

/// Whether all that is loaded is copied or moved to where it belongs, wherever it was loaded to.
fn is_moved_afterwards(facts: &Facts<'_>, function: &Function<'_>, call: &Call<'_>) -> bool {
    let uses = uses(facts, function, call);
    !uses.is_empty() && !uses.contains(&Use::Other) && uses.iter().any(|used| *used != Use::Number)
}

/// What is done with the result of `torch.load`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// The whole of it goes into `load_state_dict`.
    WholeState,
    /// One entry of it goes into `load_state_dict`.
    PartOfState,
    /// It is moved by `.to(…)` or `.cuda()`.
    Moved,
    /// An entry that is a number by its name, such as the epoch.
    Number,
    Other,
}

/// Entries of checkpoints that are plain numbers.
const NUMBERS: [&str; 8] =
    ["epoch", "epochs", "start_epoch", "step", "global_step", "iteration", "iter", "best_epoch"];

/// All uses of a loaded value: of the call itself, or of the name it is assigned to. A value that
/// is returned, stored elsewhere or assigned to a name that is assigned twice has use `Other`.
fn uses(facts: &Facts<'_>, function: &Function<'_>, call: &Call<'_>) -> Vec<Use> {
    let body: &[Stmt] = match function.node {
        Some(node) => &node.body,
        // Functions may use what the module has loaded.
        None => facts.module,
    };
    let mut reader = Reader { call: call.node, name: None, assigned: false, uses: Vec::new() };
    body.iter().for_each(|stmt| reader.visit_stmt(stmt));
    if reader.assigned {
        // Once more with the name, which may also be used above, in an earlier turn of a loop.
        reader.uses.clear();
        body.iter().for_each(|stmt| reader.visit_stmt(stmt));
    }
    reader.uses
}

/// Finds the call, the name it is assigned to, and what is done with either.
struct Reader<'a> {
    call: &'a ExprCall,
    name: Option<&'a str>,
    assigned: bool,
    uses: Vec<Use>,
}

impl<'a> Reader<'a> {
    fn is_loaded(&self, expr: &Expr) -> bool {
        match expr {
            Expr::Call(call) => std::ptr::eq(call, self.call),
            Expr::Name(name) => self.name == Some(name.id.as_str()),
            _ => false,
        }
    }

    /// The loaded value, or the entry of it that is taken by a literal key.
    fn taken<'e>(&self, expr: &'e Expr) -> Option<Option<&'e str>> {
        match expr {
            Expr::Subscript(subscript) if self.is_loaded(&subscript.value) => {
                Some(literal(&subscript.slice))
            }
            _ if self.is_loaded(expr) => Some(None),
            _ => None,
        }
    }
}

fn literal(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::StringLiteral(text) => Some(text.value.to_str()),
        _ => None,
    }
}

impl<'a> Visitor<'a> for Reader<'a> {
    fn visit_stmt(&mut self, stmt: &'a Stmt) {
        if let Stmt::Assign(assign) = stmt
            && let Expr::Call(value) = &*assign.value
            && std::ptr::eq(value, self.call)
        {
            match &*assign.targets {
                [Expr::Name(name)] => {
                    self.name = Some(name.id.as_str());
                    self.assigned = true;
                }
                _ => self.uses.push(Use::Other),
            }
            return;
        }
        if !stmt.is_delete_stmt() {
            walk_stmt(self, stmt);
        }
    }

    fn visit_expr(&mut self, expr: &'a Expr) {
        if let Expr::Call(call) = expr
            && let Expr::Attribute(attribute) = &*call.func
        {
            let method = attribute.attr.as_str();
            if method == "load_state_dict"
                && let Some(first) = call.arguments.args.first()
                && let Some(entry) = self.taken(first)
            {
                let whole = entry.is_none() && !first.is_subscript_expr();
                self.uses.push(if whole { Use::WholeState } else { Use::PartOfState });
                return;
            }
            if matches!(method, "to" | "cuda") && self.is_loaded(&attribute.value) {
                self.uses.push(Use::Moved);
                return;
            }
        }
        if let Some(entry) = self.taken(expr) {
            let number = entry.is_some_and(|entry| NUMBERS.contains(&entry));
            self.uses.push(if number { Use::Number } else { Use::Other });
            return;
        }
        walk_expr(self, expr);
    }
}

/// Adds an argument after the last.
fn argument(call: &Call<'_>, title: &str, text: &str) -> Option<Fix> {
    let arguments = &call.node.arguments;
    let ends = arguments.args.iter().map(Ranged::end);
    let last = ends.chain(arguments.keywords.iter().map(Ranged::end)).max()?;
    fix(title, TextRange::empty(last), format!(", {text}"))
}
