//! Prompt look-up: what came behind the last tokens when they came before is proposed to come again.
//!
//! Texts repeat themselves: answers quote their prompts, code repeats names, lists repeat their form. The place is
//! searched for at which the longest run of tokens ends that the text ends with too; of equals, the latest.

/// So many tokens have to be the same: behind a single one nearly anything comes.
const LEAST_MATCH: usize = 2;
/// Runs that are longer are as good as this.
const LONGEST_MATCH: usize = 16;
/// So far back is searched, so that a token of a very long text costs no more than one of a long text.
const FARTHEST: usize = 16_384;

/// At most `most` tokens that may follow `tokens`; none if the text does not repeat itself.
pub fn propose(tokens: &[u32], most: usize) -> Vec<u32> {
    let from = tokens.len().saturating_sub(FARTHEST);
    let tokens = &tokens[from..];
    let Some((&last, before)) = tokens.split_last() else { return Vec::new() };
    if most == 0 {
        return Vec::new();
    }
    let mut best: Option<(usize, usize)> = None;
    for (end, _) in before.iter().enumerate().rev().filter(|(_, token)| **token == last) {
        let longest = best.map_or(LEAST_MATCH - 1, |(length, _)| length);
        let same = tokens[..=end].iter().rev().zip(tokens.iter().rev());
        let length = same.take(LONGEST_MATCH).take_while(|(one, other)| one == other).count();
        if length > longest {
            best = Some((length, end + 1));
        }
        if length == LONGEST_MATCH {
            break;
        }
    }
    let Some((_, next)) = best else { return Vec::new() };
    // What is behind the place may be short, when the text repeats itself at its end: then it goes round.
    let period = tokens.len() - next;
    (0..most).map(|at| tokens[next + at % period]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_behind_the_longest_same_run_is_proposed() {
        // "1 2 3 4" comes before "9", and "3 4" alone before "7", later.
        let tokens = [1, 2, 3, 4, 9, 8, 3, 4, 7, 5, 1, 2, 3, 4];
        assert_eq!(propose(&tokens, 3), [9, 8, 3]);
        // Of equals, the latest.
        let tokens = [5, 3, 4, 9, 6, 3, 4, 7, 2, 3, 4];
        assert_eq!(propose(&tokens, 2), [7, 2]);
    }

    #[test]
    fn a_text_that_repeats_itself_at_its_end_goes_on_so() {
        assert_eq!(propose(&[4, 6, 6, 6], 5), [6; 5]);
        assert_eq!(propose(&[1, 2, 1, 2, 1, 2], 5), [1, 2, 1, 2, 1]);
    }

    #[test]
    fn without_a_run_of_two_nothing_is_proposed() {
        assert!(propose(&[1, 2, 3, 4, 1], 4).is_empty());
        assert!(propose(&[], 4).is_empty());
        assert!(propose(&[7], 4).is_empty());
        assert!(propose(&[1, 2, 1, 2], 0).is_empty());
    }

    #[test]
    fn a_very_long_text_is_searched_only_near_its_end() {
        let mut tokens = vec![1, 2, 3];
        tokens.extend((0..FARTHEST as u32).map(|at| 10 + at));
        tokens.extend([1, 2]);
        assert!(propose(&tokens, 4).is_empty());
        tokens.extend([4, 1, 2]);
        assert_eq!(propose(&tokens, 1), [4]);
    }
}
