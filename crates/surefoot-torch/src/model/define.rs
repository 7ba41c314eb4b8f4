//! Statements that bring names in: imports, functions, classes.

use ruff_python_ast::{Stmt, StmtClassDef, StmtFunctionDef};

use super::Function;
use super::context::{Context, ContextId, ContextKind};
use super::device::Places;
use super::eval::is_device_name;
use super::value::Value;
use super::walk::{Pending, Walker};

impl<'a> Walker<'a> {
    pub(super) fn import(&mut self, stmt: &'a Stmt) {
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
                    } else if is_device_name(bound) && module != "torch" {
                        Value::Device(self.fresh_device(Places::ANY))
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

    pub(super) fn define_function(&mut self, node: &'a StmtFunctionDef, class: Option<usize>) {
        // A decorator's arguments and a default are only proposals: what they make is not an event.
        let events = self.facts.functions[self.function].events.len();
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
        self.facts.functions[self.function].events.truncate(events);
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
            context,
            events: Vec::new(),
            guards: Vec::new(),
        });
        if class.is_none() {
            self.flow.bind(node.name.as_str(), Value::Function(index));
        }
        self.pending.push(Pending { function: index, node, class });
    }

    pub(super) fn define_class(&mut self, node: &'a StmtClassDef) {
        for decorator in &node.decorator_list {
            self.eval(&decorator.expression);
        }
        let class = self.describe_class(node);
        let index = self.facts.classes.len();
        self.facts.classes.push(class);
        self.flow.bind(node.name.as_str(), Value::Class(index));
        self.within(ContextKind::Class, node.range, |walker| {
            let outside = (walker.flow.names.clone(), walker.flow.places.clone());
            for stmt in &node.body {
                match stmt {
                    Stmt::FunctionDef(method) => walker.define_function(method, Some(index)),
                    other => {
                        walker.stmt(other);
                    }
                }
            }
            (walker.flow.names, walker.flow.places) = outside;
        });
        // __init__ goes first, so that the other methods know what it leaves behind.
        let from = self.pending.len()
            - self.pending.iter().rev().take_while(|p| p.class == Some(index)).count();
        self.pending[from..].sort_by_key(|pending| pending.node.name.as_str() != "__init__");
    }
}
