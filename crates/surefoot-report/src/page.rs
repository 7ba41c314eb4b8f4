//! The HTML template of all pages, and how data is inserted without becoming markup.

use std::io::{self, Write};

use serde::Serialize;

const SHELL: &str = include_str!("page/shell.html");
const STYLE: &str = include_str!("page/style.css");
const SHOW: &str = include_str!("page/js/show.js");
const CHART: &str = include_str!("page/js/chart.js");
const CURVES: &str = include_str!("page/js/curves.js");

/// The kinds of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Journal,
    Training,
    Evidence,
    Load,
    Bench,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Journal => "journal",
            Self::Training => "training",
            Self::Evidence => "evidence",
            Self::Load => "load",
            Self::Bench => "bench",
        }
    }

    /// The scripts of a page, in order; the last one starts it.
    fn scripts(self) -> Vec<&'static str> {
        let mut scripts = vec![SHOW, CHART];
        match self {
            Self::Journal => scripts.extend([
                include_str!("page/js/stories.js"),
                include_str!("page/js/events.js"),
                include_str!("page/js/timeline.js"),
                include_str!("page/js/memory.js"),
                include_str!("page/js/list.js"),
                include_str!("page/js/spent.js"),
                CURVES,
                include_str!("page/js/live.js"),
                include_str!("page/js/journal.js"),
            ]),
            Self::Training => scripts.extend([CURVES, include_str!("page/js/training.js")]),
            Self::Evidence => scripts.push(include_str!("page/js/evidence.js")),
            Self::Load => scripts.push(include_str!("page/js/load.js")),
            Self::Bench => scripts.push(include_str!("page/js/bench.js")),
        }
        scripts
    }
}

/// Where the content security policy lets a page connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Connect {
    Nowhere,
    #[cfg(feature = "live")]
    Home,
}

/// Writes a page with its data.
pub(crate) fn write(
    mut out: impl Write,
    kind: Kind,
    connect: Connect,
    title: &str,
    data: &impl Serialize,
) -> io::Result<()> {
    let mut rest = SHELL;
    while let Some(at) = rest.find("{{") {
        out.write_all(&rest.as_bytes()[..at])?;
        let (name, after) = rest[at + 2..].split_once("}}").unwrap_or((&rest[at + 2..], ""));
        match name {
            "kind" => out.write_all(kind.name().as_bytes())?,
            "connect" => out.write_all(match connect {
                Connect::Nowhere => b"'none'",
                #[cfg(feature = "live")]
                Connect::Home => b"'self'",
            })?,
            "version" => out.write_all(env!("CARGO_PKG_VERSION").as_bytes())?,
            "title" => out.write_all(escape_text(title).as_bytes())?,
            "style" => out.write_all(STYLE.as_bytes())?,
            "data" => serde_json::to_writer(InScript(&mut out), data)?,
            "script" => {
                for script in kind.scripts() {
                    out.write_all(script.as_bytes())?;
                }
            }
            other => {
                return Err(io::Error::other(format!(
                    "the template has an unknown placeholder '{other}'"
                )));
            }
        }
        rest = after;
    }
    out.write_all(rest.as_bytes())?;
    out.flush()
}

/// Text as HTML text or an attribute's value.
fn escape_text(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Escapes JSON for a script element: these bytes occur in JSON only inside strings, where the escape
/// means the same, and without `<` there can be no `</script>` or `<!--`.
struct InScript<W>(W);

impl<W: Write> Write for InScript<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut from = 0;
        for (at, byte) in bytes.iter().enumerate() {
            let escape: &[u8] = match byte {
                b'<' => b"\\u003c",
                b'>' => b"\\u003e",
                b'&' => b"\\u0026",
                _ => continue,
            };
            self.0.write_all(&bytes[from..at])?;
            self.0.write_all(escape)?;
            from = at + 1;
        }
        self.0.write_all(&bytes[from..])?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;

    /// The JSON inside a page.
    pub(crate) fn data_of(html: &[u8]) -> serde_json::Value {
        let text = std::str::from_utf8(html).unwrap();
        let begin = "<script type=\"application/json\" id=\"data\">";
        let from = text.find(begin).unwrap() + begin.len();
        let json = &text[from..from + text[from..].find("</script>").unwrap()];
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn hostile_text_stays_data() {
        let hostile = "</script><script>alert(1)</script><!--<script> ]]> & \u{2028} {{data}}";
        let mut html = Vec::new();
        write(&mut html, Kind::Journal, Connect::Nowhere, hostile, &[hostile]).unwrap();
        assert_eq!(data_of(&html)[0], hostile);
        let text = String::from_utf8(html).unwrap();
        assert_eq!(text.matches("<script").count(), 2, "data became markup");
        assert_eq!(text.matches("</script>").count(), 2);
        assert!(!text.contains("alert(1)</script>"));
        assert!(text.contains("<title>&lt;/script&gt;"), "the title is escaped");
    }

    #[test]
    fn every_page_is_complete_and_names_no_other_host() {
        for kind in [Kind::Journal, Kind::Training, Kind::Evidence, Kind::Load, Kind::Bench] {
            let mut html = Vec::new();
            write(&mut html, kind, Connect::Nowhere, "x", &0).unwrap();
            let text = String::from_utf8(html).unwrap();
            assert!(text.trim_end().ends_with("</html>"));
            assert!(text.contains("connect-src 'none'"));
            assert!(!text.contains("{{"), "{kind:?} has a placeholder that was not filled");
            // The namespace of SVG is a name, not an address.
            let addresses = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!addresses.contains("http://") && !addresses.contains("https://"), "{kind:?}");
        }
    }

    #[test]
    fn scripts_make_no_markup_from_text() {
        for kind in [Kind::Journal, Kind::Training, Kind::Evidence, Kind::Load, Kind::Bench] {
            for script in kind.scripts() {
                for way in
                    ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("]
                {
                    assert!(!script.contains(way), "{kind:?} uses {way}");
                }
            }
        }
    }
}
