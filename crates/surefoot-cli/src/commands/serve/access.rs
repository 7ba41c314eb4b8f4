//! Who may ask a server: the address that it listens on, and the keys that clients need.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use surefoot_serve::http::{self, Keys};

use super::Serve;
use crate::exit::Failure;

/// Where a key can be given without leaving it in a file or on the command line.
const KEY_VARIABLE: &str = "SUREFOOT_API_KEY";

impl Serve {
    /// The keys of the file or of the environment.
    pub(super) fn keys(&self) -> Result<Keys, Failure> {
        let wrong = |place: String| {
            move |error| {
                Failure::usage(format!("{place} holds no API key"))
                    .caused_by(&error as &http::UnusableKeys)
            }
        };
        if let Some(file) = &self.api_key_file {
            let text = std::fs::read_to_string(file).map_err(|error| {
                Failure::usage(format!("{} can't be read", file.display())).caused_by(&error)
            })?;
            return Keys::read(&text).map_err(wrong(file.display().to_string()));
        }
        match std::env::var(KEY_VARIABLE) {
            Ok(text) => Keys::read(&text).map_err(wrong(KEY_VARIABLE.to_owned())),
            Err(std::env::VarError::NotPresent) => Ok(Keys::default()),
            Err(error) => {
                Err(Failure::usage(format!("{KEY_VARIABLE} can't be read")).caused_by(&error))
            }
        }
    }

    /// The address, if whoever can reach it needs a key.
    pub(super) fn address(&self, keys: &Keys) -> Result<SocketAddr, Failure> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let address = (host, self.port)
            .to_socket_addrs()
            .map_err(|error| {
                Failure::usage(format!("--host: '{}' is not an address", self.host))
                    .caused_by(&error)
            })?
            .next()
            .ok_or_else(|| Failure::usage(format!("--host: '{}' has no address", self.host)))?;
        if !is_here(address.ip()) && keys.is_empty() && !self.allow_anyone {
            return Err(Failure::usage(format!(
                "on {} other machines could use the model, and there is no API key",
                address.ip()
            ))
            .hint("--api-key-file FILE, or a key in SUREFOOT_API_KEY")
            .hint("--allow-anyone, where the network is trusted"));
        }
        Ok(address)
    }
}

/// Whether only this machine reaches an address.
fn is_here(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}
