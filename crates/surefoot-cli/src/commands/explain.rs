//! `surefoot explain`: says what an error message means and what to change.

mod input;
mod printed;

use std::fs::File;
use std::io::{self, BufWriter, Read, Write as _};
use std::path::Path;

use clap::Args;
use surefoot_explain::{answer, explain};

use crate::args::Global;
use crate::exit::{Exit, Failure};
use crate::terminal::Terminal;
use input::{Input, Messages};

/// Say what a device error message means and what to change
///
/// Knows the messages of PyTorch (CUDA, MPS, CPU), CUDA, Metal, Vulkan and wgpu, Burn, candle,
/// MLX, JAX, ONNX Runtime, ROCm, llama.cpp and Triton. Of a whole log it finds the first cause and
/// says which errors follow from it. Where its rules are not sure, a model that was trained on
/// thousands of messages decides, with its probability, its words and a second guess.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  surefoot explain 'RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED'
  surefoot explain training.log
  python train.py 2>&1 | surefoot explain -
  surefoot explain --jsonl < messages.jsonl

With --jsonl each line of stdin is an object with a `message`; each line of stdout is an object
with kind, confidence, evidence and advice, in the same order. For a line that can't be parsed,
the output is an object with `error` and the number of the `line`; the other lines are still
explained, and the exit code is 2.

A text of more than 16 KiB is read as a log, of any length. A line of --jsonl may be up to
8 MiB long; of a message the last 1 MiB is read.")]
pub(crate) struct Explain {
    /// The message, a file with a log, or - to read a message or a log from stdin
    #[arg(required_unless_present = "jsonl", conflicts_with = "jsonl", allow_hyphen_values = true)]
    text: Option<String>,
    /// Read JSON Lines with a `message` each from stdin, write one explanation per line
    #[arg(long)]
    jsonl: bool,
}

impl Explain {
    pub(crate) fn run(self, global: &Global, terminal: &Terminal) -> Result<Exit, Failure> {
        let Some(text) = self.text else { return explain_lines(terminal) };
        let input = match text.as_str() {
            "-" => read(io::stdin().lock(), "stdin")?,
            name if Path::new(name).is_file() => {
                let file = File::open(name).map_err(|error| unreadable(name, &error))?;
                read(file, name)?
            }
            name if is_name_of_a_file(name) => {
                return Err(Failure::usage(format!("there is no file {name}"))
                    .hint("name a log that exists, or give the message in quotes"));
            }
            _ => Input::Message(text),
        };
        match input {
            Input::Message(text) if text.trim().is_empty() => {
                return Err(Failure::usage("there is nothing to explain: the text is empty").hint(
                    "give the message in quotes, name a log, or pipe one into `surefoot explain -`",
                ));
            }
            Input::Message(text) => {
                let found = answer(&text);
                if global.json {
                    terminal.json(&found)?;
                } else {
                    terminal.result(&printed::message(&found))?;
                }
            }
            Input::Log(found) => {
                if global.json {
                    terminal.json(&*found)?;
                } else {
                    terminal.result(&printed::log(&found))?;
                }
            }
        }
        Ok(Exit::Done)
    }
}

/// Whether a text without spaces can only be meant as a file.
fn is_name_of_a_file(text: &str) -> bool {
    let extensions = ["log", "txt", "out", "err", "json", "jsonl"];
    let extension = Path::new(text).extension().and_then(|extension| extension.to_str());
    !text.contains(char::is_whitespace)
        && extension.is_some_and(|extension| extensions.contains(&extension))
}

fn read(stream: impl Read, name: &str) -> Result<Input, Failure> {
    input::read(stream).map_err(|error| unreadable(name, &error))
}

fn unreadable(name: &str, error: &io::Error) -> Failure {
    Failure::usage(format!("{name} could not be read")).caused_by(error)
}

/// One explanation per line, in the order of the messages.
fn explain_lines(terminal: &Terminal) -> Result<Exit, Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    let mut bad = Vec::new();
    for (number, message) in (1_u64..).zip(Messages::new(io::stdin().lock())) {
        let written = match message.map_err(|error| unreadable("stdin", &error))? {
            Ok(Some(text)) => serde_json::to_writer(&mut out, &explain(&text)),
            Ok(None) => continue,
            Err(why) => {
                bad.push(number);
                let error = serde_json::json!({ "line": number, "error": why });
                serde_json::to_writer(&mut out, &error)
            }
        };
        if let Err(error) = written.map_err(io::Error::from).and_then(|()| out.write_all(b"\n")) {
            return stopped(error);
        }
    }
    if let Err(error) = out.flush() {
        return stopped(error);
    }
    let Some(first) = bad.first() else { return Ok(Exit::Done) };
    terminal
        .note(&format!("note: {} lines could not be parsed; all others were explained", bad.len()));
    Err(Failure::usage(format!("line {first} is not a JSON object with a `message`"))
        .hint("the objects with `error` in the output name each such line"))
}

/// A reader that closed the pipe (`| head`) is not a failure.
fn stopped(error: io::Error) -> Result<Exit, Failure> {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Ok(Exit::Done),
        _ => Err(Failure::usage("the result could not be written to stdout").caused_by(&error)),
    }
}
