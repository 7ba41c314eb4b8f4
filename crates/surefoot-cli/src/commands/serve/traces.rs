//! `--otlp`, and the variables that OpenTelemetry defines for the same: where traces of requests are sent.

use std::sync::Arc;

use surefoot_serve::metrics::Metrics;
use surefoot_serve::trace::{Exporter, TraceEndpoint};

use crate::exit::Failure;
use crate::terminal::Terminal;

/// The name of the service in traces, unless `OTEL_SERVICE_NAME` has another.
const SERVICE: &str = "surefoot";

/// Where traces are sent; none if nobody asked for them. The option counts before the variables.
pub(super) fn endpoint(
    option: Option<&str>,
    terminal: &Terminal,
) -> Result<Option<TraceEndpoint>, Failure> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let headers = variable("OTEL_EXPORTER_OTLP_TRACES_HEADERS")
        .or_else(|| variable("OTEL_EXPORTER_OTLP_HEADERS"))
        .unwrap_or_default();
    if let Some(address) = option {
        let endpoint = TraceEndpoint::below(address)
            .map_err(|error| Failure::usage("--otlp can't be used").caused_by(&error))?;
        let endpoint = endpoint.with_headers(&headers).map_err(|error| {
            Failure::usage("OTEL_EXPORTER_OTLP_HEADERS can't be used").caused_by(&error)
        })?;
        return Ok(Some(endpoint));
    }
    if variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Ok(None);
    }
    let found = match variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") {
        Some(address) => TraceEndpoint::exactly(&address),
        None => match variable("OTEL_EXPORTER_OTLP_ENDPOINT") {
            Some(address) => TraceEndpoint::below(&address),
            None => return Ok(None),
        },
    };
    // Variables are often set for all programs of a machine: they stop none.
    let endpoint = match found {
        Ok(endpoint) => endpoint,
        Err(error) => {
            terminal.note(&format!("no traces are sent: {error}"));
            return Ok(None);
        }
    };
    match endpoint.with_headers(&headers) {
        Ok(endpoint) => Ok(Some(endpoint)),
        Err(error) => {
            terminal.note(&format!("no traces are sent: {error}"));
            Ok(None)
        }
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
    let exporter = Exporter::start(endpoint, service, Arc::clone(metrics));
    exporter.map(Some).map_err(|error| Failure::usage("traces can't be sent").caused_by(&error))
}
