//! Generating texts for many prompts with a runner: in groups where memory does not allow all at
//! once, and going on after a fault without repeating or losing a token.

use std::cell::RefCell;
use std::ops::ControlFlow;

use super::{Attempt, RunOutcome, RunRequest, Runner};
use crate::error::ModelError;
use crate::generate::speculate::Speculator;
use crate::generate::text::Texts;
use crate::generate::tokens::{self, FinishReason, Request};
use crate::generate::writer::Writer;
use crate::stream::needs::Work;

/// The text behind one prompt.
#[derive(Clone, Debug)]
pub struct Completion {
    /// The text, up to the first stop text.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub ending: FinishReason,
}

/// A token that was generated, for a caller that shows the text as it grows. Every token is reported
/// once, whatever faults happen on the way.
#[derive(Clone, Copy, Debug)]
pub struct NewToken<'a> {
    /// The number of its prompt.
    pub prompt: usize,
    /// The token; none at the end, where text that was held back is reported.
    pub token: Option<u32>,
    /// The text that is certain now and was not reported before; often empty.
    pub text: &'a str,
}

/// One prompt's tokens and text so far. They stay across attempts.
struct Sequence<'a> {
    tokens: Vec<u32>,
    writer: Writer<'a>,
    ending: Option<FinishReason>,
}

impl Runner {
    /// Generates a text behind each prompt of `request`, each up to the first of `stops`.
    ///
    /// `earlier` has tokens that an earlier process generated and reported already, one list for
    /// each prompt, or be empty: generation continues after them. `report` is given every new
    /// token; an error of its ends the run.
    pub fn generate(
        &self,
        texts: &Texts,
        request: &Request,
        stops: &[String],
        earlier: &[Vec<u32>],
        report: &mut dyn FnMut(NewToken<'_>) -> Result<(), ModelError>,
    ) -> Result<RunOutcome<Vec<Completion>>, ModelError> {
        let mut off = Speculator::default();
        self.generate_speculating(texts, request, stops, earlier, &mut off, report)
    }

    /// [`Self::generate`] with proposals of `speculator`, which change no token.
    pub fn generate_speculating(
        &self,
        texts: &Texts,
        request: &Request,
        stops: &[String],
        earlier: &[Vec<u32>],
        speculator: &mut Speculator,
        report: &mut dyn FnMut(NewToken<'_>) -> Result<(), ModelError>,
    ) -> Result<RunOutcome<Vec<Completion>>, ModelError> {
        let count = request.prompts.len();
        let work = |batch: usize| Work {
            batch,
            prompt: request.prompts.iter().map(Vec::len).max().unwrap_or(1),
            new_tokens: request.max_tokens,
            want: tokens::WANT,
        };
        let at_once = self.fitting_samples(count, work)?;
        let groups = count.div_ceil(at_once);
        let run = RunRequest::new("generate", work(at_once))
            .passes(groups * request.max_tokens)
            .samples(count);
        let mut sequences = Vec::with_capacity(count);
        for number in 0..count {
            let mut writer = Writer::new(texts, stops);
            let tokens = earlier.get(number).cloned().unwrap_or_default();
            let stopped = resume(&mut writer, &tokens)?;
            sequences.push(Sequence {
                tokens,
                writer,
                ending: stopped.then_some(FinishReason::Stopped),
            });
        }
        let state = RefCell::new((sequences, report, speculator));
        let outcome = self.run(&run, |attempt| {
            let (sequences, report, speculator) = &mut *state.borrow_mut();
            for part in attempt.ranges() {
                for first in part.clone().step_by(at_once) {
                    let group = first..(first + at_once).min(part.end);
                    let open: Vec<usize> =
                        group.filter(|at| sequences[*at].ending.is_none()).collect();
                    if !open.is_empty() {
                        generate_group(attempt, request, &open, sequences, speculator, *report)?;
                    }
                }
            }
            Ok(())
        })?;
        let (mut sequences, report, _) = state.into_inner();
        for (prompt, sequence) in sequences.iter_mut().enumerate() {
            // What was held back, since it could have become a stop text.
            let rest = sequence.writer.rest().to_owned();
            if !rest.is_empty() {
                report(NewToken { prompt, token: None, text: &rest })?;
            }
        }
        let completions = sequences.into_iter().map(|sequence| Completion {
            text: sequence.writer.text().to_owned(),
            tokens: sequence.tokens,
            ending: sequence.ending.unwrap_or(FinishReason::MaxTokens),
        });
        let completions = completions.collect();
        Ok(outcome.map(|()| completions))
    }
}

/// Brings a text to where an earlier process was; true if it had come to its end.
fn resume(writer: &mut Writer<'_>, tokens: &[u32]) -> Result<bool, ModelError> {
    let mut stopped = false;
    for &token in tokens {
        stopped = writer.push(token)?;
        // It was shown by the earlier process.
        writer.fresh();
    }
    Ok(stopped)
}

/// Generates for some prompts as one batch, behind the tokens that they have.
fn generate_group(
    attempt: &Attempt<'_>,
    request: &Request,
    open: &[usize],
    sequences: &mut [Sequence<'_>],
    speculator: &mut Speculator,
    report: &mut dyn FnMut(NewToken<'_>) -> Result<(), ModelError>,
) -> Result<(), ModelError> {
    let group = Request {
        prompts: open.iter().map(|at| request.prompts[*at].clone()).collect(),
        ends: request.ends.clone(),
        ..*request
    };
    let known: Vec<Vec<u32>> = open.iter().map(|at| sequences[*at].tokens.clone()).collect();
    let mut failed = None;
    let model = attempt.model();
    let generated = model.generate_speculating(&group, &known, speculator, |row, token| {
        if failed.is_some() {
            return ControlFlow::Break(());
        }
        let sequence = &mut sequences[open[row]];
        sequence.tokens.push(token);
        let reported = sequence.writer.push(token).and_then(|stopped| {
            let text = sequence.writer.fresh();
            report(NewToken { prompt: open[row], token: Some(token), text }).map(|()| stopped)
        });
        match reported {
            Ok(false) => ControlFlow::Continue(()),
            Ok(true) => ControlFlow::Break(()),
            Err(error) => {
                failed.get_or_insert(error);
                ControlFlow::Break(())
            }
        }
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    for (at, generated) in open.iter().zip(generated) {
        sequences[*at].ending = Some(generated.ending);
    }
    Ok(())
}
