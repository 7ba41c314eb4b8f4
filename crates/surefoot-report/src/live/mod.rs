//! The journal's page while a run goes on, on loopback.
//!
//! [`Server::start`] gives a server; its [`Server::listener`] goes to the journal's builder. A
//! page that connects gets the history first and then what happens, as server-sent events, so a
//! reload loses nothing. [`Server::end`] tells all pages that the run is over, waits a moment
//! until they have everything, and stops.
//!
//! Only loopback is listened on, and only requests that name it as their host are answered, so
//! that no other site's page can read along by a name that points here.
//!
//! ```no_run
//! use surefoot::journal::Journal;
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

use surefoot::journal::Event;
use tokio::runtime::Runtime;

use history::History;

/// How long the end waits for pages that are still reading.
const PATIENCE: Duration = Duration::from_secs(2);

/// Why a run can't be watched.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The port can't be listened on.
    #[error("port {port} on this machine can't be listened on")]
    Port {
        /// The port.
        port: u16,
        /// What the system said.
        source: io::Error,
    },
    /// The server's threads can't be started.
    #[error("the server's threads can't be started")]
    Threads(#[source] io::Error),
}

/// A page that shows a run as it goes on.
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
        // One thread: the run needs the processor more than the page does.
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

    /// What to give to [`surefoot::journal::JournalBuilder::listener`]: quick, never waits.
    pub fn listener(&self) -> impl Fn(&Event) + Send + Sync + 'static {
        let history = Arc::clone(&self.history);
        move |event| history.push(event)
    }

    /// Where the page is.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Tells all pages that the run is over, lets them have the rest, and stops.
    pub fn end(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        self.history.end();
        self.history.wait_for_readers(PATIENCE);
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
