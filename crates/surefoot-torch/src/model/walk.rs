//! The walk over statements: scopes, branches, loops, handlers.

use std::mem;
use std::rc::Rc;

use ruff_python_ast::{
    ExceptHandler, Expr, ModModule, Stmt, StmtFor, StmtFunctionDef, StmtIf, StmtTry, StmtWith,
};
use ruff_text_size::{Ranged, TextRange};

use super::class::reassigned_attributes;
use super::context::{Context, ContextId, ContextKind};
use super::device::{Device, Places};
use super::event::{Event, EventKind, Snap};
use super::flow::Flow;
use super::roles::Roles;
use super::value::{Kind, Maker, Object, ObjectId, State, Value};
use super::{Facts, Function, Mentions};

/// A function in which more than this happens was written by a program. It is not checked: some
/// rules compare events with each other, and time must stay bounded.
const MOST_EVENTS: usize = 10_000;

/// A function whose body waits until the scope around it is done.
pub(super) struct Pending<'a> {
    pub(super) function: usize,
    pub(super) node: &'a StmtFunctionDef,
    pub(super) class: Option<usize>,
}

/// The state of the walk.
pub(super) struct Walker<'a> {
    pub(super) facts: Facts<'a>,
    pub(super) flow: Flow<'a>,
    pub(super) function: usize,
    pub(super) context: ContextId,
    symbols: u32,
    pub(super) pending: Vec<Pending<'a>>,
    class: Option<usize>,
    /// What the present scope does with its names.
    pub(super) roles: Roles<'a>,
}

impl<'a> Walker<'a> {
    pub(super) fn new(source: &'a str, module: &'a [Stmt], mentions: Mentions) -> Self {
        let facts = Facts {
            source,
            module,
            contexts: Vec::new(),
            objects: Vec::new(),
            functions: Vec::new(),
            classes: Vec::new(),
            mentions,
            torch_imports: Vec::new(),
            chosen: Vec::new(),
            called_without_gradients: Default::default(),
            called_in_loops: Default::default(),
            torch_name: None,
        };
        Self {
            facts,
            flow: Flow::default(),
            function: 0,
            context: 0,
            symbols: 0,
            pending: Vec::new(),
            class: None,
            roles: Roles::default(),
        }
    }

    pub(super) fn run(mut self, module: &'a ModModule) -> Facts<'a> {
        self.facts.contexts.push(Context {
            parent: 0,
            kind: ContextKind::Module,
            range: module.range,
        });
        self.facts.functions.push(Function {
            name: "<module>",
            node: None,
            class: None,
            no_grad: false,
            parent: 0,
            context: 0,
            events: Vec::new(),
            guards: Vec::new(),
        });
        self.roles = Roles::of(self.facts.source, &module.body);
        self.bind_free_names(module.range);
        self.body(&module.body);
        self.finish_scope();
        for function in &mut self.facts.functions {
            if function.events.len() > MOST_EVENTS {
                function.events.clear();
            }
        }
        self.facts.note_callers();
        self.facts
    }

    /// Walks the functions that were found in the scope that just ended.
    fn finish_scope(&mut self) {
        let outer = Rc::new(mem::take(&mut self.flow));
        let mut class_scope: Option<(usize, Rc<Flow<'a>>)> = None;
        for pending in mem::take(&mut self.pending) {
            let around = match (pending.class, &class_scope) {
                (Some(class), Some((of, flow))) if *of == class => Rc::clone(flow),
                _ => Rc::clone(&outer),
            };
            let attributes = self.run_function(&pending, around);
            if let (Some(class), "__init__") = (pending.class, pending.node.name.as_str()) {
                let flow = self.class_flow(class, attributes, Rc::clone(&outer));
                class_scope = Some((class, Rc::new(flow)));
            }
        }
    }

    /// Walks one function and those inside it; returns the flow at its end.
    fn run_function(&mut self, pending: &Pending<'a>, outer: Rc<Flow<'a>>) -> Rc<Flow<'a>> {
        let before = (self.function, self.context, self.class);
        self.function = pending.function;
        self.context = self.facts.functions[pending.function].context;
        self.class = pending.class;
        self.flow = Flow::inside(outer);
        self.roles = Roles::of(self.facts.source, &pending.node.body);
        self.bind_parameters(pending.node);
        self.bind_free_names(pending.node.range);
        self.body(&pending.node.body);
        let end = Rc::new(self.flow.clone());
        self.finish_scope();
        (self.function, self.context, self.class) = before;
        end
    }

    /// What the methods of a class may rely on of `self`. The parts of a model go where the model
    /// goes, so their devices are not known.
    fn class_flow(&self, class: usize, end: Rc<Flow<'a>>, outer: Rc<Flow<'a>>) -> Flow<'a> {
        let mut flow = Flow::inside(outer);
        let class = &self.facts.classes[class];
        let parts_move = class.is_model || class.has_foreign_base || class.has_forward;
        let unsure = reassigned_attributes(class.node);
        for (name, value) in &end.places {
            let Some(attribute) = name.strip_prefix("self.") else { continue };
            if unsure.contains(&attribute) {
                continue;
            }
            flow.places.insert(name, value.clone());
            if let Value::Object(id) = value {
                let state = end.state(*id).unwrap_or(self.facts.objects[*id as usize].born);
                let device = if parts_move { Device::Unknown } else { state.device };
                flow.states.insert(*id, State { device, filled: true, ..state });
            }
        }
        flow
    }

    /// The flow as it is, to start a branch from.
    fn fork(&mut self) -> Flow<'a> {
        self.flow.since = self.facts.objects.len() as ObjectId;
        self.flow.clone()
    }

    pub(super) fn fresh_device(&mut self, can: Places) -> Device {
        self.symbols += 1;
        Device::Chosen { symbol: self.symbols, can }
    }

    /// A new object in this state.
    pub(super) fn make(
        &mut self,
        kind: Kind,
        made: TextRange,
        maker: impl Into<Maker>,
        state: State,
    ) -> ObjectId {
        let id = self.facts.objects.len() as ObjectId;
        self.facts.objects.push(Object {
            kind,
            made,
            function: self.function,
            class: None,
            model: None,
            maker: maker.into(),
            name: None,
            elements: None,
            born: state,
            last_device: state.device,
            seen_made: true,
        });
        id
    }

    pub(super) fn state_of(&self, id: ObjectId) -> State {
        self.flow
            .state(id)
            .or_else(|| self.facts.objects.get(id as usize).map(|object| object.born))
            .unwrap_or(State::UNKNOWN)
    }

    pub(super) fn snap(&self, value: Value<'a>) -> Snap<'a> {
        let state = value.object().map_or(State::UNKNOWN, |id| self.state_of(id));
        Snap { value, state }
    }

    pub(super) fn record(&mut self, range: TextRange, kind: EventKind<'a>) {
        let event = Event { range, context: self.context, kind };
        self.facts.functions[self.function].events.push(event);
    }

    pub(super) fn within<T>(
        &mut self,
        kind: ContextKind<'a>,
        range: TextRange,
        inside: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let before = self.context;
        self.context = self.facts.contexts.len() as ContextId;
        self.facts.contexts.push(Context { parent: before, kind, range });
        let result = inside(self);
        self.context = before;
        result
    }

    /// Walks statements; true if the end is never reached.
    pub(super) fn body(&mut self, body: &'a [Stmt]) -> bool {
        body.iter().any(|stmt| self.stmt(stmt))
    }

    pub(super) fn stmt(&mut self, stmt: &'a Stmt) -> bool {
        match stmt {
            Stmt::Expr(stmt) => return self.expression_statement(&stmt.value),
            Stmt::Assign(stmt) => {
                let value = self.eval(&stmt.value);
                for target in &stmt.targets {
                    self.assign(target, &stmt.value, value.clone());
                }
            }
            Stmt::AnnAssign(stmt) => {
                if let Some(node) = &stmt.value {
                    let value = self.eval(node);
                    self.assign(&stmt.target, node, value);
                }
            }
            Stmt::AugAssign(stmt) => self.augment(stmt),
            Stmt::If(stmt) => return self.if_statement(stmt),
            Stmt::For(stmt) => self.for_statement(stmt),
            Stmt::While(stmt) => {
                self.eval(&stmt.test);
                let before = self.fork();
                let kind = ContextKind::Loop { loader: false, target: None };
                self.within(kind, stmt.range, |walker| {
                    walker.body(&stmt.body);
                });
                self.join_with(before);
                self.body(&stmt.orelse);
            }
            Stmt::With(stmt) => return self.with_statement(stmt),
            Stmt::Try(stmt) => return self.try_statement(stmt),
            Stmt::Match(stmt) => {
                self.eval(&stmt.subject);
                let before = self.fork();
                let mut ends = vec![(false, before.clone())];
                for case in &stmt.cases {
                    self.flow = before.clone();
                    let ended =
                        self.within(ContextKind::Branch(&stmt.subject), case.range, |walker| {
                            walker.body(&case.body)
                        });
                    ends.push((ended, mem::take(&mut self.flow)));
                }
                return self.join_ends(ends);
            }
            Stmt::Return(stmt) => {
                if let Some(value) = &stmt.value {
                    self.eval(value);
                }
                return true;
            }
            Stmt::Raise(stmt) => {
                if let Some(exc) = &stmt.exc {
                    self.eval(exc);
                }
                return true;
            }
            Stmt::Break(_) | Stmt::Continue(_) => return true,
            Stmt::Assert(stmt) => {
                self.eval(&stmt.test);
                self.facts.functions[self.function].guards.push(&stmt.test);
            }
            Stmt::Delete(stmt) => {
                for target in &stmt.targets {
                    if let Some(place) = self.place(target) {
                        self.flow.bind(place, Value::Unknown);
                    }
                }
            }
            Stmt::Import(_) | Stmt::ImportFrom(_) => self.import(stmt),
            Stmt::FunctionDef(stmt) => self.define_function(stmt, None),
            Stmt::ClassDef(stmt) => self.define_class(stmt),
            Stmt::Global(stmt) => {
                for name in &stmt.names {
                    self.flow.bind(name.as_str(), Value::Unknown);
                }
            }
            Stmt::TypeAlias(_) | Stmt::Nonlocal(_) | Stmt::Pass(_) | Stmt::IpyEscapeCommand(_) => {}
        }
        false
    }

    fn expression_statement(&mut self, value: &'a Expr) -> bool {
        let Expr::Call(call) = value else {
            self.eval(value);
            return false;
        };
        self.call(call, true);
        let name = &self.facts.source[call.func.range()];
        matches!(name, "sys.exit" | "exit" | "quit" | "os._exit")
    }

    fn if_statement(&mut self, stmt: &'a StmtIf) -> bool {
        self.eval(&stmt.test);
        let before = self.fork();
        let taken = span(&stmt.body, stmt.range);
        let body_ends =
            self.within(ContextKind::Branch(&stmt.test), taken, |walker| walker.body(&stmt.body));
        let mut ends = vec![(body_ends, mem::take(&mut self.flow))];
        let outside = self.context;
        let rest = stmt.elif_else_clauses.first().map_or(stmt.end(), |clause| clause.start());
        self.context = self.branch_context(&stmt.test, TextRange::new(rest, stmt.end()));
        let mut has_else = false;
        for clause in &stmt.elif_else_clauses {
            self.flow = before.clone();
            match &clause.test {
                Some(test) => {
                    self.eval(test);
                    self.context = self.branch_context(test, clause.range);
                }
                None => has_else = true,
            }
            let ended = self.body(&clause.body);
            ends.push((ended, mem::take(&mut self.flow)));
        }
        self.context = outside;
        if !has_else {
            ends.push((false, before));
        }
        if ends.iter().any(|(ended, _)| *ended) {
            self.facts.functions[self.function].guards.push(&stmt.test);
        }
        self.join_ends(ends)
    }

    fn branch_context(&mut self, test: &'a Expr, range: TextRange) -> ContextId {
        let id = self.facts.contexts.len() as ContextId;
        let kind = ContextKind::Branch(test);
        self.facts.contexts.push(Context { parent: self.context, kind, range });
        id
    }

    fn for_statement(&mut self, stmt: &'a StmtFor) {
        let iterated = self.eval(&stmt.iter);
        let text = &self.facts.source[stmt.iter.range()];
        let element = self.element_of(&iterated, stmt.iter.range());
        let loader = matches!(&element, Value::Batch(_))
            || matches!(&element, Value::Sequence(parts) if parts.iter().any(|part| matches!(part, Value::Batch(_))))
            || text.contains("loader");
        let before = self.fork();
        let kind = ContextKind::Loop { loader, target: Some(&stmt.target) };
        self.within(kind, stmt.range, |walker| {
            walker.assign(&stmt.target, &stmt.iter, element);
            walker.body(&stmt.body);
        });
        self.join_with(before);
        self.body(&stmt.orelse);
    }

    fn with_statement(&mut self, stmt: &'a StmtWith) -> bool {
        let outside = self.context;
        for item in &stmt.items {
            let value = self.eval(&item.context_expr);
            let with = self.with_effect(&item.context_expr, &value);
            let id = self.facts.contexts.len() as ContextId;
            let (parent, kind) = (self.context, ContextKind::With(with));
            self.facts.contexts.push(Context { parent, kind, range: stmt.range });
            self.context = id;
            if let Some(target) = &item.optional_vars {
                self.assign(target, &item.context_expr, value);
            }
        }
        let ended = self.body(&stmt.body);
        self.context = outside;
        ended
    }

    fn try_statement(&mut self, stmt: &'a StmtTry) -> bool {
        let before = self.fork();
        let tried = span(&stmt.body, stmt.range);
        let mut body_ends =
            self.within(ContextKind::Try, stmt.range, |walker| walker.body(&stmt.body));
        let after = self.flow.clone();
        body_ends |= self.body(&stmt.orelse);
        let mut ends = vec![(body_ends, mem::take(&mut self.flow))];
        for ExceptHandler::ExceptHandler(handler) in &stmt.handlers {
            self.flow = after.clone();
            self.join_with(before.clone());
            if let Some(kind) = &handler.type_ {
                self.eval(kind);
            }
            let ended = self.within(
                ContextKind::Handler { node: handler, tried },
                handler.range,
                |walker| {
                    if let Some(name) = &handler.name {
                        walker.flow.bind(name.as_str(), Value::Unknown);
                    }
                    walker.body(&handler.body)
                },
            );
            ends.push((ended, mem::take(&mut self.flow)));
        }
        let ended = self.join_ends(ends);
        self.body(&stmt.finalbody) || ended
    }
}

/// From the first statement to the last.
fn span(body: &[Stmt], otherwise: TextRange) -> TextRange {
    match (body.first(), body.last()) {
        (Some(first), Some(last)) => TextRange::new(first.start(), last.end()),
        _ => otherwise,
    }
}
