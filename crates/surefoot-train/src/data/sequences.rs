//! Sequences of tokens for a pretrained model, in rows.
//!
//! Sequences are packed into rows of a given length, in the order in which they come, so that little of a row is padding.
//! No position sees another sequence of its row ([`SequenceBatch`](surefoot_models::run::sequences::SequenceBatch)), so
//! packing changes how fast a model learns from the data, not what.

use super::{Form, Label, NOT_PREDICTED, Sample, Source};

/// Rows that a sequence may still be put into.
const OPEN_ROWS: usize = 64;

/// One sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    /// Where it is from: a file and a line.
    pub name: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Whether each token is predicted from those before it; the first never is.
    pub predicted: Vec<bool>,
    /// Its class, where classes are predicted.
    pub class: Option<usize>,
}

impl Example {
    /// Keeps the first `length` tokens; says whether something is left to predict.
    pub(super) fn cut(&mut self, length: usize) -> bool {
        self.tokens.truncate(length);
        self.predicted.truncate(length);
        self.class.is_some() || self.predicted.iter().skip(1).any(|predicted| *predicted)
    }
}

/// Rows of sequences.
#[derive(Debug)]
pub struct Sequences {
    form: Form,
    examples: Vec<Example>,
    rows: Vec<Vec<usize>>,
}

impl Sequences {
    /// Puts sequences, none of which is longer than the form's length, into rows.
    pub fn new(form: Form, examples: Vec<Example>, pack: bool) -> Self {
        let rows = match pack && form.classes().is_none() {
            true => packed(&examples, form.size()),
            false => (0..examples.len()).map(|at| vec![at]).collect(),
        };
        Self { form, examples, rows }
    }
}

/// Puts each sequence into the first of the latest rows that has room for it.
fn packed(examples: &[Example], length: usize) -> Vec<Vec<usize>> {
    let mut rows: Vec<(Vec<usize>, usize)> = Vec::new();
    for (at, example) in examples.iter().enumerate() {
        let size = example.tokens.len();
        let from = rows.len().saturating_sub(OPEN_ROWS);
        match rows[from..].iter_mut().find(|(_, used)| used + size <= length) {
            Some((row, used)) => {
                row.push(at);
                *used += size;
            }
            None => rows.push((vec![at], size)),
        }
    }
    rows.into_iter().map(|(row, _)| row).collect()
}

impl Source for Sequences {
    fn len(&self) -> usize {
        self.rows.len()
    }

    fn form(&self) -> Form {
        self.form
    }

    fn read(&self, at: usize) -> Result<Sample, String> {
        let (mut tokens, mut segments, mut targets) = (Vec::new(), Vec::new(), Vec::new());
        for (segment, &example) in self.rows[at].iter().enumerate() {
            let Example { tokens: ids, predicted, class, .. } = &self.examples[example];
            tokens.extend_from_slice(ids);
            segments.extend(std::iter::repeat_n(segment as u32, ids.len()));
            match class {
                Some(class) => targets.push(*class as i32),
                None => {
                    let next = ids.iter().zip(predicted).skip(1);
                    targets.extend(
                        next.map(|(id, wanted)| if *wanted { *id as i32 } else { NOT_PREDICTED }),
                    );
                    // Nothing follows the last token.
                    targets.push(NOT_PREDICTED);
                }
            }
        }
        Ok(Sample::Sequences { tokens, segments, targets })
    }

    fn label(&self, at: usize) -> Option<Label> {
        self.examples[*self.rows[at].first()?].class.map(Label::Class)
    }

    fn name(&self, at: usize) -> String {
        let names: Vec<&str> =
            self.rows[at].iter().map(|example| self.examples[*example].name.as_str()).collect();
        names.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(tokens: &[u32], from: usize) -> Example {
        Example {
            name: format!("chats.jsonl:{}", tokens[0]),
            tokens: tokens.to_vec(),
            predicted: (0..tokens.len()).map(|at| at >= from).collect(),
            class: None,
        }
    }

    #[test]
    fn rows_hold_whole_sequences_and_predict_answers_only() {
        let form = Form::Sequences { vocabulary: 50, length: 6, classes: None };
        let examples = vec![example(&[1, 2, 3, 4], 2), example(&[5, 6, 7], 1), example(&[8, 9], 1)];
        let rows = Sequences::new(form, examples.clone(), true);
        assert_eq!(rows.len(), 2);
        let expected = Sample::Sequences {
            tokens: vec![1, 2, 3, 4, 8, 9],
            segments: vec![0, 0, 0, 0, 1, 1],
            targets: vec![NOT_PREDICTED, 3, 4, NOT_PREDICTED, 9, NOT_PREDICTED],
        };
        assert_eq!(rows.read(0).unwrap(), expected);
        assert_eq!(rows.name(0), "chats.jsonl:1, chats.jsonl:8");
        assert_eq!(Sequences::new(form, examples, false).len(), 3);
    }

    #[test]
    fn a_sequence_that_is_cut_before_its_answer_has_nothing_to_predict() {
        let mut long = example(&[1, 2, 3, 4], 3);
        assert!(long.clone().cut(4));
        assert!(!long.cut(3));
    }
}
