//! Traces over https: to collectors whose certificate a private authority signed, and to those that ask for one.
//! `collector/make_certificates.py` made the certificates.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use serde_json::json;

use crate::served::{Server, fixture};
use crate::traces::Collector;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/serve/collector").join(name)
}

/// A collector behind TLS, which may ask for a certificate.
fn encrypted(asks: bool) -> Collector {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let certificate = |name| CertificateDer::from_pem_file(file(name)).unwrap();
    let builder = match asks {
        false => builder.with_no_client_auth(),
        true => {
            let mut roots = RootCertStore::empty();
            roots.add(certificate("authority.pem")).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    let key = PrivateKeyDer::from_pem_file(file("collector.key")).unwrap();
    let config =
        Arc::new(builder.with_single_cert(vec![certificate("collector.pem")], key).unwrap());
    Collector::speaking("https", move |stream: TcpStream| {
        StreamOwned::new(ServerConnection::new(Arc::clone(&config)).unwrap(), stream)
    })
}

/// A server that sends traces to a collector, with variables that name files beside this one. What it says goes to a file.
fn sending_to(collector: &Collector, files: &[(&str, &str)], said: &Path) -> Server {
    Server::start_with(&fixture("bert-tiny"), &[], |command| {
        command.stderr(std::fs::File::create(said).unwrap());
        command.args(["--otlp", &collector.url]).env("OTEL_SERVICE_NAME", "tested");
        for (variable, name) in files {
            command.env(variable, file(name));
        }
    })
}

const TRUSTED: (&str, &str) = ("OTEL_EXPORTER_OTLP_CERTIFICATE", "authority.pem");
const OWN: [(&str, &str); 2] = [
    ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "client.pem"),
    ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "client.key"),
];

#[test]
fn collectors_that_a_private_authority_vouches_for_get_traces() {
    let said = tempfile::NamedTempFile::new().unwrap();
    for (asks, files) in [(false, vec![TRUSTED]), (true, vec![TRUSTED, OWN[0], OWN[1]])] {
        let collector = encrypted(asks);
        let server = sending_to(&collector, &files, said.path());
        server.post("/v1/embeddings", json!({"input": [2, 10, 3]})).good();
        collector.spans(|spans| spans.iter().any(|span| span["name"] == "POST /v1/embeddings"));
        server.wait_for("surefoot_trace_spans_total{outcome=\"exported\"}", 1.0);
        assert_eq!(server.metric("surefoot_trace_spans_total{outcome=\"dropped\"}"), 0.0);
    }
}

#[test]
fn a_collector_that_nobody_vouches_for_gets_nothing_and_the_reason_is_told_once() {
    let said = tempfile::NamedTempFile::new().unwrap();
    for (asks, files, why) in
        [(false, vec![], "UnknownIssuer"), (true, vec![TRUSTED], "CertificateRequired")]
    {
        let collector = encrypted(asks);
        let mut server = sending_to(&collector, &files, said.path());
        let dropped = "surefoot_trace_spans_total{outcome=\"dropped\"}";
        for _ in 0..2 {
            let before = server.metric(dropped);
            server.post("/v1/embeddings", json!({"input": [2, 10, 3]})).good();
            server.wait_for(dropped, before + 1.0);
        }
        server.signal("TERM");
        server.wait();
        let said = std::fs::read_to_string(said.path()).unwrap();
        let told: Vec<&str> = said.lines().filter(|line| line.contains("take traces")).collect();
        assert_eq!(told.len(), 1, "{said}");
        assert!(told[0].contains(&collector.url) && told[0].contains(why), "{said}");
    }
}

/// What a server says that can't use the variables, and its exit code.
fn refused(option: bool, variables: &[(&str, PathBuf)]) -> (Option<i32>, String) {
    let mut command = crate::served::program();
    command.arg("serve").arg(fixture("bert-tiny")).args(["--port", "0"]);
    match option {
        true => command.args(["--otlp", "https://localhost:4318"]),
        false => command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "https://localhost:4318"),
    };
    // It ends at once, also where it would go on.
    command.args(["--expect-digest", "0000"]).envs(variables.iter().cloned());
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn files_that_are_no_certificates_are_refused_by_name() {
    let missing = file("missing.pem");
    let garbage = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&garbage, "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
        .unwrap();
    for (variables, said) in [
        (
            vec![(TRUSTED.0, missing.clone())],
            "missing.pem, which OTEL_EXPORTER_OTLP_CERTIFICATE names, can't be read",
        ),
        (
            vec![("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", file("client.key"))],
            "there is no certificate in PEM in it",
        ),
        (
            vec![(OWN[0].0, file(OWN[0].1))],
            "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE is set and OTEL_EXPORTER_OTLP_CLIENT_KEY is not",
        ),
        (
            vec![("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", file(OWN[1].1))],
            "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY is set and OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE is not",
        ),
        (
            vec![(OWN[0].0, file(OWN[0].1)), (OWN[1].0, file("collector.key"))],
            "collector.key, which OTEL_EXPORTER_OTLP_CLIENT_KEY names, can't be used",
        ),
        (
            vec![(OWN[0].0, file(OWN[0].1)), (OWN[1].0, garbage.path().to_owned())],
            ", which OTEL_EXPORTER_OTLP_CLIENT_KEY names, can't be used",
        ),
        (
            vec![(OWN[0].0, file("client.key")), (OWN[1].0, file(OWN[1].1))],
            "client.key, which OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE names, can't be used",
        ),
    ] {
        let (code, told) = refused(true, &variables);
        assert_eq!(code, Some(2), "{told}");
        assert!(told.contains(said), "{told}");
        // Variables are often set for all programs of a machine: they are noted, and the server starts.
        let (_, told) = refused(false, &variables);
        assert!(told.contains("no traces are sent") && told.contains(said), "{told}");
        assert!(told.contains("digest"), "it went on: {told}");
    }
}
