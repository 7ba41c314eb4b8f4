//! The sockets that a server listens on.
//!
//! With `--isolate` the supervising process listens for clients, and the process that answers listens on a socket of
//! this machine alone ([`PrivateSocket`]), which the supervising process keeps open: requests that it sends while there is
//! no process wait in the operating system's queue until the next one accepts them. On Unix the process gets this socket as
//! its standard input, as inetd does it, and an environment variable says so. Elsewhere it binds the same address again.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::Command;

use crate::exit::Failure;

/// Says to a supervised process which address clients use, and on which one it listens itself.
const VARIABLE: &str = "SUREFOOT_LISTENER";

/// A socket that takes connections.
pub(super) struct Listening {
    pub(super) socket: TcpListener,
    /// What clients connect to.
    pub(super) address: SocketAddr,
    /// Whether a gateway passes the requests of clients on to this socket.
    pub(super) is_behind_gateway: bool,
}

/// Binds `address`, or takes the socket that a supervisor passed on.
pub(super) fn listen(address: SocketAddr) -> Result<Listening, Failure> {
    let unusable = |error| {
        Failure::usage(format!("{address} can't be used")).caused_by(&error as &std::io::Error)
    };
    let listening = match inherited()? {
        Some((socket, address)) => Listening { socket, address, is_behind_gateway: true },
        None => {
            let socket = bind(address)?;
            let address = socket.local_addr().map_err(unusable)?;
            Listening { socket, address, is_behind_gateway: false }
        }
    };
    listening.socket.set_nonblocking(true).map_err(unusable)?;
    Ok(listening)
}

fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).map_err(|error| {
        Failure::usage(format!("{address} can't be listened on"))
            .caused_by(&error)
            .hint("--port 0 takes any port that is free")
    })
}

/// Where the processes of a supervisor listen, one after another.
pub(super) struct PrivateSocket {
    pub(super) address: SocketAddr,
    /// Elsewhere than on Unix a process could not bind the address while this one has it.
    #[cfg(unix)]
    socket: TcpListener,
}

impl PrivateSocket {
    pub(super) fn bind() -> Result<Self, Failure> {
        let socket = bind((Ipv4Addr::LOCALHOST, 0).into())?;
        let address = socket.local_addr().map_err(|error| {
            Failure::usage("the address of a socket can't be told").caused_by(&error)
        })?;
        Ok(Self {
            address,
            #[cfg(unix)]
            socket,
        })
    }

    /// Lets the process that `command` starts listen here, for clients that connect to `public`.
    pub(super) fn pass_on(&self, public: SocketAddr, command: &mut Command) {
        // Without a copy the process finds no socket and says so.
        #[cfg(unix)]
        if let Ok(copy) = self.socket.try_clone() {
            command.stdin(std::os::fd::OwnedFd::from(copy));
        }
        command.env(VARIABLE, format!("{public} {}", self.address));
    }
}

/// Keeps the socket from a process that listens on one of its own.
pub(super) fn keep_from(command: &mut Command) {
    command.env_remove(VARIABLE);
}

/// The socket that a supervisor passed on, and what clients connect to.
fn inherited() -> Result<Option<(TcpListener, SocketAddr)>, Failure> {
    let Ok(text) = std::env::var(VARIABLE) else { return Ok(None) };
    let addresses: Option<(SocketAddr, SocketAddr)> = text
        .split_once(' ')
        .and_then(|(public, private)| Some((public.parse().ok()?, private.parse().ok()?)));
    let Some((public, private)) = addresses else {
        let what = format!("{VARIABLE} is '{text}', which no supervisor says");
        return Err(Failure::usage(what).hint(format!("unset {VARIABLE}")));
    };
    Ok(Some((passed_on(private)?, public)))
}

#[cfg(unix)]
fn passed_on(private: SocketAddr) -> Result<TcpListener, Failure> {
    use std::os::fd::AsFd;

    let missing = || {
        let what = "the supervisor's listening socket is not this process's standard input";
        Failure::usage(what).hint(format!("unset {VARIABLE}"))
    };
    let socket = std::io::stdin().as_fd().try_clone_to_owned().map(TcpListener::from);
    let socket = socket.map_err(|error| missing().caused_by(&error))?;
    match socket.local_addr() {
        Ok(address) if address == private => Ok(socket),
        Ok(_) => Err(missing()),
        Err(error) => Err(missing().caused_by(&error)),
    }
}

#[cfg(not(unix))]
fn passed_on(private: SocketAddr) -> Result<TcpListener, Failure> {
    bind(private)
}
