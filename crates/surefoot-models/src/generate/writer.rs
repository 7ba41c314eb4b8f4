//! Text that grows token by token: what is sure to stay is given out, and the text ends at the
//! first of the stop texts, which is not part of it.

use super::text::Texts;
use crate::error::ModelError;

/// The text of one sequence as it is generated.
///
/// What a token adds to a text depends on the tokens just before it, so only the last ones are decoded
/// again with each: those since the text was last whole, and those before that which they follow.
pub struct Writer<'a> {
    texts: &'a Texts,
    stops: &'a [String],
    ids: Vec<u32>,
    /// The tokens from here on are decoded with the next one.
    window: usize,
    /// The tokens up to here make up the settled text, which ends with a whole character.
    settled_ids: usize,
    settled: usize,
    /// Bytes of the text that were given out.
    given: usize,
    text: String,
    stopped: bool,
}

impl<'a> Writer<'a> {
    /// An empty text.
    pub fn new(texts: &'a Texts, stops: &'a [String]) -> Self {
        Self {
            texts,
            stops,
            ids: Vec::new(),
            window: 0,
            settled_ids: 0,
            settled: 0,
            given: 0,
            text: String::new(),
            stopped: false,
        }
    }

    /// Adds a token; true if the text has come to a stop.
    pub fn push(&mut self, id: u32) -> Result<bool, ModelError> {
        self.ids.push(id);
        let before = self.texts.decode(&self.ids[self.window..self.settled_ids])?;
        let now = self.texts.decode(&self.ids[self.window..])?;
        let searched = self.settled;
        match now.strip_prefix(&before) {
            Some(more) => {
                self.text.truncate(self.settled);
                self.text.push_str(more);
                if !more.is_empty() && !more.ends_with('\u{fffd}') {
                    self.settle(self.settled_ids);
                }
            }
            // What was settled reads otherwise now: all of it is read again.
            None => {
                self.text = self.texts.decode(&self.ids)?;
                self.settle(0);
            }
        }
        if let Some(end) = first_stop(&self.text, searched, self.stops) {
            self.text.truncate(end);
            self.stopped = true;
        }
        Ok(self.stopped)
    }

    fn settle(&mut self, window: usize) {
        self.window = window;
        self.settled_ids = self.ids.len();
        self.settled = self.text.len();
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

/// Where the first of the stop texts begins. Before `searched` none ends.
fn first_stop(text: &str, searched: usize, stops: &[String]) -> Option<usize> {
    let found = stops.iter().filter(|stop| !stop.is_empty()).filter_map(|stop| {
        let from = text.floor_char_boundary(searched.min(text.len()).saturating_sub(stop.len()));
        text[from..].find(stop.as_str()).map(|at| from + at)
    });
    found.min()
}

/// How much of the text can't become part of a stop text or of an unfinished character.
fn sure(text: &str, stops: &[String]) -> usize {
    let whole = text.trim_end_matches('\u{fffd}').len();
    let text = &text[..whole];
    let begun = stops.iter().filter(|stop| !stop.is_empty()).filter_map(|stop| {
        let from = text.ceil_char_boundary((text.len() + 1).saturating_sub(stop.len()));
        let begins = |at: &usize| stop.starts_with(&text[*at..]);
        text[from..].char_indices().map(|(at, _)| from + at).find(begins)
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
        assert_eq!(first_stop("xxab", 0, &stops), Some(2));
        assert_eq!(first_stop("xxab", 3, &stops), Some(2), "it began before what is new");
        assert_eq!(first_stop("xx", 0, &stops), None);
    }

    const FIXTURES: [&str; 4] = ["gpt2-tiny", "llama-tiny", "neox-tiny", "qwen2-tiny"];

    fn texts(name: &str) -> Texts {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        Texts::open(&folder.join(name), 256).unwrap()
    }

    proptest::proptest! {
        #[test]
        fn token_by_token_it_is_the_text_of_all_tokens(
            ids in proptest::collection::vec(0u32..256, 0..60),
            stop in "[a-e ]{0,2}",
        ) {
            for name in FIXTURES {
                let texts = texts(name);
                let stops = [stop.clone()];
                let mut writer = Writer::new(&texts, &stops);
                let mut given = String::new();
                let mut fed = 0;
                for &id in &ids {
                    fed += 1;
                    if writer.push(id).unwrap() {
                        break;
                    }
                    given.push_str(writer.fresh());
                }
                given.push_str(writer.rest());
                let mut whole = texts.decode(&ids[..fed]).unwrap();
                if let Some(end) = first_stop(&whole, 0, &stops) {
                    whole.truncate(end);
                }
                proptest::prop_assert_eq!(writer.text(), &whole);
                proptest::prop_assert_eq!(&given, &whole);
            }
        }
    }

    #[test]
    fn each_token_of_a_long_text_decodes_only_the_last_ones_again() {
        let texts = texts("gpt2-tiny");
        let mut writer = Writer::new(&texts, &[]);
        for number in 0..2000 {
            // What the next push decodes. Some of these tokens are parts of characters, which are decoded until one is whole.
            let decoded = writer.ids.len() + 1 - writer.window;
            assert!(decoded <= 50, "{decoded} tokens are decoded for token {number}");
            writer.push(40 + number % 50).unwrap();
        }
        assert_eq!(writer.ids.len(), 2000);
    }
}
