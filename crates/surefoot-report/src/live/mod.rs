//! A live page of a journal, served on loopback while a run goes on.
//!
//! [`Server::start`] starts a server; pass its [`Server::listener`] to the journal's builder. A page
//! that connects gets the past events first and then new ones, as server-sent events, so that a
//! reload loses nothing. [`Server::end`] tells all pages that the run is over, waits up to two
//! seconds until they have everything, and stops.
//!
//! The server listens on loopback only and rejects requests with another host name, so that no web
//! site can read the events through a DNS name that points here (DNS rebinding).
//!
//! ```no_run
//! use surefoot_core::journal::Journal;
//! use surefoot_report::live::Server;
//!
//! let server = Server::start("training digits", 0)?;
//! let journal = Journal::builder().listener(server.listener()).build();
//! println!("watch it at {}", server.url());
//! // … work that records to the journal …
//! server.end();
//! # Ok::<(), surefoot_report::live::LiveError>(())
//! ```

mod history;
mod routes;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use surefoot_core::journal::Event;
use tokio::runtime::Runtime;

use history::History;

/// How long the end waits for pages that are still reading.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Why the live page can't be started.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The port can't be bound.
    #[error("can't listen on port {port} of this machine")]
    Port {
        /// The port.
        port: u16,
        /// The error of the system.
        source: io::Error,
    },
    /// The server's threads can't be started.
    #[error("can't start the threads of the server")]
    Threads(#[source] io::Error),
}

/// The server of a live page.
#[derive(Debug)]
pub struct Server {
    history: Arc<History>,
    address: SocketAddr,
    runtime: Option<Runtime>,
}

impl Server {
    /// Listens on a port of loopback; 0 takes any that is free.
    pub fn start(title: impl Into<String>, port: u16) -> Result<Self, LiveError> {
        let history = Arc::new(History::default());
        // One thread: the run needs the CPU more than the page does.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("surefoot-watch")
            .enable_all()
            .build()
            .map_err(LiveError::Threads)?;
        let listened = runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        });
        let (listener, address) = listened.map_err(|source| LiveError::Port { port, source })?;
        let routes = routes::routes(Arc::clone(&history), title.into());
        runtime.spawn(async move {
            // Serving ends with the runtime; an error before that leaves the run alone.
            let _ = axum::serve(listener, routes).await;
        });
        Ok(Self { history, address, runtime: Some(runtime) })
    }

    /// The listener for [`surefoot_core::journal::JournalBuilder::listener`]. It never blocks.
    pub fn listener(&self) -> impl Fn(&Event) + Send + Sync + 'static {
        let history = Arc::clone(&self.history);
        move |event| history.push(event)
    }

    /// The address of the page.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Tells all pages that the run is over, sends them the remaining events, and stops.
    pub fn end(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        self.history.end();
        self.history.wait_for_readers(END_TIMEOUT);
        runtime.shutdown_timeout(Duration::from_millis(200));
    }
}

impl Drop for Server {
    /// A run that fails ends its page as well.
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests;
