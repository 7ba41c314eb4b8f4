//! `surefoot train --find-batch`: the largest batch that fits, and the fastest one.

use surefoot::Footing;
use surefoot::device::memory::Bytes;
use surefoot_train::config::Config;
use surefoot_train::data::DataSet;
use surefoot_train::plan;

use crate::args::Global;
use crate::exit::{Exit, Failure};
use crate::terminal::Terminal;

pub(super) fn find_batch(
    config: &Config,
    footing: &Footing,
    data: &DataSet,
    global: &Global,
    terminal: &Terminal,
) -> Result<Exit, Failure> {
    let fit = plan::try_batches(config, footing, data, None, |tried| {
        terminal.note(&format!(
            "{:>6} samples  {:>10.2} ms  {:>10.0} samples/s  {:>10} at most",
            tried.batch,
            1e3 * tried.seconds,
            tried.samples_per_second,
            Bytes(tried.memory)
        ));
    });
    let fit = fit.map_err(Failure::from)?;
    if global.json {
        terminal.json(&fit)?;
    } else {
        terminal.result(&format!(
            "largest batch   {}: {}\nfastest batch   {}\n",
            fit.largest, fit.limit, fit.fastest
        ))?;
    }
    Ok(Exit::Done)
}
