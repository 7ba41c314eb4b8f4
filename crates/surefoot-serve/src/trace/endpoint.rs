//! Where traces are sent, and how: the address, the headers that go with them, and whom to trust over https.

use std::str::FromStr;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, StatusCode, Uri, header};
use ureq::Agent;
use ureq::tls::{ClientCert, RootCerts, TlsConfig};

use super::certificates::{self, UnusableCertificates};

/// Where traces are sent: `http://HOST:PORT/PATH` or the same with https, and the headers that go with them.
#[derive(Clone)]
pub struct TraceEndpoint {
    url: String,
    /// The address without what may be a key: a name and password before the host, and a query.
    shown: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// Whose certificates are trusted: Mozilla's authorities, unless there are others.
    roots: RootCerts,
    /// What this program shows to a collector that asks who it is.
    identity: Option<ClientCert>,
}

/// Headers may hold keys, which no log should.
impl std::fmt::Debug for TraceEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        write!(f, "{} with {names:?}", self.shown)
    }
}

/// Why headers can't be sent. What they hold is not told: it may be a key.
#[derive(Debug, thiserror::Error)]
#[error(
    "header {number} of those for a collector can't be sent: {problem}; they have the form name=value,name=value"
)]
pub struct UnusableHeaders {
    number: usize,
    problem: &'static str,
}

/// Why nothing can be sent to an address. What stands before its host is not told: it may be a password.
#[derive(Debug, thiserror::Error)]
#[error(
    "'{address}' is not a collector's address: {problem}; it has the form http://HOST:4318 or https://HOST:4318"
)]
pub struct UnusableEndpoint {
    address: String,
    problem: &'static str,
}

impl TraceEndpoint {
    /// The endpoint below the address of a collector, to which `/v1/traces` is added.
    pub fn below(address: &str) -> Result<Self, UnusableEndpoint> {
        Self::exactly(&format!("{}/v1/traces", address.trim_end_matches('/')))
    }

    /// The endpoint at an address, as it is.
    pub fn exactly(address: &str) -> Result<Self, UnusableEndpoint> {
        let unusable = |problem| UnusableEndpoint { address: without_password(address), problem };
        let uri = Uri::from_str(address).map_err(|_| unusable("it is not a valid URL"))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(unusable("it begins neither with http:// nor with https://"));
        }
        let Some(host) = uri.host().filter(|host| !host.is_empty()) else {
            return Err(unusable("it has no host"));
        };
        // A port that is none is not refused by the parser.
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let place = authority.rsplit_once('@').map_or(authority, |(_, place)| place);
        if place != host && uri.port_u16().is_none() {
            return Err(unusable("its port is not a number up to 65535"));
        }
        let scheme = uri.scheme_str().unwrap_or_default();
        Ok(Self {
            url: uri.to_string(),
            shown: format!("{scheme}://{place}{}", uri.path()),
            headers: Vec::new(),
            roots: RootCerts::WebPki,
            identity: None,
        })
    }

    /// Sends these headers too, written as in `OTEL_EXPORTER_OTLP_HEADERS`: `name=value,name=value`, where values may have
    /// `%` and two digits for a byte.
    pub fn with_headers(mut self, text: &str) -> Result<Self, UnusableHeaders> {
        for (at, header) in text.split(',').map(str::trim).enumerate() {
            if header.is_empty() {
                continue;
            }
            let unusable = |problem| UnusableHeaders { number: at + 1, problem };
            let (name, value) = header.split_once('=').ok_or_else(|| unusable("it has no '='"))?;
            let name = HeaderName::from_str(name.trim())
                .map_err(|_| unusable("its name is not valid in a header"))?;
            let value: Vec<u8> = percent_encoding::percent_decode_str(value.trim()).collect();
            let mut value = HeaderValue::from_bytes(&value)
                .map_err(|_| unusable("its value is not valid in a header"))?;
            value.set_sensitive(true);
            self.headers.push((name, value));
        }
        Ok(self)
    }

    /// Trusts, over https, collectors whose certificates these authorities have signed, and no others. They are written in PEM.
    pub fn trusting(mut self, pem: &[u8]) -> Result<Self, UnusableCertificates> {
        self.roots = certificates::authorities(pem)?;
        Ok(self)
    }

    /// Shows this certificate, with those of the authorities between it and the one that collectors trust, to those that ask for
    /// one. Both are written in PEM.
    pub fn identified(self, pem: &[u8], key: &[u8]) -> Result<Self, UnusableCertificates> {
        Ok(self.showing(certificates::identity(pem, key)?))
    }

    /// Shows a certificate to collectors that ask for one. Where it is not valid, what sends traces panics.
    pub(super) fn showing(mut self, identity: ClientCert) -> Self {
        self.identity = Some(identity);
        self
    }

    /// Whether it uses TLS.
    pub fn is_encrypted(&self) -> bool {
        self.url.starts_with("https:")
    }

    /// The address, without passwords and keys in it.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    /// What sends to it; each request may take so long.
    pub(super) fn agent(&self, most: Duration) -> Agent {
        let tls =
            TlsConfig::builder().root_certs(self.roots.clone()).client_cert(self.identity.clone());
        Agent::config_builder()
            .timeout_global(Some(most))
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .user_agent(concat!("surefoot/", env!("CARGO_PKG_VERSION")))
            // Batches are seconds apart, and a connection that was closed meanwhile would fail one.
            .max_idle_connections(0)
            .tls_config(tls.build())
            .build()
            .new_agent()
    }

    /// Sends a batch once.
    pub(super) fn post(&self, agent: &Agent, body: &[u8]) -> Result<StatusCode, ureq::Error> {
        let mut request = agent.post(&self.url).header(header::CONTENT_TYPE, "application/json");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        Ok(request.send(body)?.status())
    }
}

/// An address that is not valid, as far as it may be shown: what stands before its host may be a password.
fn without_password(address: &str) -> String {
    match address.rsplit_once('@') {
        Some((before, host)) => match before.split_once("://") {
            Some((scheme, _)) => format!("{scheme}://***@{host}"),
            None => format!("***@{host}"),
        },
        None => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_collector_is_completed() {
        let below = |address| TraceEndpoint::below(address).unwrap().url;
        assert_eq!(below("http://collector:4318"), "http://collector:4318/v1/traces");
        assert_eq!(below("https://collector/otel/"), "https://collector/otel/v1/traces");
        assert_eq!(below("http://[::1]:4318"), "http://[::1]:4318/v1/traces");
        let exactly = TraceEndpoint::exactly("http://collector:1/x").unwrap();
        assert_eq!(exactly.url, "http://collector:1/x");
        let wrong = ["collector:4318", "ftp://collector", "http://", "", "http://collector:port"];
        for wrong in wrong {
            assert!(TraceEndpoint::below(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn headers_are_read_as_opentelemetry_writes_them_and_not_shown() {
        let endpoint = TraceEndpoint::below("http://collector:4318").unwrap();
        let with = endpoint.with_headers("x-key=a%20secret%3D, Authorization=Basic abc=,").unwrap();
        let all: Vec<_> =
            with.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        assert_eq!(all, [("x-key", &b"a secret="[..]), ("authorization", b"Basic abc=")]);
        let shown = format!("{with:?}");
        assert!(shown.contains("x-key") && !shown.contains("secret"), "{shown}");
        for wrong in ["no value", "na me=x", "x=%0a", "a=b,=c"] {
            let endpoint = TraceEndpoint::below("http://collector").unwrap();
            assert!(endpoint.with_headers(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn passwords_in_an_address_are_sent_and_not_shown() {
        let endpoint = TraceEndpoint::below("https://user:secret@collector:1/x").unwrap();
        assert_eq!(endpoint.url, "https://user:secret@collector:1/x/v1/traces");
        assert_eq!(endpoint.shown(), "https://collector:1/x/v1/traces");
        assert_eq!(format!("{endpoint:?}"), "https://collector:1/x/v1/traces with []");
        let keyed = TraceEndpoint::exactly("http://[::1]:4318/a@b?key=secret").unwrap();
        assert_eq!(keyed.shown(), "http://[::1]:4318/a@b");
        for wrong in [
            "https://user:secret@collector:port",
            "https://user:sec/secret@collector x",
            "ftp://user:secret@collector",
            "http://user:secret@",
            "user:secret@collector:4318",
        ] {
            let told = TraceEndpoint::below(wrong).unwrap_err();
            for shown in [told.to_string(), format!("{told:?}")] {
                assert!(!shown.contains("secret"), "{shown}");
                assert!(wrong.ends_with('@') || shown.contains("***@collector"), "{shown}");
            }
        }
    }
}
