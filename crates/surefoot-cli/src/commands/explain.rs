//! `surefoot explain`: what an error message means and what to change.

use clap::Args;

use crate::args::Global;
use crate::exit::{Exit, Failure};
use crate::terminal::Terminal;

/// Say what a device error message means and what to change
#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// The message, or - to read a whole log from stdin
    text: Option<String>,
}

impl Explain {
    pub(crate) fn run(self, _global: &Global, _terminal: &Terminal) -> Result<Exit, Failure> {
        Err(Failure::usage("nothing to explain").because("no text was given"))
    }
}
