//! Text that grows token by token: what is sure to stay is given out, and the text ends at the
//! first of the stop texts, which is not part of it.

use super::text::Texts;
use crate::error::ModelError;

/// The text of one sequence as it is generated.
pub struct Writer<'a> {
    texts: &'a Texts,
    stops: &'a [String],
    ids: Vec<u32>,
    /// Bytes of the text that were given out.
    given: usize,
    text: String,
    stopped: bool,
}

impl<'a> Writer<'a> {
    /// An empty text.
    pub fn new(texts: &'a Texts, stops: &'a [String]) -> Self {
        Self { texts, stops, ids: Vec::new(), given: 0, text: String::new(), stopped: false }
    }

    /// Adds a token; true if the text has come to a stop.
    pub fn push(&mut self, id: u32) -> Result<bool, ModelError> {
        self.ids.push(id);
        self.text = self.texts.decode(&self.ids)?;
        if let Some(end) = first_stop(&self.text, self.stops) {
            self.text.truncate(end);
            self.stopped = true;
        }
        Ok(self.stopped)
    }

    /// What is new and can't change any more.
    pub fn fresh(&mut self) -> &str {
        let sure = if self.stopped { self.text.len() } else { sure(&self.text, self.stops) };
        let from = self.given.min(self.text.len());
        if sure <= from || !self.text.is_char_boundary(from) {
            return "";
        }
        self.given = sure;
        &self.text[from..sure]
    }

    /// What was not given out yet.
    pub fn rest(&mut self) -> &str {
        let from = self.given.min(self.text.len());
        self.given = self.text.len();
        self.text.get(from..).unwrap_or("")
    }

    /// How many bytes of the text were given out.
    pub fn given(&self) -> usize {
        self.given
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        &self.text
    }
}

fn first_stop(text: &str, stops: &[String]) -> Option<usize> {
    stops.iter().filter(|stop| !stop.is_empty()).filter_map(|stop| text.find(stop.as_str())).min()
}

/// How much of the text can't become part of a stop text or of an unfinished character.
fn sure(text: &str, stops: &[String]) -> usize {
    let whole = text.trim_end_matches('\u{fffd}').len();
    let text = &text[..whole];
    let begun = stops.iter().filter(|stop| !stop.is_empty()).filter_map(|stop| {
        text.char_indices()
            .map(|(at, _)| at)
            .skip_while(|at| text.len() - at >= stop.len())
            .find(|&at| stop.starts_with(&text[at..]))
    });
    begun.min().unwrap_or(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_of_a_stop_text_is_held_back() {
        let stops = vec!["END".to_owned(), "\n\n".to_owned()];
        assert_eq!(sure("a text", &stops), 6);
        assert_eq!(sure("a text EN", &stops), 7);
        assert_eq!(sure("a text\n", &stops), 6);
        assert_eq!(sure("caf\u{fffd}", &stops), 3);
    }

    #[test]
    fn the_earliest_stop_text_ends_the_text() {
        let stops = vec!["b".to_owned(), "ab".to_owned(), String::new()];
        assert_eq!(first_stop("xxab", &stops), Some(2));
        assert_eq!(first_stop("xx", &stops), None);
    }
}
