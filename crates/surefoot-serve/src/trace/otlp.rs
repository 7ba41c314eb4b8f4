//! Spans as OTLP writes them in JSON: `ExportTraceServiceRequest` of `opentelemetry/proto/trace/v1`, with identifiers in
//! hexadecimal digits and 64-bit numbers as texts.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::{Attribute, Span, SpanContext, SpanEvent};

/// The body of a request that exports spans.
pub(super) fn request(service: &str, spans: &[Span]) -> Value {
    let resource = [
        ("service.name", Attribute::Text(service.to_owned())),
        ("telemetry.sdk.name", Attribute::Text("surefoot".to_owned())),
        ("telemetry.sdk.language", Attribute::Text("rust".to_owned())),
        ("process.pid", Attribute::Whole(i64::from(std::process::id()))),
    ];
    json!({"resourceSpans": [{
        "resource": {"attributes": attributes(&resource)},
        "scopeSpans": [{
            "scope": {"name": "surefoot-serve", "version": env!("CARGO_PKG_VERSION")},
            "spans": spans.iter().map(span).collect::<Vec<_>>(),
        }],
    }]})
}

fn span(span: &Span) -> Value {
    let mut value = json!({
        "traceId": trace_id(&span.context),
        "spanId": span_id(span.context.span),
        "name": span.name,
        "kind": span.kind as u8,
        "startTimeUnixNano": nanos(span.start),
        "endTimeUnixNano": nanos(span.end),
        "attributes": attributes(&span.attributes),
        "events": span.events.iter().map(event).collect::<Vec<_>>(),
        "links": span.links.iter().map(link).collect::<Vec<_>>(),
    });
    if let Some(parent) = span.parent {
        value["parentSpanId"] = span_id(parent).into();
    }
    if let Some(error) = &span.error {
        value["status"] = json!({"code": 2, "message": error});
    }
    value
}

fn event(event: &SpanEvent) -> Value {
    json!({
        "timeUnixNano": nanos(event.time),
        "name": event.name,
        "attributes": attributes(&event.attributes),
    })
}

fn link(to: &SpanContext) -> Value {
    json!({"traceId": trace_id(to), "spanId": span_id(to.span)})
}

fn attributes(all: &[(&'static str, Attribute)]) -> Vec<Value> {
    let value = |attribute: &Attribute| match attribute {
        Attribute::Text(text) => json!({"stringValue": text}),
        Attribute::Whole(number) => json!({"intValue": number.to_string()}),
        Attribute::Number(number) => json!({"doubleValue": number}),
    };
    all.iter().map(|(key, attribute)| json!({"key": key, "value": value(attribute)})).collect()
}

fn trace_id(context: &SpanContext) -> String {
    format!("{:032x}", context.trace)
}

fn span_id(span: u64) -> String {
    format!("{span:016x}")
}

fn nanos(time: SystemTime) -> String {
    time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos()).to_string()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::SpanKind;
    use super::*;

    #[test]
    fn a_span_is_written_as_the_protocol_says() {
        let context = SpanContext { trace: 0xab, span: 0xcd, is_sampled: true };
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let mut own = Span::new(context, Some(7), "POST /x", SpanKind::Server, (at(1), at(2)));
        own.attributes.push(("http.response.status_code", Attribute::Whole(500)));
        own.error = Some("it failed".to_owned());
        own.links.push(SpanContext { span: 0xef, ..context });
        let written = request("mine", &[own]);
        let resource = &written["resourceSpans"][0];
        assert_eq!(
            resource["resource"]["attributes"][0],
            json!({"key": "service.name", "value": {"stringValue": "mine"}})
        );
        let trace = "000000000000000000000000000000ab";
        assert_eq!(
            resource["scopeSpans"][0]["spans"][0],
            json!({
                "traceId": trace, "spanId": "00000000000000cd", "parentSpanId": "0000000000000007",
                "name": "POST /x", "kind": 2,
                "startTimeUnixNano": "1000000000", "endTimeUnixNano": "2000000000",
                "attributes": [{"key": "http.response.status_code", "value": {"intValue": "500"}}],
                "events": [], "links": [{"traceId": trace, "spanId": "00000000000000ef"}],
                "status": {"code": 2, "message": "it failed"},
            })
        );
    }
}
