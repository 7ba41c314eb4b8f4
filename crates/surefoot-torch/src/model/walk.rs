//! The walk over statements: scopes, branches, loops, handlers.

use std::mem;
use std::rc::Rc;

use ruff_python_ast::{
    ExceptHandler, Expr, ModModule, Stmt, StmtClassDef, StmtFor, StmtFunctionDef, StmtIf, StmtTry,
    StmtWith,
};
use ruff_text_size::{Ranged, TextRange};

use super::class::reassigned_attributes;
use super::context::{Context, ContextId, ContextKind};
use super::device::{Device, Places};
use super::event::{Event, EventKind, Snap};
use super::flow::Flow;
use super::value::{Kind, Object, ObjectId, State, Value};
use super::{Facts, Function, Mentions};

/// A function whose body waits until the scope around it is done.
struct Pending<'a> {
    function: usize,
    node: &'a StmtFunctionDef,
    class: Option<usize>,
}

/// The state of the walk.
pub(super) struct Walker<'a> {
    pub(super) facts: Facts<'a>,
    pub(super) flow: Flow<'a>,
    pub(super) function: usize,
    pub(super) context: ContextId,
    symbols: u32,
    pending: Vec<Pending<'a>>,
    class: Option<usize>,
}

impl<'a> Walker<'a> {
    pub(super) fn new(source: &'a str, mentions: Mentions) -> Self {
        let facts = Facts {
            source,
            contexts: Vec::new(),
            objects: Vec::new(),
            functions: Vec::new(),
            classes: Vec::new(),
            mentions,
            torch_imports: Vec::new(),
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
        }
    }

    pub(super) fn run(mut self, module: &'a ModModule) -> Facts<'a> {
        self.facts.contexts.push(Context { parent: 0, kind: ContextKind::Module, range: module.range });
        self.facts.functions.push(Function {
            name: "<module>",
            node: None,
            class: None,
            no_grad: false,
            parent: 0,
            range: module.range,
            context: 0,
            events: Vec::new(),
            guards: Vec::new(),
        });
        self.body(&module.body);
        self.finish_scope();
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
        self.bind_parameters(pending.node);
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
        let unsure = reassigned_attributes(class.node);
        for (name, value) in &end.names {
            if let Some(attribute) = name.strip_prefix("self.")
                && !unsure.contains(&attribute)
            {
                flow.names.insert(name, value.clone());
            }
        }
        for (id, state) in &end.states {
            let device = if class.is_model { Device::Unknown } else { state.device };
            flow.states.insert(*id, State { device, filled: true, ..*state });
        }
        flow
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
        maker: &str,
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
        self.flow.states.insert(id, state);
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

    fn stmt(&mut self, stmt: &'a Stmt) -> bool {
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
                let before = self.flow.clone();
                self.within(ContextKind::Loop { loader: false }, stmt.range, |walker| {
                    walker.body(&stmt.body);
                });
                self.join_with(before);
                self.body(&stmt.orelse);
            }
            Stmt::With(stmt) => return self.with_statement(stmt),
            Stmt::Try(stmt) => return self.try_statement(stmt),
            Stmt::Match(stmt) => {
                self.eval(&stmt.subject);
                let before = self.flow.clone();
                let mut ends = vec![(false, before.clone())];
                for case in &stmt.cases {
                    self.flow = before.clone();
                    let ended = self.within(
                        ContextKind::Branch(&stmt.subject),
                        case.range,
                        |walker| walker.body(&case.body),
                    );
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
            Stmt::TypeAlias(_)
            | Stmt::Nonlocal(_)
            | Stmt::Pass(_)
            | Stmt::IpyEscapeCommand(_) => {}
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

    fn import(&mut self, stmt: &'a Stmt) {
        let family = |name: &str| matches!(name, "torch" | "torchvision" | "torchaudio");
        match stmt {
            Stmt::Import(import) => {
                for alias in &import.names {
                    let full = alias.name.as_str();
                    let root = full.split('.').next().unwrap_or(full);
                    match &alias.asname {
                        Some(name) => self.flow.bind(name.as_str(), Value::Path(full.into())),
                        None => self.flow.bind(root, Value::Path(root.into())),
                    }
                    if full == "torch" && self.function == 0 {
                        let bound = alias.asname.as_ref().map_or("torch", |name| name.as_str());
                        self.facts.torch_name.get_or_insert(bound);
                    }
                    if family(root) {
                        self.facts.torch_imports.push((import.range, self.function));
                    }
                }
            }
            Stmt::ImportFrom(import) => {
                let module = import.module.as_ref().map_or("", |module| module.as_str());
                for alias in &import.names {
                    let name = alias.name.as_str();
                    let bound = alias.asname.as_ref().unwrap_or(&alias.name).as_str();
                    if name == "*" {
                        continue;
                    }
                    // A relative import is of this project, whatever it is called.
                    let value = if import.level > 0 {
                        Value::Unknown
                    } else {
                        Value::Path(super::api::canonical(&format!("{module}.{name}")).into())
                    };
                    self.flow.bind(bound, value);
                }
                if import.level == 0 && family(module.split('.').next().unwrap_or(module)) {
                    self.facts.torch_imports.push((import.range, self.function));
                }
            }
            _ => {}
        }
    }

    fn define_function(&mut self, node: &'a StmtFunctionDef, class: Option<usize>) {
        let mut no_grad = false;
        for decorator in &node.decorator_list {
            self.eval(&decorator.expression);
            let text = &self.facts.source[decorator.range];
            no_grad |= text.contains("grad") || text.contains("inference");
        }
        for parameter in &*node.parameters {
            if let Some(default) = parameter.default() {
                self.eval(default);
            }
        }
        let index = self.facts.functions.len();
        let context = self.facts.contexts.len() as ContextId;
        self.facts.contexts.push(Context {
            parent: self.context,
            kind: ContextKind::Function(index),
            range: node.range,
        });
        self.facts.functions.push(Function {
            name: node.name.as_str(),
            node: Some(node),
            class,
            no_grad,
            parent: self.function,
            range: node.range,
            context,
            events: Vec::new(),
            guards: Vec::new(),
        });
        if class.is_none() {
            self.flow.bind(node.name.as_str(), Value::Function(index));
        }
        self.pending.push(Pending { function: index, node, class });
    }

    fn define_class(&mut self, node: &'a StmtClassDef) {
        for decorator in &node.decorator_list {
            self.eval(&decorator.expression);
        }
        let class = self.describe_class(node);
        let index = self.facts.classes.len();
        self.facts.classes.push(class);
        self.flow.bind(node.name.as_str(), Value::Class(index));
        self.within(ContextKind::Class, node.range, |walker| {
            let outside = walker.flow.names.clone();
            for stmt in &node.body {
                match stmt {
                    Stmt::FunctionDef(method) => walker.define_function(method, Some(index)),
                    other => {
                        walker.stmt(other);
                    }
                }
            }
            walker.flow.names = outside;
        });
        // __init__ goes first, so that the other methods know what it leaves behind.
        let from = self.pending.len() - self.pending.iter().rev().take_while(|p| p.class == Some(index)).count();
        self.pending[from..].sort_by_key(|pending| pending.node.name.as_str() != "__init__");
    }

    fn if_statement(&mut self, stmt: &'a StmtIf) -> bool {
        self.eval(&stmt.test);
        let before = self.flow.clone();
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
        let before = self.flow.clone();
        self.within(ContextKind::Loop { loader }, stmt.range, |walker| {
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
        let before = self.flow.clone();
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
            let ended = self.within(ContextKind::Handler { node: handler, tried }, handler.range, |walker| {
                if let Some(name) = &handler.name {
                    walker.flow.bind(name.as_str(), Value::Unknown);
                }
                walker.body(&handler.body)
            });
            ends.push((ended, mem::take(&mut self.flow)));
        }
        let ended = self.join_ends(ends);
        self.body(&stmt.finalbody) || ended
    }

    /// Goes on from what the branches have in common; true if none of them goes on.
    fn join_ends(&mut self, ends: Vec<(bool, Flow<'a>)>) -> bool {
        let mut open = Vec::new();
        let mut closed = None;
        for (ended, flow) in ends {
            if ended { closed = Some(flow) } else { open.push(flow) }
        }
        let mut open = open.into_iter();
        match open.next() {
            Some(first) => {
                self.flow = first;
                for other in open {
                    self.join_with(other);
                }
                false
            }
            None => {
                self.flow = closed.unwrap_or_default();
                true
            }
        }
    }

    /// Joins another flow into the present one.
    fn join_with(&mut self, mut other: Flow<'a>) {
        let mut names = mem::take(&mut self.flow.names);
        let mut changed = Vec::new();
        for (name, value) in &mut names {
            if let Some(theirs) = other.names.remove(name)
                && *value != theirs
            {
                changed.push((*name, mem::replace(value, Value::Unknown), theirs));
            }
        }
        names.extend(other.names.drain());
        self.flow.names = names;
        // States first: joined objects are made from both sides' states.
        let joined: Vec<_> = changed
            .into_iter()
            .map(|(name, ours, theirs)| (name, self.join_values(ours, theirs, &other)))
            .collect();
        self.flow.names.extend(joined);
        for (id, theirs) in other.states.drain() {
            match self.flow.states.get_mut(&id) {
                Some(ours) => *ours = ours.join(theirs),
                None => {
                    let base = self.flow.outer.as_ref().and_then(|outer| outer.state(id));
                    let state = base.map_or(theirs, |base| base.join(theirs));
                    self.flow.states.insert(id, state);
                }
            }
        }
    }

    fn join_values(&mut self, ours: Value<'a>, theirs: Value<'a>, other: &Flow<'a>) -> Value<'a> {
        if ours == theirs {
            return ours;
        }
        match (&ours, &theirs) {
            (Value::Path(_), _) => return ours,
            (_, Value::Path(_)) => return theirs,
            (Value::Object(a), Value::Object(b)) => {
                let (left, right) = (&self.facts.objects[*a as usize], &self.facts.objects[*b as usize]);
                if left.kind != right.kind {
                    return Value::Unknown;
                }
                let (kind, made, maker, class) = (left.kind, left.made, left.maker.clone(), left.class);
                let theirs = other.state(*b).unwrap_or(right.born);
                let state = self.state_of(*a).join(theirs);
                let name = left.name;
                let id = self.make(kind, made, &maker, state);
                let object = &mut self.facts.objects[id as usize];
                object.class = class;
                object.name = name;
                object.seen_made = false;
                return Value::Object(id);
            }
            _ => {}
        }
        self.join_devices(&ours, &theirs)
    }

    /// Two devices, or names of devices, make a choice; anything else is unknown.
    pub(super) fn join_devices(&mut self, ours: &Value<'a>, theirs: &Value<'a>) -> Value<'a> {
        match (ours.as_device(), theirs.as_device()) {
            (Some(a), Some(b)) if a.is_known() && b.is_known() => {
                let device = if a == b { a } else { self.fresh_device(a.can().with(b.can())) };
                let text = |value: &Value<'_>| matches!(value, Value::Str(_) | Value::DeviceType(_));
                if text(ours) && text(theirs) {
                    Value::DeviceType(device)
                } else {
                    Value::Device(device)
                }
            }
            _ => Value::Unknown,
        }
    }
}

/// From the first statement to the last.
fn span(body: &[Stmt], otherwise: TextRange) -> TextRange {
    match (body.first(), body.last()) {
        (Some(first), Some(last)) => TextRange::new(first.start(), last.end()),
        _ => otherwise,
    }
}
