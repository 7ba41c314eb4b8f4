//! `--otlp`, and the variables that OpenTelemetry defines for the same: where traces of requests are sent.

use std::sync::Arc;

use surefoot_serve::metrics::Metrics;
use surefoot_serve::trace::{Exporter, PemFile, TraceEndpoint, UnusableCertificates};

use crate::exit::Failure;
use crate::terminal::{self, Terminal};

/// The name of the service in traces, unless `OTEL_SERVICE_NAME` has another.
const SERVICE: &str = "surefoot";

/// Where traces are sent; none if nobody asked for them. The option is used before the variables.
pub(super) fn endpoint(
    option: Option<&str>,
    terminal: &Terminal,
) -> Result<Option<TraceEndpoint>, Failure> {
    if let Some(address) = option {
        let endpoint = TraceEndpoint::below(address)
            .map_err(|error| Failure::usage("--otlp can't be used").caused_by(&error))?;
        return completed(endpoint).map(Some);
    }
    if set("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Ok(None);
    }
    let found = match set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") {
        Some(address) => TraceEndpoint::exactly(&address),
        None => match set("OTEL_EXPORTER_OTLP_ENDPOINT") {
            Some(address) => TraceEndpoint::below(&address),
            None => return Ok(None),
        },
    };
    // Variables are often set for all programs of a machine: they stop none.
    let found = match found {
        Ok(endpoint) => completed(endpoint).map_err(|failure| {
            let told = std::iter::once(failure.what).chain(failure.because);
            told.collect::<Vec<_>>().join(": ")
        }),
        Err(error) => Err(error.to_string()),
    };
    match found {
        Ok(endpoint) => Ok(Some(endpoint)),
        Err(problem) => {
            terminal.note(&format!("no traces are sent: {problem}"));
            Ok(None)
        }
    }
}

/// What a variable holds, if it holds something.
fn set(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The variable for traces alone, or else the one for everything that is sent, and what it holds.
fn of_traces(name: &str) -> Option<(String, String)> {
    let names = [format!("OTEL_EXPORTER_OTLP_TRACES_{name}"), format!("OTEL_EXPORTER_OTLP_{name}")];
    names.into_iter().find_map(|name| set(&name).map(|value| (name, value)))
}

/// A file that a variable names.
struct NamedFile {
    path: String,
    variable: String,
    bytes: Vec<u8>,
}

impl NamedFile {
    /// The file that the variable names, if it is set.
    fn read(name: &str) -> Result<Option<Self>, Failure> {
        let Some((variable, path)) = of_traces(name) else { return Ok(None) };
        match std::fs::read(&path) {
            Ok(bytes) => Ok(Some(Self { path, variable, bytes })),
            Err(error) => {
                let what = format!("{path}, which {variable} names, can't be read");
                Err(Failure::usage(what).caused_by(&error))
            }
        }
    }

    fn unusable(&self, error: &UnusableCertificates) -> Failure {
        let what = format!("{}, which {} names, can't be used", self.path, self.variable);
        Failure::usage(what).caused_by(error)
    }
}

/// The endpoint with the headers and certificates that the variables name.
fn completed(endpoint: TraceEndpoint) -> Result<TraceEndpoint, Failure> {
    let mut endpoint = endpoint;
    if let Some((name, headers)) = of_traces("HEADERS") {
        endpoint = endpoint
            .with_headers(&headers)
            .map_err(|error| Failure::usage(format!("{name} can't be used")).caused_by(&error))?;
    }
    if !endpoint.is_encrypted() {
        return Ok(endpoint);
    }
    if let Some(file) = NamedFile::read("CERTIFICATE")? {
        endpoint = endpoint.trusting(&file.bytes).map_err(|error| file.unusable(&error))?;
    }
    let alone = |set: &NamedFile, missing: &str| {
        Failure::usage(format!(
            "{} is set and OTEL_EXPORTER_OTLP_{missing} is not, but a certificate is of use only with its key",
            set.variable
        ))
    };
    match (NamedFile::read("CLIENT_CERTIFICATE")?, NamedFile::read("CLIENT_KEY")?) {
        (None, None) => Ok(endpoint),
        (Some(certificate), Some(key)) => {
            endpoint.identified(&certificate.bytes, &key.bytes).map_err(|error| {
                let file = if error.file() == PemFile::Key { &key } else { &certificate };
                file.unusable(&error)
            })
        }
        (Some(certificate), None) => Err(alone(&certificate, "CLIENT_KEY")),
        (None, Some(key)) => Err(alone(&key, "CLIENT_CERTIFICATE")),
    }
}

/// Starts to send traces.
pub(super) fn start(
    endpoint: Option<TraceEndpoint>,
    metrics: &Arc<Metrics>,
) -> Result<Option<Exporter>, Failure> {
    let Some(endpoint) = endpoint else { return Ok(None) };
    let service = std::env::var("OTEL_SERVICE_NAME").ok().filter(|name| !name.is_empty());
    let service = service.unwrap_or_else(|| SERVICE.to_owned());
    let exporter = Exporter::start(endpoint, service, Arc::clone(metrics), terminal::note);
    exporter.map(Some).map_err(|error| Failure::usage("traces can't be sent").caused_by(&error))
}
