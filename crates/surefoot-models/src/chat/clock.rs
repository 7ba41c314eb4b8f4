//! The date for templates that ask for it, in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::{Error, ErrorKind};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// Now, as `strftime` would write it.
pub(super) fn now(format: &str) -> Result<String, Error> {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    written(format, seconds)
}

fn written(format: &str, seconds: u64) -> Result<String, Error> {
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let month_name = MONTHS[month as usize - 1];
    let day_name = DAYS[(seconds / 86_400 % 7) as usize];
    let mut text = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        match letters.next() {
            Some('Y') => text.push_str(&year.to_string()),
            Some('y') => text.push_str(&format!("{:02}", year % 100)),
            Some('m') => text.push_str(&format!("{month:02}")),
            Some('d') => text.push_str(&format!("{day:02}")),
            Some('e') => text.push_str(&format!("{day:2}")),
            Some('B') => text.push_str(month_name),
            Some('b') => text.push_str(&month_name[..3]),
            Some('A') => text.push_str(day_name),
            Some('a') => text.push_str(&day_name[..3]),
            Some('H') => text.push_str(&format!("{hour:02}")),
            Some('M') => text.push_str(&format!("{minute:02}")),
            Some('S') => text.push_str(&format!("{second:02}")),
            Some('F') => text.push_str(&format!("{year}-{month:02}-{day:02}")),
            Some('T') => text.push_str(&format!("{hour:02}:{minute:02}:{second:02}")),
            Some('%') => text.push('%'),
            other => {
                let unknown = other.map_or_else(String::new, String::from);
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("strftime_now knows no '%{unknown}'"),
                ));
            }
        }
    }
    Ok(text)
}

/// Year, month and day of a day counted from 1970, by the cycle of 400 years that begins in March.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
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
