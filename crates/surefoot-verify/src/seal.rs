//! The seal at the end of every fingerprint and transcript: a digest of each byte before it, and
//! a signature if there is a key. A file is read only if its seal fits, so a flipped bit is found
//! wherever it is.
//!
//! A digest alone shows damage, not intent: whoever changes a file can seal it anew. The
//! signature, or a run of the model itself, shows more.

use std::path::Path;

use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use surefoot_models::save::whole;

use crate::error::VerifyError;
use crate::{hex, identity};

/// More than a thousand challenges at a thousand sites need.
const MAX_FILE: u64 = 1 << 30;
const MARK: &str = ",\n  \"seal\": ";

/// What stands at the end of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seal {
    /// The BLAKE3 digest of all bytes before the seal.
    pub digest: String,
    /// Whose signature it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub public_key: Option<String>,
    /// The Ed25519 signature of the digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
}

/// Writes `document` with its seal.
pub fn seal(document: &impl Serialize, key: Option<&SecretKey>) -> Result<Vec<u8>, VerifyError> {
    let json = serde_json::to_string_pretty(document)
        .map_err(|error| VerifyError::document(format!("can't be written: {error}")))?;
    let body = json.strip_suffix("\n}").unwrap_or(&json);
    let digest = digest(body.as_bytes());
    let seal = Seal {
        digest: hex::encode(&digest),
        public_key: key.map(SecretKey::public_key),
        signature: key.map(|key| hex::encode(&key.0.sign(&message(&digest)).to_bytes())),
    };
    Ok([body.as_bytes(), &tail(&seal)?].concat())
}

/// Reads a document whose seal fits.
pub fn open<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, Seal), VerifyError> {
    let damaged = |what: &str| VerifyError::document(format!("is damaged or no such file: {what}"));
    let text = std::str::from_utf8(bytes).map_err(|_| damaged("it is not text"))?;
    let at = text.rfind(MARK).ok_or_else(|| damaged("it has no seal"))?;
    let (body, end) = text.split_at(at);
    let seal = end[MARK.len()..].strip_suffix("\n}\n").ok_or_else(|| damaged("it is cut off"))?;
    let seal: Seal =
        serde_json::from_str(seal).map_err(|error| damaged(&format!("the seal: {error}")))?;
    // There is one way to write a seal.
    if tail(&seal)? != end.as_bytes() {
        return Err(damaged("the seal is not written as seals are"));
    }
    let digest = digest(body.as_bytes());
    if hex::encode(&digest) != seal.digest {
        return Err(damaged("the digest doesn't fit the contents"));
    }
    match (&seal.public_key, &seal.signature) {
        (None, None) => {}
        (Some(key), Some(signature)) => check_signature(key, signature, &digest)?,
        _ => return Err(damaged("a signature without its key, or a key without signature")),
    }
    let document = serde_json::from_str(&format!("{body}\n}}"))
        .map_err(|error| VerifyError::document(format!("is not as it should be: {error}")))?;
    Ok((document, seal))
}

/// Reads a file that is sealed.
pub fn read(path: &Path) -> Result<Vec<u8>, VerifyError> {
    identity::read_bounded(path, MAX_FILE)
}

/// Writes a file so that it is whole or not there.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), VerifyError> {
    whole(path, |part| std::fs::write(part, bytes))
        .map_err(|error| VerifyError::file(path, format!("can't be written: {error}")))
}

fn tail(seal: &Seal) -> Result<Vec<u8>, VerifyError> {
    let seal = serde_json::to_string(seal)
        .map_err(|error| VerifyError::document(format!("can't be written: {error}")))?;
    Ok(format!("{MARK}{seal}\n}}\n").into_bytes())
}

fn digest(body: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("surefoot 2026-11 sealed document");
    *hasher.update_rayon(body).finalize().as_bytes()
}

fn message(digest: &[u8; 32]) -> Vec<u8> {
    [b"surefoot sealed document 1\0".as_slice(), digest].concat()
}

fn check_signature(key: &str, signature: &str, digest: &[u8; 32]) -> Result<(), VerifyError> {
    let wrong = || VerifyError::document("is damaged: the signature doesn't fit");
    let key = VerifyingKey::from_bytes(&hex::decode32(key)?).map_err(|_| wrong())?;
    let signature: [u8; 64] = hex::decode(signature)?.try_into().map_err(|_| wrong())?;
    key.verify_strict(&message(digest), &Signature::from_bytes(&signature)).map_err(|_| wrong())
}

/// A key to sign with.
pub struct SecretKey(SigningKey);

impl SecretKey {
    /// A new one.
    pub fn fresh() -> Result<Self, VerifyError> {
        Ok(Self(SigningKey::from_bytes(&crate::challenge::fresh_key()?)))
    }

    /// Reads one that [`Self::write`] wrote.
    pub fn read(path: &Path) -> Result<Self, VerifyError> {
        let bytes = identity::read_bounded(path, 1024)?;
        let text = String::from_utf8_lossy(&bytes);
        hex::decode32(text.trim()).map(|bytes| Self(SigningKey::from_bytes(&bytes))).map_err(|_| {
            VerifyError::file(path, "is not a key: it should be 64 hexadecimal digits")
        })
    }

    /// Writes it to a new file that only its owner can read.
    pub fn write(&self, path: &Path) -> Result<(), VerifyError> {
        use std::io::Write as _;
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let text = hex::encode(&self.0.to_bytes()) + "\n";
        options
            .open(path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|error| VerifyError::file(path, format!("can't be written: {error}")))
    }

    /// The public half.
    pub fn public_key(&self) -> String {
        hex::encode(self.0.verifying_key().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Note {
        words: Vec<String>,
        number: u32,
    }

    fn note() -> Note {
        Note { words: vec!["one".to_owned(), "twö".to_owned()], number: 7 }
    }

    fn key() -> SecretKey {
        SecretKey(SigningKey::from_bytes(&[3; 32]))
    }

    #[test]
    fn what_was_sealed_comes_back() {
        let (back, seal_) = open::<Note>(&seal(&note(), None).unwrap()).unwrap();
        assert_eq!(back, note());
        assert_eq!(seal_.signature, None);
        let (back, seal_) = open::<Note>(&seal(&note(), Some(&key())).unwrap()).unwrap();
        assert_eq!(back, note());
        assert_eq!(seal_.public_key, Some(key().public_key()));
        let json: serde_json::Value =
            serde_json::from_slice(&seal(&note(), None).unwrap()).unwrap();
        assert_eq!(json["number"], 7);
    }

    #[test]
    fn a_flipped_bit_anywhere_is_found() {
        for sealed in [seal(&note(), None).unwrap(), seal(&note(), Some(&key())).unwrap()] {
            for bit in 0..sealed.len() * 8 {
                let mut flipped = sealed.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert!(open::<Note>(&flipped).is_err(), "bit {bit}");
            }
            for end in 0..sealed.len() {
                assert!(open::<Note>(&sealed[..end]).is_err(), "cut at {end}");
            }
        }
    }

    #[test]
    fn a_signature_of_other_contents_is_refused() {
        let other = Note { number: 8, ..note() };
        let signed = String::from_utf8(seal(&note(), Some(&key())).unwrap()).unwrap();
        let unsigned = String::from_utf8(seal(&other, None).unwrap()).unwrap();
        let (_, own) = open::<Note>(unsigned.as_bytes()).unwrap();
        let (_, with_key) = open::<Note>(signed.as_bytes()).unwrap();
        let forged = Seal { digest: own.digest, ..with_key };
        let body = &unsigned[..unsigned.rfind(MARK).unwrap()];
        let forged = [body.as_bytes(), &tail(&forged).unwrap()].concat();
        assert!(open::<Note>(&forged).unwrap_err().to_string().contains("signature"));
    }

    #[test]
    fn keys_come_back_and_are_never_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let key = SecretKey::fresh().unwrap();
        key.write(&path).unwrap();
        assert_eq!(SecretKey::read(&path).unwrap().public_key(), key.public_key());
        assert!(key.write(&path).is_err());
        std::fs::write(folder.path().join("no"), "no key").unwrap();
        assert!(SecretKey::read(&folder.path().join("no")).is_err());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }
}
