//! The certificates and keys of files in PEM, checked before anything is sent: what sends traces leaves out authorities that it can't read, and
//! panics over a certificate whose key is another's.

use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts};

/// What is read from a file in PEM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PemFile {
    /// The authorities that are trusted.
    Authorities,
    /// The certificate that is shown to collectors.
    Certificate,
    /// The private key of that certificate.
    Key,
}

/// Why certificates can't be used.
#[derive(Debug, thiserror::Error)]
#[error("{problem}")]
pub struct UnusableCertificates {
    file: PemFile,
    problem: String,
}

impl UnusableCertificates {
    fn new(file: PemFile, problem: impl Into<String>) -> Self {
        Self { file, problem: problem.into() }
    }

    /// The file that is at fault.
    pub fn file(&self) -> PemFile {
        self.file
    }
}

/// The authorities of a file.
pub(super) fn authorities(pem: &[u8]) -> Result<RootCerts, UnusableCertificates> {
    let authorities = certificates(PemFile::Authorities, pem)?;
    let mut roots = RootCertStore::empty();
    for (at, authority) in authorities.iter().enumerate() {
        roots.add(CertificateDer::from(authority.der())).map_err(|error| {
            let problem = format!("certificate {} in it can't be used: {error}", at + 1);
            UnusableCertificates::new(PemFile::Authorities, problem)
        })?;
    }
    Ok(RootCerts::new_with_certs(&authorities))
}

/// A certificate, with those of the authorities above it, and its key.
pub(super) fn identity(pem: &[u8], key: &[u8]) -> Result<ClientCert, UnusableCertificates> {
    let chain = certificates(PemFile::Certificate, pem)?;
    check_pair(&chain, key)?;
    let key = PrivateKey::from_pem(key)
        .map_err(|error| UnusableCertificates::new(PemFile::Key, error.to_string()))?;
    Ok(ClientCert::new_with_certs(&chain, key))
}

/// The certificates of a file in PEM; at least one.
fn certificates(
    file: PemFile,
    pem: &[u8],
) -> Result<Vec<Certificate<'static>>, UnusableCertificates> {
    let mut certificates = Vec::new();
    for item in ureq::tls::parse_pem(pem) {
        match item {
            Ok(PemItem::Certificate(certificate)) => certificates.push(certificate),
            Ok(_) => {}
            Err(error) => {
                let problem = format!("it is not valid PEM: {error}");
                return Err(UnusableCertificates::new(file, problem));
            }
        }
    }
    match certificates.is_empty() {
        true => Err(UnusableCertificates::new(file, "there is no certificate in PEM in it")),
        false => Ok(certificates),
    }
}

/// Whether a certificate can be read, and the key in PEM is its own.
fn check_pair(chain: &[Certificate<'_>], key: &[u8]) -> Result<(), UnusableCertificates> {
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| {
        UnusableCertificates::new(PemFile::Key, "there is no private key in PEM in it")
    })?;
    let chain: Vec<_> =
        chain.iter().map(|one| CertificateDer::from(one.der()).into_owned()).collect();
    if let Some(Err(error)) = chain.first().map(ParsedCertificate::try_from) {
        let problem = format!("its first certificate can't be used: {error}");
        return Err(UnusableCertificates::new(PemFile::Certificate, problem));
    }
    // As a TLS configuration does it.
    match CertifiedKey::from_der(chain, key, &ring::default_provider()) {
        Ok(_) => Ok(()),
        Err(rustls::Error::InconsistentKeys(_)) => {
            Err(UnusableCertificates::new(PemFile::Key, "it is the key of another certificate"))
        }
        Err(error) => {
            Err(UnusableCertificates::new(PemFile::Key, format!("the key can't be used: {error}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file beside the tests of encrypted traces.
    fn pem(name: &str) -> Vec<u8> {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../surefoot-cli/tests/serve/collector");
        std::fs::read(folder.join(name)).unwrap()
    }

    #[test]
    fn certificates_and_keys_are_checked_before_anything_is_sent() {
        let (authority, own, key) = (pem("authority.pem"), pem("client.pem"), pem("client.key"));
        assert!(authorities(&authority).is_ok());
        assert!(identity(&own, &key).is_ok());
        let garbage = &b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"[..];
        let no_key = &b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"[..];
        let cut = &b"-----BEGIN CERTIFICATE-----\nAAAA\n"[..];
        let (second, other) = ([&authority[..], garbage].concat(), pem("collector.key"));
        for (wrong, why) in [
            (&b""[..], "no certificate"),
            (&b"nothing"[..], "no certificate"),
            (&key[..], "no certificate"),
            (cut, "not valid PEM"),
            (garbage, "certificate 1 in it"),
            (&second[..], "certificate 2 in it"),
        ] {
            let error = authorities(wrong).unwrap_err();
            assert_eq!(error.file(), PemFile::Authorities, "{error}");
            assert!(error.to_string().contains(why), "{error}");
        }
        for (certificate, key, file, why) in [
            (&b"nothing"[..], &key[..], PemFile::Certificate, "no certificate"),
            (cut, &key[..], PemFile::Certificate, "not valid PEM"),
            (garbage, &key[..], PemFile::Certificate, "first certificate"),
            (&own[..], &b"nothing"[..], PemFile::Key, "no private key"),
            (&own[..], &own[..], PemFile::Key, "no private key"),
            (&own[..], no_key, PemFile::Key, "can't be used"),
            (&own[..], &other[..], PemFile::Key, "another certificate"),
        ] {
            let error = identity(certificate, key).unwrap_err();
            assert_eq!(error.file(), file, "{error}");
            assert!(error.to_string().contains(why), "{error}");
        }
    }
}
