//! The socket that a server listens on, and how a supervisor keeps it open for its children.
//!
//! With `--isolate` the supervising process binds the address, so that it stays the same when the
//! child dies, and clients that connect meanwhile wait in the operating system's queue until the
//! next child accepts them. On Unix the child gets the bound socket as its standard input, as inetd
//! does it, and an environment variable says so. Elsewhere the child binds the same address again.

use std::net::{SocketAddr, TcpListener};
use std::process::Command;

use crate::exit::Failure;

/// Says to a child where its listening socket is: `stdin`, or an address to bind.
const VARIABLE: &str = "SUREFOOT_LISTENER";

/// Binds `address`, or takes the socket that a supervisor passed on.
pub(super) fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    let listener = match inherited()? {
        Some(listener) => listener,
        None => bind(address)?,
    };
    listener
        .set_nonblocking(true)
        .map_err(|error| Failure::usage(format!("{address} can't be used")).caused_by(&error))?;
    Ok(listener)
}

pub(super) fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).map_err(|error| {
        Failure::usage(format!("{address} can't be listened on"))
            .caused_by(&error)
            .hint("--port 0 takes any port that is free")
    })
}

/// Lets the child that `command` starts listen on `listener`.
#[cfg(unix)]
pub(super) fn pass_on(listener: &TcpListener, command: &mut Command) {
    // Without a copy the child finds no socket and says so.
    if let Ok(copy) = listener.try_clone() {
        command.stdin(std::os::fd::OwnedFd::from(copy));
        command.env(VARIABLE, "stdin");
    }
}

/// Keeps the socket from a child that listens on one of its own.
pub(super) fn keep_from(command: &mut Command) {
    command.env_remove(VARIABLE);
}

#[cfg(unix)]
fn inherited() -> Result<Option<TcpListener>, Failure> {
    use std::os::fd::AsFd;

    if std::env::var_os(VARIABLE).is_none() {
        return Ok(None);
    }
    let socket = std::io::stdin().as_fd().try_clone_to_owned().map(TcpListener::from);
    match socket.and_then(|socket| socket.local_addr().map(|_| socket)) {
        Ok(socket) => Ok(Some(socket)),
        Err(error) => {
            let what = "the supervisor's listening socket is not this process's standard input";
            Err(Failure::usage(what).caused_by(&error).hint(format!("unset {VARIABLE}")))
        }
    }
}

/// Where a socket can't be passed on, the child binds the port that the supervisor found free.
#[cfg(not(unix))]
pub(super) fn pass_on(listener: &TcpListener, command: &mut Command) {
    if let Ok(address) = listener.local_addr() {
        command.env(VARIABLE, address.to_string());
    }
}

#[cfg(not(unix))]
fn inherited() -> Result<Option<TcpListener>, Failure> {
    match std::env::var(VARIABLE).ok().and_then(|address| address.parse().ok()) {
        Some(address) => bind(address).map(Some),
        None => Ok(None),
    }
}
