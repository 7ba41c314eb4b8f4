//! A format that is ready for the tokens of one model, and where in it a text is.

use std::fmt::Display;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use llguidance::api::{StopReason, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{ParserFactory, TokenParser};

use super::completion::Spelling;
use super::error::FormatError;

/// The most states of a format's lexer, each of which takes 1 to 2 KiB.
const MAX_STATES: usize = 50_000;
/// With more tokens left than these, no completion is looked for.
const LONGEST_COMPLETION: usize = 512;
/// How many tokens more than a completion has are kept for it: any token that comes may make it longer.
const SLACK: usize = 12;
/// Longer tokens can't come under a constraint.
const MAX_TOKEN_BYTES: usize = 1 << 15;

/// The tokens of a model as bytes.
pub struct Vocabulary {
    factory: ParserFactory,
    /// How many token ids the model has. One more, which only marks the end, is known to the parser.
    size: usize,
    spelling: Arc<Spelling>,
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary").field("size", &self.size).finish_non_exhaustive()
    }
}

impl Vocabulary {
    /// The vocabulary of a model with `size` tokens, of which `bytes` says what each stands for; none
    /// for tokens that have no text, such as those that end a text.
    pub fn new(size: usize, bytes: impl Fn(u32) -> Option<Vec<u8>>) -> Result<Self, FormatError> {
        let is_usable = |token: &Vec<u8>| {
            // A byte that is no UTF-8 begins the names of special tokens in the trie.
            token.len() <= MAX_TOKEN_BYTES && token.first() != Some(&TokTrie::SPECIAL_TOKEN_MARKER)
        };
        let mut words: Vec<Vec<u8>> =
            (0..size as u32).map(|id| bytes(id).filter(is_usable).unwrap_or_default()).collect();
        let spelling = Arc::new(Spelling::new(&words));
        words.push(b"\xff<end>".to_vec());
        let info = TokRxInfo::new(words.len() as u32, size as u32);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &words)));
        let slices = SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|error| FormatError::Defect(format!("{error:#}")))?;
        factory.quiet();
        factory.limits_mut().max_lexer_states = MAX_STATES;
        factory.limits_mut().verbose_errors = false;
        Ok(Self { factory, size, spelling })
    }
}

/// What a text has to satisfy, ready for the tokens of one model.
pub struct Constraint {
    /// At the beginning of a text. Sequences get copies, which don't share what they learn.
    start: TokenParser,
    size: usize,
    spelling: Arc<Spelling>,
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").field("size", &self.size).finish_non_exhaustive()
    }
}

/// What the parser says of a grammar that it does not take.
#[derive(Debug)]
pub(super) enum Refused {
    /// The grammar is wrong.
    Grammar(String),
    /// The grammar is right, but no text of these tokens satisfies it, or it is too large.
    Other(FormatError),
}

impl Refused {
    pub(super) fn of_regex(self) -> FormatError {
        match self {
            Self::Grammar(problem) => FormatError::Regex(problem),
            Self::Other(error) => error,
        }
    }
}

/// For grammars that we wrote ourselves, which are never wrong.
impl From<Refused> for FormatError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Grammar(problem) => Self::TooLarge(problem),
            Refused::Other(error) => error,
        }
    }
}

impl Constraint {
    pub(super) fn new(grammar: TopLevelGrammar, vocabulary: &Vocabulary) -> Result<Self, Refused> {
        let parser = vocabulary.factory.create_parser(grammar);
        let mut start = parser.map_err(|error| Refused::Grammar(without_state(&error)))?;
        start.start_without_prompt();
        // What the first mask needs is computed once for all sequences.
        match guarded(&mut start, TokenParser::compute_mask) {
            Ok(_) => Ok(Self {
                start,
                size: vocabulary.size,
                spelling: Arc::clone(&vocabulary.spelling),
            }),
            Err(FormatError::NoToken) => Err(Refused::Other(FormatError::Unsatisfiable)),
            Err(error) => Err(Refused::Other(error)),
        }
    }
}

/// Where in a format a text is.
pub struct Matcher {
    parser: TokenParser,
    size: usize,
    spelling: Arc<Spelling>,
    /// With how many tokens left a completion is looked for next.
    look_at: usize,
    /// The tokens that complete the text, the next one last, once there is no room for others.
    completion: Option<Vec<u32>>,
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matcher").field("size", &self.size).finish_non_exhaustive()
    }
}

impl Matcher {
    /// The beginning of a text.
    pub fn new(constraint: &Constraint) -> Self {
        Self {
            parser: constraint.start.deep_clone(),
            size: constraint.size,
            spelling: Arc::clone(&constraint.spelling),
            look_at: LONGEST_COMPLETION,
            completion: None,
        }
    }

    /// Whether the text is complete.
    pub fn is_complete(&mut self) -> bool {
        self.has_ended() || self.parser.is_accepting()
    }

    /// Whether the text is complete and nothing can come behind it.
    pub fn has_ended(&self) -> bool {
        self.parser.stop_reason() == StopReason::NoExtension
    }

    /// Sets the logits of tokens that can't come next to minus infinity. Tokens of `ends` can come
    /// where the text is complete, and do nothing else. Where `room` tokens, with this one, are hardly
    /// enough to complete the text, only the tokens of a completion are left, if one was found. False if
    /// no token is left because the text is complete.
    pub fn restrict(
        &mut self,
        logits: &mut [f32],
        ends: &[u32],
        room: usize,
    ) -> Result<bool, FormatError> {
        if self.has_ended() {
            return Ok(false);
        }
        self.look_for_completion(room)?;
        let next = self.completion.as_ref().map(|path| path.last().copied());
        let (mask, complete) = match next {
            Some(next) => (None, next.is_none()),
            None => {
                let mask = guarded(&mut self.parser, TokenParser::compute_mask)?;
                let complete = mask.is_allowed(self.size as u32);
                (Some(mask), complete)
            }
        };
        // Tokens that end a text do nothing else, even if they have a text.
        let logit_of = |id: &u32| Some((*id as usize, *logits.get(*id as usize)?));
        let ends: Vec<(usize, f32)> = ends.iter().filter_map(logit_of).collect();
        for (id, logit) in logits.iter_mut().enumerate() {
            let token = id as u32;
            let may_come = match &mask {
                Some(mask) => id < self.size && mask.is_allowed(token),
                None => next == Some(Some(token)),
            };
            if !may_come {
                *logit = f32::NEG_INFINITY;
            }
        }
        for (id, logit) in ends {
            logits[id] = if complete { logit } else { f32::NEG_INFINITY };
        }
        let any = logits.iter().any(|logit| *logit != f32::NEG_INFINITY);
        if any || complete { Ok(any) } else { Err(FormatError::NoToken) }
    }

    /// Looks for a completion if there may be no room for much else, and keeps it if that is so.
    fn look_for_completion(&mut self, room: usize) -> Result<(), FormatError> {
        if self.completion.is_some() || room > self.look_at {
            return Ok(());
        }
        let spelling = Arc::clone(&self.spelling);
        let found = guarded(&mut self.parser, |parser| {
            Ok::<_, FormatError>(spelling.completion(parser, room))
        })?;
        match found {
            // There is none in the room that is left, now or later.
            None => self.look_at = 0,
            // Complete as it is: whatever comes, it could have ended here.
            Some(path) if path.is_empty() => self.look_at = room - 1,
            Some(mut path) if path.len() + SLACK >= room => {
                path.reverse();
                self.completion = Some(path);
            }
            // Looking costs as many steps as a completion has: it is done more often towards the end.
            Some(path) => {
                self.look_at = room - ((room - path.len() - SLACK) / 4).max(1);
            }
        }
        Ok(())
    }

    /// Goes on behind a token; false if it can't come here.
    pub fn accept(&mut self, id: u32) -> Result<bool, FormatError> {
        if self.has_ended() || id as usize >= self.size {
            return Ok(false);
        }
        if let Some(path) = &mut self.completion
            && path.pop() != Some(id)
        {
            self.completion = None;
        }
        guarded(&mut self.parser, |parser| {
            if parser.token_env.tok_trie().token(id).is_empty() {
                return Ok(false);
            }
            match parser.validate_token(id) {
                Ok(true) => {
                    parser.consume_token(id).and_then(|_| parser.check_stop()).map(|_| true)
                }
                other => other,
            }
        })
    }
}

/// Calls the parser, whose panics are errors: they must not end the thread that decodes for others.
fn guarded<T, E: Display>(
    parser: &mut TokenParser,
    call: impl FnOnce(&mut TokenParser) -> Result<T, E>,
) -> Result<T, FormatError> {
    let result = std::panic::catch_unwind(AssertUnwindSafe(|| call(parser)));
    let Ok(result) = result else {
        return Err(FormatError::Defect("it panicked; the log has the message".to_owned()));
    };
    result.map_err(|error| match parser.stop_reason() {
        StopReason::NoExtensionBias => FormatError::NoToken,
        StopReason::LexerTooComplex | StopReason::ParserTooComplex => {
            FormatError::TooLarge(without_state(&error))
        }
        _ => FormatError::Defect(without_state(&error)),
    })
}

/// What an error says, without the state of the parser that is written behind it.
fn without_state(error: &impl Display) -> String {
    let told = error.to_string();
    told.split("\n<").next().unwrap_or_default().trim().to_owned()
}
