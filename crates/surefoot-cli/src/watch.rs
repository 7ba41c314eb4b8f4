//! `--watch`: the live page of a command that runs for a long time.
//!
//! With `--isolate` the supervising process chooses the port, so that the page of each child is where that of the child
//! before it was.

use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;

use surefoot_report::live::Server;

use crate::exit::Failure;
use crate::terminal::Terminal;

/// Says to a child which port was chosen for its page.
const VARIABLE: &str = "SUREFOOT_WATCH_PORT";

/// Starts the server of the page if a port was given, and prints its address.
pub(crate) fn start(
    port: Option<u16>,
    title: String,
    terminal: &Terminal,
) -> Result<Option<Server>, Failure> {
    let Some(port) = port else { return Ok(None) };
    let chosen = std::env::var(VARIABLE).ok().and_then(|port| port.parse().ok());
    let server = match chosen {
        // Somebody else may have taken it meanwhile.
        Some(chosen) if port == 0 => {
            Server::start(title.clone(), chosen).or_else(|_| Server::start(title, port))
        }
        _ => Server::start(title, port),
    };
    let server = server.map_err(|error| unusable(&error))?;
    terminal.note(&format!("watch it at {}", server.url()));
    Ok(Some(server))
}

/// The port of the page that was asked for; any that is free if it is 0.
pub(crate) fn free_port(port: Option<u16>) -> Result<Option<u16>, Failure> {
    let Some(0) = port else { return Ok(port) };
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|bound| bound.local_addr());
    free.map(|address| Some(address.port())).map_err(|error| unusable(&error))
}

/// Lets the child that `command` starts show its page on this port.
pub(crate) fn pass_on(port: Option<u16>, command: &mut Command) {
    if let Some(port) = port {
        command.env(VARIABLE, port.to_string());
    }
}

fn unusable(error: &dyn std::error::Error) -> Failure {
    Failure::usage("the live page could not be started")
        .caused_by(error)
        .hint("choose another port with --watch=PORT, or any free one with --watch")
}
