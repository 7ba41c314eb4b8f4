//! The date for templates that ask for it, in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

use chrono::DateTime;
use chrono::format::StrftimeItems;
use minijinja::{Error, ErrorKind};

/// Now, as `strftime` would write it.
pub(super) fn now(format: &str) -> Result<String, Error> {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    written(format, seconds)
}

fn written(format: &str, seconds: u64) -> Result<String, Error> {
    let items = StrftimeItems::new(format).parse().map_err(|_| {
        let message = format!("strftime_now can't read the format '{format}'");
        Error::new(ErrorKind::InvalidOperation, message)
    })?;
    let time = i64::try_from(seconds).ok().and_then(|seconds| DateTime::from_timestamp(seconds, 0));
    let time = time.unwrap_or_default();
    Ok(time.format_with_items(items.iter()).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_as_strftime_does() {
        let at = 1_709_210_096; // Thursday, 29 February 2024, 12:34:56.
        assert_eq!(written("%d %b %Y", at).unwrap(), "29 Feb 2024");
        assert_eq!(
            written("%A %e %B %y, %T 100%%", at).unwrap(),
            "Thursday 29 February 24, 12:34:56 100%"
        );
        assert_eq!(written("%F", 0).unwrap(), "1970-01-01");
        assert_eq!(written("%a %F", 951_782_400).unwrap(), "Tue 2000-02-29");
        assert_eq!(written("%F", 4_107_542_400).unwrap(), "2100-03-01");
        assert!(written("%Q", at).is_err());
    }
}
