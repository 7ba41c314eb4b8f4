//! What a rank says to the others before gradients are summed, in few bytes.
//!
//! Numbers that every step has are in a header of a fixed size; what is there now and then, such as
//! a fault or the rank's memory, follows as JSON. So an agreement of ranks to whom nothing
//! happened is one exchange of [`HEADER`] bytes each.

use serde::{Deserialize, Serialize};
use surefoot::place::Dtype;
use surefoot::{Fault, FaultKind};

use super::local::Local;
use crate::ranks::{Ranks, StepTime, exchange, unreadable};
use crate::report::FaultReport;

/// A fault as it is told to other ranks.
pub(crate) type Failure = Option<(FaultKind, String)>;

/// Bytes of the numbers that every message has.
const HEADER: usize = 6 * 8 + 1;

const STOP: u8 = 1;
const NOT_FINITE: u8 = 2;
const HALF: u8 = 4;

/// What a rank says of itself now and then, for the report of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) host: String,
    pub(crate) device: String,
    /// The most memory that was in use on its device, in bytes.
    pub(crate) peak_memory: u64,
    pub(crate) time: StepTime,
}

/// What happened to a rank in a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct News {
    /// Faults that it recovered from.
    pub(crate) faults: Vec<FaultReport>,
    /// Samples that it could not read.
    pub(crate) unreadable: Vec<String>,
    pub(crate) status: Option<Status>,
}

/// What most messages lack.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Details {
    failure: Failure,
    bad: Option<String>,
    news: News,
}

/// What a rank says before gradients are summed.
#[derive(Debug, PartialEq)]
pub(super) struct Message {
    pub(super) step: u64,
    pub(super) stop: bool,
    pub(super) loss: f64,
    pub(super) correct: f64,
    pub(super) weight: f64,
    pub(super) items: u64,
    pub(super) finite: bool,
    pub(super) half: bool,
    /// Stands for which parameters have a gradient here.
    present: u64,
    pub(super) failure: Failure,
    pub(super) bad: Option<String>,
    pub(super) news: News,
}

pub(crate) fn failure<T>(result: &Result<T, Fault>) -> Failure {
    result.as_ref().err().map(|fault| (fault.kind, fault.root_cause().to_owned()))
}

impl Message {
    pub(super) fn new<M>(
        local: &Result<Local<M>, Fault>,
        stop: bool,
        step: u64,
        news: News,
    ) -> Self {
        let found = local.as_ref().ok();
        let number = |number: fn(&Local<M>) -> f64| found.map_or(0.0, number);
        Self {
            step,
            stop,
            loss: number(|local| local.loss),
            correct: number(|local| local.correct),
            weight: number(|local| local.weight),
            items: found.map_or(0, |local| local.items as u64),
            finite: found.is_none_or(|local| local.finite),
            half: found.is_some_and(|local| local.compute == Dtype::F16),
            present: found.map_or(0, |local| digest(&local.present)),
            failure: failure(local),
            bad: found.and_then(|local| local.bad.clone()),
            news,
        }
    }

    /// Gives this to every rank, and gets those of all.
    pub(super) fn exchange(self, ranks: &dyn Ranks) -> Result<Vec<Self>, Fault> {
        let all = ranks.gather(&self.into_bytes()?)?;
        all.iter().map(|bytes| Self::from_bytes(bytes)).collect()
    }

    fn into_bytes(self) -> Result<Vec<u8>, Fault> {
        let mut bytes = Vec::with_capacity(HEADER);
        let floats = [self.loss, self.correct, self.weight].map(f64::to_bits);
        for number in [self.step, self.items, self.present].iter().chain(&floats) {
            bytes.extend(number.to_le_bytes());
        }
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        bytes.push(flag(self.stop, STOP) | flag(!self.finite, NOT_FINITE) | flag(self.half, HALF));
        let details = Details { failure: self.failure, bad: self.bad, news: self.news };
        if details != Details::default() {
            serde_json::to_writer(&mut bytes, &details).map_err(|error| unreadable(&error))?;
        }
        Ok(bytes)
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, Fault> {
        let Some((header, details)) = bytes.split_at_checked(HEADER) else {
            return Err(unreadable(&format_args!("it has {} bytes", bytes.len())));
        };
        let (numbers, flags) = header.as_chunks::<8>();
        let number = |at: usize| numbers.get(at).map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let is_set = |flag: u8| flags.first().is_some_and(|flags| flags & flag != 0);
        let Details { failure, bad, news } = match details.is_empty() {
            true => Details::default(),
            false => serde_json::from_slice(details).map_err(|error| unreadable(&error))?,
        };
        Ok(Self {
            step: number(0),
            items: number(1),
            present: number(2),
            loss: f64::from_bits(number(3)),
            correct: f64::from_bits(number(4)),
            weight: f64::from_bits(number(5)),
            stop: is_set(STOP),
            finite: !is_set(NOT_FINITE),
            half: is_set(HALF),
            failure,
            bad,
            news,
        })
    }
}

/// Which parameters have a gradient on any rank. To be called by all ranks, once they agreed that all have
/// theirs.
pub(super) fn present_anywhere(
    ranks: &dyn Ranks,
    messages: &[Message],
    own: &[bool],
) -> Result<Vec<bool>, Fault> {
    if messages.iter().all(|message| message.present == messages[0].present) {
        return Ok(own.to_vec());
    }
    let all = exchange(ranks, &own.to_vec())?;
    Ok((0..own.len()).map(|at| all.iter().any(|theirs| theirs.get(at) == Some(&true))).collect())
}

fn digest(present: &[bool]) -> u64 {
    let bytes: Vec<u8> = present.iter().map(|present| u8::from(*present)).collect();
    blake3::hash(&bytes).as_bytes().first_chunk().map_or(0, |first| u64::from_le_bytes(*first))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        Message {
            step: 7,
            stop: false,
            loss: 0.1,
            correct: f64::INFINITY,
            weight: 3.0,
            items: 12,
            finite: true,
            half: true,
            present: digest(&[true, false]),
            failure: None,
            bad: None,
            news: News::default(),
        }
    }

    fn again(message: Message) -> Message {
        Message::from_bytes(&message.into_bytes().unwrap()).unwrap()
    }

    #[test]
    fn a_message_arrives_as_it_was_sent() {
        assert_eq!(again(message()), message());
        let status = Status {
            host: "a".to_owned(),
            device: "cpu".to_owned(),
            peak_memory: 5,
            time: StepTime::default(),
        };
        let full = || Message {
            stop: true,
            finite: false,
            half: false,
            failure: Some((FaultKind::OutOfMemory, "why".to_owned())),
            bad: Some("the loss".to_owned()),
            news: News {
                unreadable: vec!["x".to_owned()],
                status: Some(status.clone()),
                ..News::default()
            },
            ..message()
        };
        assert_eq!(again(full()), full());
    }

    #[test]
    fn a_message_without_news_is_a_header() {
        assert_eq!(message().into_bytes().unwrap().len(), HEADER);
        let error = Message::from_bytes(&[0; HEADER - 1]).unwrap_err();
        assert!(error.to_string().contains("48 bytes"), "{error}");
    }
}
