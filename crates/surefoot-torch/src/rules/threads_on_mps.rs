//! SF030: threads that use a model at the same time, where the device can be MPS.
//!
//! What counts: work handed to a pool of threads, to `asyncio.to_thread` or to `run_in_executor`, and
//! threads that are made in a loop. A pool of one thread, and work under a lock, are fine.

use ruff_python_ast::Expr;
use ruff_text_size::Ranged;

use super::{CheckRule, Findings};
use crate::finding::Severity;
use crate::model::context::{ContextKind, With};
use crate::model::device::{Device, Places};
use crate::model::event::{Call, Event, EventKind, Target};
use crate::model::methods::destination;
use crate::model::value::{Kind, Value};
use crate::model::{Facts, Function};

pub(super) static RULE: CheckRule = CheckRule {
    code: "SF030",
    name: "threads-on-mps",
    severity: Severity::Warning,
    summary: "several threads use a model whose device can be MPS, which can abort the process",
    fixable: false,
    page: include_str!("pages/SF030.md"),
    check,
};

/// How far calls of functions of the file are followed.
const DEEPEST_CALL: usize = 4;

fn check(facts: &Facts<'_>, findings: &mut Findings) {
    if !facts.mentions.mps {
        return;
    }
    let pools = Pools::of(facts);
    for (function, event, call) in facts.calls() {
        let Some(work) = handed_to_threads(facts, &pools, event, call) else { continue };
        if facts.is_guarded(function, event, &["mps"]) || !uses_device(facts, function, work) {
            continue;
        }
        findings.add(
            &RULE,
            event.range,
            "several threads use the device at once, and on MPS that can abort the process"
                .to_owned(),
            "let one thread own the model and take its work from a queue, or hold a lock around every use of the device",
        );
    }
}

/// The pools of threads of a file: the calls that make them, and the names they go by.
struct Pools<'f, 'a> {
    makers: Vec<&'f Call<'a>>,
    places: Vec<&'a str>,
}

impl<'f, 'a> Pools<'f, 'a> {
    fn of(facts: &'f Facts<'a>) -> Self {
        let events = || facts.functions.iter().flat_map(|function| &function.events);
        let makers: Vec<&Call<'a>> =
            events().filter_map(Event::call).filter(|call| makes_pool(call)).collect();
        let is_maker = |node: &Expr| match node {
            Expr::Call(node) => makers.iter().any(|maker| std::ptr::eq(maker.node, node)),
            _ => false,
        };
        let places = events()
            .filter_map(|event| match &event.kind {
                EventKind::Assign { place, node, .. } if is_maker(node) => Some(*place),
                _ => None,
            })
            .collect();
        Self { makers, places }
    }

    /// Whether the method is called on a pool, by its name or as it is made.
    fn is_receiver(&self, call: &Call<'a>) -> bool {
        if let Some(place) = call.place() {
            return self.places.contains(&place);
        }
        match &*call.node.func {
            Expr::Attribute(attribute) => match &*attribute.value {
                Expr::Call(node) => self.makers.iter().any(|maker| std::ptr::eq(maker.node, node)),
                _ => false,
            },
            _ => false,
        }
    }
}

/// Whether a call makes a pool of more than one thread.
fn makes_pool(call: &Call<'_>) -> bool {
    let size = match call.path() {
        Some(
            "concurrent.futures.ThreadPoolExecutor"
            | "concurrent.futures.thread.ThreadPoolExecutor",
        ) => call.argument(0, "max_workers"),
        Some("multiprocessing.pool.ThreadPool" | "multiprocessing.dummy.Pool") => {
            call.argument(0, "processes")
        }
        _ => return false,
    };
    !matches!(size.map(|snap| &snap.value), Some(Value::Int(1)))
}

/// The expression that a call has threads run, if it does.
fn handed_to_threads<'a>(
    facts: &Facts<'a>,
    pools: &Pools<'_, 'a>,
    event: &Event<'a>,
    call: &Call<'a>,
) -> Option<&'a Expr> {
    let arguments = &call.node.arguments;
    match (call.path(), call.method()) {
        (Some("threading.Thread"), _) => {
            let many = facts.any_context(event.context, |kind| {
                matches!(kind, ContextKind::Loop { .. } | ContextKind::Comprehension)
            });
            let target = arguments.find_keyword("target").map(|keyword| &keyword.value);
            target.or_else(|| arguments.args.get(1)).filter(|_| many)
        }
        (Some("asyncio.to_thread"), _) => arguments.args.first(),
        // Without an executor the event loop's own pool is used.
        (_, Some("run_in_executor")) => {
            let executor = arguments.args.first()?;
            let many = executor.is_none_literal_expr()
                || pools.places.contains(&facts.text(executor.range()));
            arguments.args.get(1).filter(|_| many)
        }
        (
            _,
            Some(
                "submit" | "map" | "starmap" | "imap" | "imap_unordered" | "apply_async"
                | "map_async" | "starmap_async",
            ),
        ) if pools.is_receiver(call) => arguments.args.first(),
        _ => None,
    }
}

/// Whether the function that threads are given uses a device that can be MPS.
fn uses_device<'a>(facts: &Facts<'a>, function: &Function<'a>, work: &'a Expr) -> bool {
    match work {
        Expr::Lambda(lambda) => {
            facts.events_in(function, lambda.range).any(|event| does_work(facts, event, 0))
        }
        Expr::Name(name) => {
            let name = name.id.as_str();
            names_model(facts, name)
                || facts.functions.iter().enumerate().any(|(index, inner)| {
                    inner.name == name && inner.class.is_none() && works(facts, index, 0)
                })
        }
        // self.predict, or a method of a model.
        Expr::Attribute(attribute) => {
            let owner = facts.text(attribute.value.range());
            names_model(facts, owner)
                || owner == "self" && method_works(facts, attribute.attr.as_str(), 0)
        }
        // functools.partial(predict, model)
        Expr::Call(call) => call
            .arguments
            .args
            .first()
            .filter(|_| facts.text(call.func.range()).ends_with("partial"))
            .is_some_and(|inner| uses_device(facts, function, inner)),
        _ => false,
    }
}

fn names_model(facts: &Facts<'_>, name: &str) -> bool {
    facts.objects.iter().any(|object| {
        object.kind == Kind::Model && object.name == Some(name) && can_be_mps(object.last_device)
    })
}

fn method_works(facts: &Facts<'_>, name: &str, depth: usize) -> bool {
    facts.functions.iter().enumerate().any(|(index, function)| {
        function.class.is_some() && function.name == name && works(facts, index, depth)
    })
}

fn works(facts: &Facts<'_>, function: usize, depth: usize) -> bool {
    facts.functions[function].events.iter().any(|event| does_work(facts, event, depth))
}

/// Whether this computes on a device that can be MPS, without a lock.
fn does_work<'a>(facts: &Facts<'a>, event: &Event<'a>, depth: usize) -> bool {
    let Some(call) = event.call() else { return false };
    if is_locked(facts, event) {
        return false;
    }
    if facts.is_model(&call.receiver)
        && (facts.calls_model(call) || call.method() == Some("generate"))
    {
        return can_be_mps(call.receiver.state.device);
    }
    let moved = call.method() == Some("to")
        && destination(call)
            .and_then(|to| to.device)
            .is_some_and(|device| device.visibly_can_be(Places::MPS));
    let followed = depth < DEEPEST_CALL;
    moved
        || match &call.target {
            Target::Local(index) => followed && works(facts, *index, depth + 1),
            Target::Method { name, place: Some("self") } => {
                followed && method_works(facts, name, depth + 1)
            }
            _ => false,
        }
}

fn can_be_mps(device: Device) -> bool {
    device.can().has(Places::MPS)
}

/// Whether a `with` around this names a lock.
fn is_locked<'a>(facts: &Facts<'a>, event: &Event<'a>) -> bool {
    facts.around(event.context).any(|context| match context.kind {
        ContextKind::With(With::Other) => {
            let head = facts.text(context.range).lines().next().unwrap_or_default();
            let head = head.to_ascii_lowercase();
            ["lock", "mutex", "semaphore"].iter().any(|word| head.contains(word))
        }
        _ => false,
    })
}
