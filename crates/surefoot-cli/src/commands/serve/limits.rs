//! The options of `surefoot serve` that limit how much it takes on.

use std::time::Duration;

use clap::Args;
use surefoot::device::memory::Bytes;
use surefoot_models::Opened;
use surefoot_serve::engine::EngineLimits;

/// How much is taken on.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
pub(super) struct Limits {
    /// The most tokens of one sequence, prompt and output together: by default 4096, and never more than
    /// the model supports
    ///
    /// With --memory the default is reduced, to 1024 at least, if the weights stay in memory that way. A context that is
    /// given here is kept, and weights that do not fit beside it are streamed.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16_777_216))]
    pub(super) context: Option<u32>,
    /// The most sequences that are decoded at once
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(super) max_sequences: u32,
    /// The most texts that are embedded at once
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(super) max_texts: u32,
    /// The most tokens of prompts or texts that go through the model in one pass
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..=16_777_216))]
    pub(super) pass_tokens: u32,
    /// The most tokens that can be generated for one request
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..=16_777_216))]
    pub(super) max_tokens: u32,
    /// The most sequences or texts that can wait; further ones are refused with status 429
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(super) queue: u32,
    /// The longest that a text waits for others while a batch is running, in microseconds; never
    /// more than the last batch took
    #[arg(long, value_name = "US", default_value_t = 1_000_000)]
    pub(super) max_wait: u32,
    /// The longest that a request can take, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(super) timeout: u32,
    /// The largest body of a request
    #[arg(long, value_name = "BYTES", default_value = "8MiB")]
    pub(super) max_body: Bytes,
}

/// A text of so many tokens takes little beside the model.
const SHORT_TEXT: usize = 512;

/// The option by which a model may fit that does not. An encoder keeps nothing of a text, and takes more memory only for a pass
/// over a long one.
pub(super) fn saves_memory(opened: &Opened, text_tokens: Option<usize>) -> Option<&'static str> {
    let positions = opened.blueprint.max_positions;
    if opened.has_head() && opened.blueprint.causal {
        Some("--context N, the most tokens of one sequence")
    } else if text_tokens.unwrap_or(positions).min(positions) > SHORT_TEXT {
        Some("--context N, the most tokens of one text")
    } else {
        None
    }
}

impl Limits {
    pub(super) fn engine_limits(
        &self,
        text_tokens: Option<usize>,
        batches_in_flight: usize,
    ) -> EngineLimits {
        EngineLimits {
            sequences: self.max_sequences as usize,
            context: self.context.map(|context| context as usize),
            texts: self.max_texts as usize,
            text_tokens,
            pass_tokens: self.pass_tokens as usize,
            queue: self.queue as usize,
            patience: Duration::from_micros(u64::from(self.max_wait)),
            batches_in_flight,
        }
    }
}
