//! Which words of a text decided between two kinds.

use surefoot_core::fault::FaultKind;

use super::model::{KINDS, Model};
use super::reading::Reading;

/// What spoke for one kind against another.
pub(crate) struct Evidence {
    /// Where the words that speak most for it stand in the text, as one span.
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// The single words, most telling first.
    pub(crate) words: Vec<String>,
}

/// How many single words are named.
const WORDS: usize = 5;

/// The words of `text`, of which this is the reading, that speak for `kind` against `other`; `None` where none does.
pub(crate) fn evidence(
    model: &Model,
    text: &str,
    reading: &Reading,
    kind: FaultKind,
    other: FaultKind,
) -> Option<Evidence> {
    let index = |kind: FaultKind| KINDS.iter().position(|&known| known == kind);
    let (kind, other) = (index(kind)?, index(other)?);
    let read = &reading.text;
    let spans = read.words();
    let mut word_at = vec![usize::MAX; read.bytes.len()];
    for (number, span) in spans.iter().enumerate() {
        word_at[span.clone()].fill(number);
    }
    let mut worth = vec![0_i32; spans.len()];
    for feature in reading.features.iter().filter(|feature| feature.is_first) {
        // A feature's weight goes to the words that it touches, by the bytes it has of each.
        let weight = model.weight_between(feature.slot as usize, kind, other) * 16;
        let length = feature.span().len() as i32;
        for word in word_at[feature.span()].iter().filter(|&&word| word != usize::MAX) {
            worth[*word] += weight / length;
        }
    }
    let (first, last) = heaviest_run(&worth)?;
    let place = |at: usize| read.from.get(at).map_or(text.len(), |&place| place as usize);
    let mut order: Vec<usize> = (0..spans.len()).filter(|&number| worth[number] > 0).collect();
    order.sort_by_key(|&number| (std::cmp::Reverse(worth[number]), number));
    let mut words: Vec<String> = Vec::new();
    for number in order {
        let (start, end) = (place(spans[number].start), place(spans[number].end));
        let word = text[text.floor_char_boundary(start)..text.ceil_char_boundary(end)].trim();
        if words.len() < WORDS && !words.iter().any(|known| known == word) {
            words.push(word.to_owned());
        }
    }
    Some(Evidence { start: place(spans[first].start), end: place(spans[last].end), words })
}

/// The run of words with the largest sum, each word counted against the mean; `None` if no word
/// speaks for the kind.
fn heaviest_run(worth: &[i32]) -> Option<(usize, usize)> {
    if worth.iter().all(|&worth| worth <= 0) {
        return None;
    }
    let mean = worth.iter().sum::<i32>().max(0) / worth.len() as i32;
    let mut best: Option<(i32, usize, usize)> = None;
    let (mut sum, mut from) = (0, 0);
    for (at, &worth) in worth.iter().enumerate() {
        if sum <= 0 {
            (sum, from) = (0, at);
        }
        sum += worth - mean;
        if best.is_none_or(|(most, ..)| sum > most) {
            best = Some((sum, from, at));
        }
    }
    best.map(|(_, from, to)| (from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_that_weighs_most_is_found() {
        assert_eq!(heaviest_run(&[-3, 1, 9, 8, -9, 2]), Some((2, 3)));
        assert_eq!(heaviest_run(&[5]), Some((0, 0)));
        assert_eq!(heaviest_run(&[0, -1]), None);
        assert_eq!(heaviest_run(&[]), None);
    }
}
