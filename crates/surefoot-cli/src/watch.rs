//! `--watch`: the journal's page, live, for commands that run long.

use surefoot_report::live::Server;

use crate::exit::Failure;
use crate::terminal::Terminal;

/// Starts the page if a port was given, and says where it is.
pub(crate) fn start(
    port: Option<u16>,
    title: String,
    terminal: &Terminal,
) -> Result<Option<Server>, Failure> {
    let Some(port) = port else { return Ok(None) };
    let server = Server::start(title, port).map_err(|error| {
        Failure::usage("the run can't be watched")
            .caused_by(&error)
            .hint("take another port with --watch=PORT, or any free one with --watch")
    })?;
    terminal.note(&format!("watch it at {}", server.url()));
    Ok(Some(server))
}
