//! What rules ask of the facts: what is around an event, and what guards it.

use ruff_python_ast::Expr;
use ruff_text_size::{Ranged, TextRange};
use rustc_hash::{FxHashMap, FxHashSet};

use super::context::{Context, ContextId, ContextKind, With};
use super::device::Device;
use super::event::{Call, Event, Snap, Target};
use super::value::{Kind, Object, TorchDtype, Value};
use super::{Facts, Function};

impl<'a> Facts<'a> {
    /// The contexts from here outwards, to the end of the function; then the module's are left out.
    pub(crate) fn around(&self, from: ContextId) -> impl Iterator<Item = &Context<'a>> {
        let mut next = Some(from);
        std::iter::from_fn(move || {
            let id = next?;
            let context = &self.contexts[id as usize];
            let stop = matches!(context.kind, ContextKind::Function(_) | ContextKind::Module);
            next = (!stop && id != 0).then_some(context.parent);
            Some(context)
        })
    }

    /// Whether any context from here outwards, in this function, is like this.
    pub(crate) fn any_context(
        &self,
        from: ContextId,
        is: impl Fn(&ContextKind<'a>) -> bool,
    ) -> bool {
        self.around(from).any(|context| is(&context.kind))
    }

    /// The innermost loop around.
    pub(crate) fn loop_around(&self, from: ContextId) -> Option<&Context<'a>> {
        self.around(from).find(|context| matches!(context.kind, ContextKind::Loop { .. }))
    }

    /// Whether a branch or a handler stands between this and the innermost loop, so that it
    /// doesn't happen in every turn.
    pub(crate) fn is_occasional(&self, from: ContextId) -> bool {
        self.around(from)
            .take_while(|context| !matches!(context.kind, ContextKind::Loop { .. }))
            .any(|context| {
                matches!(context.kind, ContextKind::Branch(_) | ContextKind::Handler { .. })
            })
    }

    /// Whether gradients are off here, or may be.
    pub(crate) fn gradients_off(&self, from: ContextId) -> bool {
        let here = |kind: &ContextKind<'a>| {
            matches!(kind, ContextKind::With(With::NoGrad | With::GradByValue))
        };
        self.any_context(from, here) || self.function_of(from).no_grad
    }

    pub(crate) fn function_of(&self, from: ContextId) -> &Function<'a> {
        let index = self.around(from).last().map(|context| match context.kind {
            ContextKind::Function(index) => index,
            _ => 0,
        });
        &self.functions[index.unwrap_or(0)]
    }

    /// Whether a test around this mentions one of the words.
    pub(crate) fn is_in_branch_on(&self, event: &Event<'a>, words: &[&str]) -> bool {
        self.around(event.context).any(|context| match context.kind {
            ContextKind::Branch(test) => self.mentions_any(test, words),
            _ => false,
        })
    }

    fn mentions_any(&self, test: &Expr, words: &[&str]) -> bool {
        let text = self.text(test.range()).to_ascii_lowercase();
        words.iter().any(|word| text.contains(word))
    }

    /// Whether a test around this, or one that had to hold before it, mentions one of the words.
    pub(crate) fn is_guarded(
        &self,
        function: &Function<'a>,
        event: &Event<'a>,
        words: &[&str],
    ) -> bool {
        let before = |function: &Function<'a>, limit: Option<TextRange>| {
            function.guards.iter().any(|test| {
                limit.is_none_or(|limit| test.end() <= limit.start())
                    && self.mentions_any(test, words)
            })
        };
        self.is_in_branch_on(event, words)
            || before(function, Some(event.range))
            || (function.node.is_some() && before(&self.functions[function.parent], None))
            || before(&self.functions[0], None) && function.node.is_some()
    }

    /// The autocast block around.
    pub(crate) fn autocast_around(&self, from: ContextId) -> Option<(Device, TorchDtype)> {
        self.around(from).find_map(|context| match context.kind {
            ContextKind::With(With::Autocast { device, dtype }) => Some((device, dtype)),
            _ => None,
        })
    }

    pub(crate) fn text(&self, range: impl Ranged) -> &'a str {
        &self.source[range.range()]
    }

    pub(crate) fn object(&self, snap: &Snap<'a>) -> Option<&Object<'a>> {
        self.objects.get(snap.value.object()? as usize)
    }

    pub(crate) fn kind(&self, snap: &Snap<'a>) -> Option<Kind> {
        self.object(snap).map(|object| object.kind)
    }

    pub(crate) fn is_model(&self, snap: &Snap<'a>) -> bool {
        self.kind(snap) == Some(Kind::Model)
    }

    pub(crate) fn is_tensor(&self, snap: &Snap<'a>) -> bool {
        self.kind(snap) == Some(Kind::Tensor)
    }

    /// Whether this calls a model: the object itself or its `forward`.
    pub(crate) fn calls_model(&self, call: &Call<'a>) -> bool {
        self.is_model(&call.receiver)
            && (matches!(call.target, Target::Object) || call.method() == Some("forward"))
    }

    /// Whether this steps an optimizer, by itself or through a scaler.
    pub(crate) fn steps_optimizer(&self, call: &Call<'a>) -> bool {
        if call.method() != Some("step") {
            return false;
        }
        match self.kind(&call.receiver) {
            Some(Kind::Optimizer | Kind::Scaler) => true,
            Some(_) => false,
            None => call.place().is_some_and(|place| {
                let last = place.rsplit('.').next().unwrap_or(place).to_ascii_lowercase();
                last.starts_with("opt") || last.ends_with("optimizer") || last.ends_with("scaler")
            }),
        }
    }

    /// Every call of the file, with its event and the function it is in.
    pub(crate) fn calls<'f>(
        &'f self,
    ) -> impl Iterator<Item = (&'f Function<'a>, &'f Event<'a>, &'f Call<'a>)> {
        self.functions.iter().flat_map(|function| {
            let calls = function.events.iter().filter_map(|event| Some((event, event.call()?)));
            calls.map(move |(event, call)| (function, event, call))
        })
    }

    /// The events of a function that lie in a range.
    pub(crate) fn events_in<'f>(
        &self,
        function: &'f Function<'a>,
        range: TextRange,
    ) -> impl Iterator<Item = &'f Event<'a>> {
        function.events.iter().filter(move |event| range.contains_range(event.range))
    }

    /// Notes which functions are called where gradients are off, and which in loops. A method is
    /// known by its name alone.
    pub(super) fn note_callers(&mut self) {
        let mut by_name: FxHashMap<&'a str, Vec<usize>> = FxHashMap::default();
        for (index, function) in self.functions.iter().enumerate().skip(1) {
            by_name.entry(function.name).or_default().push(index);
        }
        let (mut without, mut looped) = (FxHashSet::default(), FxHashSet::default());
        for event in self.functions.iter().flat_map(|function| &function.events) {
            let Some(call) = event.call() else { continue };
            let called = match &call.target {
                Target::Local(index) => &[*index][..],
                Target::Method { name, .. } | Target::Name(name) => {
                    by_name.get(name).map_or(&[][..], Vec::as_slice)
                }
                _ => continue,
            };
            if called.is_empty() {
                continue;
            }
            if self.gradients_off(event.context) {
                without.extend(called);
            }
            if self.loop_around(event.context).is_some() {
                looped.extend(called);
            }
        }
        self.called_without_gradients = without;
        self.called_in_loops = looped;
    }
}

/// Whether a value is a literal true.
pub(crate) fn is_true(snap: &Snap<'_>) -> bool {
    snap.value == Value::Bool(true)
}
