//! How long a server runs: until a signal comes, its supervisor asks it to end, or it can't work any
//! more; then it finishes what was accepted.

use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use surefoot::device::supervisor;
use surefoot_serve::http::{self, App, ModelGateway, ProcessGateway};

use crate::child;
use crate::exit::{Exit, Failure};
use crate::terminal::say;

/// How often a server shows that it does not hang.
const SHOW_EVERY: Duration = Duration::from_secs(5);

/// Serves until a signal comes, then drains. `announce` says so once both can happen.
pub(super) fn serve(
    listener: TcpListener,
    app: Arc<App>,
    announce: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    run(listener, async |listener| {
        tokio::spawn(show_life(Arc::clone(&app)));
        let served = Arc::clone(&app);
        tokio::spawn(tell_that_it_works(move || served.has_answered()));
        let stop = tokio::spawn(asked_to_stop(Signals::new().map_err(failed)?, Arc::clone(&app)));
        announce()?;
        // The task of `stop` only ends when a signal has come.
        http::serve(listener, app, async { drop(stop.await) }).await.map_err(failed)
    })
}

/// Serves several models until a signal comes, then drains. `announce` says so once both can happen.
pub(super) fn serve_models(
    listener: TcpListener,
    front: Arc<ModelGateway>,
    announce: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    run(listener, async |listener| {
        tokio::spawn(show_life_of_front());
        let served = Arc::clone(&front);
        tokio::spawn(tell_that_it_works(move || served.has_answered()));
        let mut signals = Signals::new().map_err(failed)?;
        let stop = tokio::spawn(async move {
            tokio::select! {
                () = signals.any() => {}
                () = released() => {}
            }
            say("finishing what was accepted; Ctrl-C again doesn't wait");
            tokio::spawn(async move {
                signals.interrupt().await;
                std::process::exit(Exit::Interrupted as i32);
            });
        });
        announce()?;
        http::serve_models(listener, front, async { drop(stop.await) }).await.map_err(failed)
    })
}

/// Serves in front of a supervised process, on threads of its own, until this process is asked to stop or no process is
/// left.
pub(super) fn serve_process(
    listener: TcpListener,
    gateway: Arc<ProcessGateway>,
) -> JoinHandle<Result<(), Failure>> {
    std::thread::spawn(move || {
        run(listener, async |listener| {
            let stop = async {
                while !child::is_interrupted() {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            };
            http::serve_process(listener, gateway, stop).await.map_err(failed)
        })
    })
}

/// Runs `serving` on threads of its own.
fn run(
    listener: TcpListener,
    serving: impl AsyncFnOnce(tokio::net::TcpListener) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("http")
        .build()
        .map_err(failed)?;
    runtime.block_on(async {
        serving(tokio::net::TcpListener::from_std(listener).map_err(failed)?).await
    })
}

fn failed(error: std::io::Error) -> Failure {
    Failure::usage("the server failed").caused_by(&error)
}

/// Done when this process is asked to stop, or should end to be started again. A second Ctrl-C ends
/// it at once.
async fn asked_to_stop(mut signals: Signals, app: Arc<App>) {
    tokio::select! {
        () = signals.any() => say("finishing what was accepted; Ctrl-C again doesn't wait"),
        () = released() => say("finishing what was accepted; Ctrl-C again doesn't wait"),
        () = unable_to_work(&app) => {
            say("no device is left, or a thread has ended: this process ends, so that its supervisor starts another");
        }
    }
    tokio::spawn(async move {
        signals.interrupt().await;
        std::process::exit(Exit::Interrupted as i32);
    });
}

/// The signals that ask to stop; caught from when this is made.
#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let (interrupt, terminate) = (SignalKind::interrupt(), SignalKind::terminate());
        Ok(Self { interrupt: signal(interrupt)?, terminate: signal(terminate)? })
    }

    async fn any(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    async fn interrupt(&mut self) {
        self.interrupt.recv().await;
    }
}

#[cfg(windows)]
struct Signals(tokio::signal::windows::CtrlC);

#[cfg(windows)]
impl Signals {
    fn new() -> std::io::Result<Self> {
        tokio::signal::windows::ctrl_c().map(Self)
    }

    async fn any(&mut self) {
        self.interrupt().await;
    }

    async fn interrupt(&mut self) {
        self.0.recv().await;
    }
}

fn is_supervised() -> bool {
    *supervisor::inherited() != supervisor::Inherited::default()
}

/// Done when a supervised server has no device left or a thread of its engine has ended. One that
/// nobody would start again goes on answering, with errors and an unhealthy `/health`, until whoever
/// runs it decides.
async fn unable_to_work(app: &App) {
    if !is_supervised() {
        std::future::pending::<()>().await;
    }
    while app.engine().check_health().is_ok() {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Done when the supervisor that started this process asks it to end, or is gone.
async fn released() {
    if !is_supervised() {
        std::future::pending::<()>().await;
    }
    while !supervisor::asked_to_stop() {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Shows a supervisor that a server with nothing to do is not one that hangs.
async fn show_life(app: Arc<App>) {
    loop {
        if app.engine().is_idle() {
            supervisor::beat(app.engine().device().as_deref().unwrap_or("cpu"));
        }
        tokio::time::sleep(SHOW_EVERY).await;
    }
}

/// The same for a server of several models, whose processes work for it.
async fn show_life_of_front() {
    loop {
        supervisor::still_alive();
        tokio::time::sleep(SHOW_EVERY).await;
    }
}

/// Tells a supervisor that this server is of use once it has answered a request: it may be started again as often as
/// it dies, if it answers some in between.
async fn tell_that_it_works(has_answered: impl Fn() -> bool) {
    while !has_answered() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    supervisor::worked();
}
