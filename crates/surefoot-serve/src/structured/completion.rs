//! A short way to complete a text, for when its tokens run out.
//!
//! The search is greedy: it closes what is open (quotes, brackets) and otherwise writes the simplest character
//! that may come. For JSON that finds an end close to the nearest one; for other formats it may find none.

use llguidance::TokenParser;

/// Characters that close something or lead on, in the order in which they are tried: between values, and
/// where letters may come too, which is inside a text.
const BETWEEN: &[u8] = b"\"}])>,:";
const INSIDE: &[u8] = b"\"@:)>]";
/// Characters that are written where none of those can come, simplest first.
const SIMPLE: &[u8] =
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ {[(<-_./+*=;'!?@#$%&|\\^~`\n\t";

/// The tokens of one byte that a completion is written with.
#[derive(Debug)]
pub(super) struct Spelling {
    between: Vec<u32>,
    inside: Vec<u32>,
    letter: Option<u32>,
    simple: Vec<u32>,
}

impl Spelling {
    pub(super) fn new(tokens: &[Vec<u8>]) -> Self {
        let mut of_byte = [None; 256];
        for (id, token) in tokens.iter().enumerate() {
            if let [byte] = token.as_slice() {
                of_byte[usize::from(*byte)].get_or_insert(id as u32);
            }
        }
        let ids =
            |bytes: &[u8]| bytes.iter().filter_map(|byte| of_byte[usize::from(*byte)]).collect();
        Self {
            between: ids(BETWEEN),
            inside: ids(INSIDE),
            letter: of_byte[usize::from(b'a')],
            simple: ids(SIMPLE),
        }
    }

    /// Tokens that complete the text, at most `most`; none if none were found.
    pub(super) fn completion(&self, parser: &TokenParser, most: usize) -> Option<Vec<u32>> {
        let mut parser = parser.clone();
        let mut path = Vec::new();
        while !parser.is_accepting() {
            if path.len() == most {
                return None;
            }
            let id = self.next(&mut parser, path.len())?;
            parser.consume_token(id).ok()?;
            path.push(id);
        }
        Some(path)
    }

    /// The next token. `turn` is another number each time, so that a number which must be a multiple of
    /// another does not get the same digit for ever.
    fn next(&self, parser: &mut TokenParser, turn: usize) -> Option<u32> {
        let mut may_come = |id: u32| parser.validate_token(id).is_ok_and(|valid| valid);
        let is_inside = self.letter.is_some_and(&mut may_come);
        let closing = if is_inside { &self.inside } else { &self.between };
        if let Some(id) = closing.iter().copied().find(|id| may_come(*id)) {
            return Some(id);
        }
        let mask = parser.compute_mask().ok()?;
        let turned = self.simple.iter().cycle().skip(turn).take(self.simple.len());
        // The text is not complete, so that the token behind all others, its end, is not in the mask.
        turned.copied().find(|id| mask.is_allowed(*id)).or_else(|| mask.iter().next())
    }
}
