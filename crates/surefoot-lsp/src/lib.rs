//! A language server that shows the findings of `surefoot check` while the code is being written.
//!
//! It speaks the Language Server Protocol over any pair of channels; [`serve_stdio`] does so over stdin
//! and stdout, which is what editors start. A document goes through here as follows: `server` receives
//! its text, `document` checks it and turns findings into diagnostics, `actions` answers what an editor
//! asks about a place in it (quick fixes, explanations).
//!
//! Invariants: stdout carries protocol messages only; a document that was changed is checked before the
//! next message is read, so answers are never about an older text; nothing is written to disk.

#![cfg_attr(not(test), warn(clippy::expect_used))]

mod actions;
mod document;
mod server;

use lsp_server::{Connection, ProtocolError};

pub use server::serve;

/// Why the server ended otherwise than by the client's wish.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The client does not follow the protocol, or went away in the middle of it.
    #[error("the editor does not follow the Language Server Protocol")]
    Protocol(#[from] ProtocolError),
    /// The client's parameters can't be read.
    #[error("the parameters of `{method}` can't be read")]
    Parameters {
        /// The method they are for.
        method: &'static str,
        /// What is wrong with them.
        source: serde_json::Error,
    },
    /// The client said `exit` without `shutdown`, or closed the channel.
    #[error("the editor closed the connection without shutting the server down")]
    Closed,
    /// Stdin can't be read or stdout can't be written.
    #[error("messages can't be exchanged over stdin and stdout")]
    Io(#[from] std::io::Error),
}

/// Serves one client over stdin and stdout, until it shuts the server down.
pub fn serve_stdio() -> Result<(), ServeError> {
    let (connection, threads) = Connection::stdio();
    let served = serve(&connection);
    // The writer ends when the last sender is gone.
    drop(connection);
    match served {
        Ok(()) => Ok(threads.join()?),
        // The reader may still wait for a client that doesn't speak; the process ends anyway.
        Err(error) => Err(error),
    }
}
