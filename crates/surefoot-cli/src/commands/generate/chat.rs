//! `surefoot generate --chat`: a chat in the terminal. Each line of stdin is a message, and the whole chat is
//! the prompt of the next answer; its oldest messages go when the model can't take more.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use serde_json::{Value, json};
use surefoot_models::generate::sample::Sampling;
use surefoot_models::generate::speculate::Speculator;
use surefoot_models::generate::text::Texts;
use surefoot_models::generate::tokens::Request;
use surefoot_models::runner::NewToken;
use surefoot_serve::chat::Template;

use super::Generate;
use super::printed::PrintedTokens;
use crate::exit::{Exit, Failure};
use crate::model_run::ModelRun;
use crate::terminal::Terminal;

/// What a chat is opened with.
pub(super) struct Chat<'a> {
    pub(super) options: &'a Generate,
    pub(super) run: &'a ModelRun<'a>,
    pub(super) texts: &'a Texts,
    pub(super) sampling: Sampling,
}

/// What can be said that is no message.
const COMMANDS: &str = "/reset starts a new chat, /exit or the end of the input ends the chat";

impl Chat<'_> {
    /// Talks until stdin ends or says `/exit`.
    pub(super) fn talk(
        &self,
        speculator: &mut Speculator,
        terminal: &Terminal,
    ) -> Result<Exit, Failure> {
        self.run.hide_progress();
        let template = self.template()?;
        let is_terminal = std::io::stdin().is_terminal();
        if is_terminal {
            terminal.note(COMMANDS);
        }
        let system: Vec<Value> = self
            .options
            .system
            .iter()
            .map(|text| json!({"role": "system", "content": text}))
            .collect();
        let mut said: Vec<Value> = Vec::new();
        let mut lines = std::io::stdin().lock().lines();
        loop {
            if is_terminal {
                eprint!("> ");
                // A prompt that can't be shown is no reason to end.
                let _ = std::io::stderr().flush();
            }
            let Some(line) = lines.next() else { return Ok(Exit::Done) };
            let line =
                line.map_err(|error| Failure::usage("stdin can't be read").caused_by(&error))?;
            match line.trim() {
                "" => continue,
                "/exit" => return Ok(Exit::Done),
                "/help" => {
                    terminal.note(COMMANDS);
                    continue;
                }
                "/reset" => {
                    said.clear();
                    continue;
                }
                text => said.push(json!({"role": "user", "content": text})),
            }
            let answer = self.answer(&template, &system, &mut said, speculator, terminal)?;
            said.push(json!({"role": "assistant", "content": answer}));
        }
    }

    fn template(&self) -> Result<Template, Failure> {
        let folder = self.run.folder();
        let found = match &self.options.chat_template {
            Some(name) => Template::named(name, folder).map(Some),
            None => Template::of_folder(folder),
        };
        let hint = "--chat-template FILE, chatml or plain";
        match found {
            Ok(Some(template)) => Ok(template),
            Ok(None) => Err(Failure::usage("the model has no chat template").hint(hint)),
            Err(error) => {
                Err(Failure::usage("the chat template can't be used").caused_by(&error).hint(hint))
            }
        }
    }

    /// Answers what was said, and prints the answer as it comes.
    fn answer(
        &self,
        template: &Template,
        system: &[Value],
        said: &mut Vec<Value>,
        speculator: &mut Speculator,
        terminal: &Terminal,
    ) -> Result<String, Failure> {
        let opened = self.run.runner.opened();
        let max_tokens = self.options.max_tokens as usize;
        let most = opened.blueprint.max_positions.saturating_sub(max_tokens);
        let tokens = loop {
            let messages = [system, said.as_slice()].concat();
            let prompt = template.prompt(&messages).map_err(|error| {
                Failure::usage("the chat can't be written as a prompt").caused_by(&error)
            })?;
            let tokens = self.texts.encode_as_written(&prompt)?;
            if tokens.len() <= most.max(1) || said.len() <= 1 {
                break tokens;
            }
            // A message and its answer.
            said.drain(..2.min(said.len() - 1));
            terminal
                .note("the chat is longer than the model takes: its oldest messages are left out");
        };
        let request = Request {
            prompts: vec![tokens],
            max_tokens,
            ends: opened.end_tokens()?,
            sampling: self.sampling,
        };
        let printed = PrintedTokens::new(None);
        let mut print = |new: NewToken<'_>| printed.print(new, terminal);
        let outcome = self.run.runner.generate_speculating(
            self.texts,
            &request,
            &self.options.stop,
            &[],
            speculator,
            &mut print,
        );
        let mut outcome = self.run.finished(outcome)?;
        terminal.result("\n")?;
        Ok(outcome.value.pop().map(|completion| completion.text).unwrap_or_default())
    }
}
