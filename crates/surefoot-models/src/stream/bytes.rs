//! Numbers of bytes as people write and read them.

use std::fmt;
use std::str::FromStr;

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

const UNITS: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, size) = UNITS.into_iter().find(|(_, size)| self.0 >= *size).unwrap_or(("B", 1));
        if size == 1 {
            write!(f, "{} B", self.0)
        } else {
            write!(f, "{:.1} {unit}", self.0 as f64 / size as f64)
        }
    }
}

/// The text is no number of bytes.
#[derive(Debug, thiserror::Error)]
#[error("'{0}' is no amount of memory; write for example 2GiB, 512MiB or 1.5GB")]
pub struct NotBytes(String);

impl FromStr for Bytes {
    type Err = NotBytes;

    fn from_str(text: &str) -> Result<Self, NotBytes> {
        let bad = || NotBytes(text.to_owned());
        let trimmed = text.trim();
        let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let number: f64 = trimmed[..end].parse().map_err(|_| bad())?;
        let unit = match trimmed[end..].trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1_u64,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return Err(bad()),
        };
        let bytes = number * unit as f64;
        if bytes.is_finite() && bytes < 2f64.powi(60) { Ok(Self(bytes as u64)) } else { Err(bad()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_with_binary_and_decimal_units() {
        assert_eq!("2GiB".parse::<Bytes>().unwrap(), Bytes(2 << 30));
        assert_eq!("1.5 GB".parse::<Bytes>().unwrap(), Bytes(1_500_000_000));
        assert_eq!("300m".parse::<Bytes>().unwrap(), Bytes(300 << 20));
        assert_eq!("4096".parse::<Bytes>().unwrap(), Bytes(4096));
        for wrong in ["", "GiB", "-1", "1.2.3", "2 apples", "1e99999", "99999999999TiB"] {
            assert!(wrong.parse::<Bytes>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn amounts_are_shown_in_the_largest_unit_that_fits() {
        assert_eq!(Bytes(1536 << 20).to_string(), "1.5 GiB");
        assert_eq!(Bytes(12).to_string(), "12 B");
    }
}
