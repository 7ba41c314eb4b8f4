//! What `surefoot serve` says once requests are taken.

use std::net::SocketAddr;

use serde::Serialize;
use surefoot::device::memory::Bytes;
use surefoot::device::supervisor;
use surefoot_models::stream::plan::Placement;
use surefoot_serve::engine::Engine;

use crate::args::Global;
use crate::exit::Failure;
use crate::terminal::Terminal;

#[derive(Serialize)]
struct Document {
    url: String,
    model: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    adapters: Vec<String>,
    device: Option<String>,
    generates: bool,
    mode: Placement,
    sequences: usize,
    texts: usize,
    context: usize,
    /// Tokens of all sequences together that keys and values have room for.
    cache_tokens: usize,
    planned_peak_bytes: u64,
    /// Bytes of weights that a pass reads from the files.
    streamed_bytes: u64,
}

/// Tells the address on stdout, and what is served on stderr.
pub(super) fn announce(
    address: SocketAddr,
    engine: &Engine,
    name: &str,
    adapters: Vec<String>,
    global: &Global,
    terminal: &Terminal,
) -> Result<(), Failure> {
    let (shape, plan) = (engine.capacity(), engine.plan());
    let document = Document {
        url: format!("http://{address}"),
        model: name.to_owned(),
        adapters,
        device: engine.device(),
        generates: engine.decodes(),
        mode: plan.mode,
        sequences: shape.sequences,
        texts: shape.texts,
        context: shape.context,
        cache_tokens: shape.cache_tokens,
        planned_peak_bytes: plan.peak_bytes,
        streamed_bytes: plan.streamed_file_bytes,
    };
    let device = document.device.as_deref().unwrap_or("no device");
    let counted = |count: usize, what: &str| match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    };
    let what = match document.generates {
        true => counted(shape.sequences, "sequence"),
        false => counted(shape.texts, "text"),
    };
    terminal.note(&format!(
        "{name} on {device}: up to {what} at once, {}, at most {} of memory",
        match document.generates {
            true => format!("{} tokens each and {} together", shape.context, shape.cache_tokens),
            false => format!("{} tokens each", shape.text_tokens),
        },
        Bytes(plan.peak_bytes)
    ));
    if let Some(more) = shape.context_with_more_memory() {
        terminal.note(&format!(
            "{} tokens each is what the memory allows beside the weights; --context {more} allows as many, and streams \
             more of the weights",
            shape.context
        ));
    }
    if !document.adapters.is_empty() {
        terminal.note(&format!("with adapters: {}", document.adapters.join(", ")));
    }
    if supervisor::inherited().attempt > 0 {
        // The address was told by the first child, and is the same.
        terminal.note(&format!("serving again on {}", document.url));
        return Ok(());
    }
    match global.json {
        true => terminal.json_line(&document),
        false => terminal.result(&format!("{}\n", document.url)),
    }
}
