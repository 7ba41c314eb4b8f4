//! `--watch`: the live page of a command that runs for a long time.

use surefoot_report::live::Server;

use crate::exit::Failure;
use crate::terminal::Terminal;

/// Starts the server of the page if a port was given, and prints its address.
pub(crate) fn start(
    port: Option<u16>,
    title: String,
    terminal: &Terminal,
) -> Result<Option<Server>, Failure> {
    let Some(port) = port else { return Ok(None) };
    let server = Server::start(title, port).map_err(|error| {
        Failure::usage("the live page could not be started")
            .caused_by(&error)
            .hint("choose another port with --watch=PORT, or any free one with --watch")
    })?;
    terminal.note(&format!("watch it at {}", server.url()));
    Ok(Some(server))
}
