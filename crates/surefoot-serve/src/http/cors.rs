//! Which web pages may send requests from a browser (CORS): none unless the operator allows it.

use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Method, header};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

/// How long a browser may remember what it was told.
const REMEMBERED: Duration = Duration::from_secs(600);

/// Origins whose pages may ask.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    listed: Vec<HeaderValue>,
    is_any: bool,
}

/// A text that is no origin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not an origin: https://example.org, with a port if it has one and without a path, or *"
)]
pub struct UnusableOrigin(String);

impl Origins {
    /// The origins that an operator listed; `*` stands for all.
    pub fn new(texts: &[String]) -> Result<Self, UnusableOrigin> {
        let mut origins = Self::default();
        for text in texts {
            let wrong = || UnusableOrigin(text.clone());
            if text == "*" {
                origins.is_any = true;
                continue;
            }
            let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
            if !host.is_some_and(|host| !host.is_empty() && !host.contains('/')) {
                return Err(wrong());
            }
            origins.listed.push(HeaderValue::from_str(text).map_err(|_| wrong())?);
        }
        Ok(origins)
    }

    pub(super) fn layer(&self) -> CorsLayer {
        let allowed = match self.is_any {
            true => AllowOrigin::any(),
            false => AllowOrigin::list(self.listed.clone()),
        };
        CorsLayer::new()
            .allow_origin(allowed)
            .allow_methods([Method::GET, Method::POST])
            // Clients send headers of their own (OpenAI's for JavaScript a dozen); who may ask is said by the origin.
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers([HeaderName::from_static("x-request-id"), header::RETRY_AFTER])
            .max_age(REMEMBERED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_have_a_scheme_and_no_path() {
        let new = |text: &str| Origins::new(&[text.to_owned()]);
        assert!(new("https://example.org").is_ok() && new("http://localhost:3000").is_ok());
        assert!(new("*").unwrap().is_any);
        for wrong in
            ["example.org", "https://", "https://example.org/", "ftp://example.org", "https://a\nb"]
        {
            assert_eq!(new(wrong).unwrap_err(), UnusableOrigin(wrong.to_owned()));
        }
    }
}
