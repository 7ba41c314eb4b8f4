//! `surefoot explain`: says what an error message means and what to change.

mod input;

use std::fmt::Write as _;
use std::io::{self, BufWriter, Write as _};

use clap::Args;
use surefoot::fault::{Explanation, FaultKind, explain};

use crate::args::Global;
use crate::exit::{Exit, Failure};
use crate::terminal::Terminal;
use input::Messages;

/// Say what a device error message means and what to change
///
/// Knows the messages of PyTorch (CUDA, MPS, CPU), CUDA, Metal, Vulkan and wgpu, Burn, candle,
/// MLX, JAX, ONNX Runtime, ROCm, llama.cpp and Triton. A text that it doesn't recognise is reported
/// as `not_device_related` with a confidence of 0.1.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  surefoot explain 'RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED'
  python train.py 2>&1 | surefoot explain -
  surefoot explain --jsonl < messages.jsonl

With --jsonl each line of stdin is an object with a `message`; each line of stdout is an object
with kind, confidence, evidence and advice, in the same order. For a line that can't be parsed,
the output is an object with `error` and the number of the `line`; the other lines are still
explained, and the exit code is 2.

Limits: of a long text only the last 1 MiB is read, because logs end with the cause; a line of
--jsonl may be up to 8 MiB long.")]
pub(crate) struct Explain {
    /// The message, or - to read a whole log or traceback from stdin
    #[arg(required_unless_present = "jsonl", conflicts_with = "jsonl", allow_hyphen_values = true)]
    text: Option<String>,
    /// Read JSON Lines with a `message` each from stdin, write one explanation per line
    #[arg(long)]
    jsonl: bool,
}

impl Explain {
    pub(crate) fn run(self, global: &Global, terminal: &Terminal) -> Result<Exit, Failure> {
        let Some(text) = self.text else { return explain_lines(terminal) };
        let text = if text == "-" {
            let (text, skipped) = input::end_of(io::stdin().lock()).map_err(unreadable)?;
            if skipped > 0 {
                terminal.note(&format!("note: the first {skipped} bytes were not read"));
            }
            text
        } else {
            text
        };
        if text.trim().is_empty() {
            return Err(Failure::usage("there is nothing to explain: the text is empty")
                .hint("give the message in quotes, or pipe a log into `surefoot explain -`"));
        }
        let explanation = explain(&text);
        if global.json {
            terminal.json(&explanation)?;
        } else {
            terminal.result(&readable(&explanation))?;
        }
        Ok(Exit::Done)
    }
}

fn unreadable(error: io::Error) -> Failure {
    Failure::usage("stdin could not be read").caused_by(&error)
}

/// One explanation per line, in the order of the messages.
fn explain_lines(terminal: &Terminal) -> Result<Exit, Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    let mut bad = Vec::new();
    for (number, message) in (1_u64..).zip(Messages::new(io::stdin().lock())) {
        let written = match message.map_err(unreadable)? {
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

fn readable(explanation: &Explanation) -> String {
    let mut text = String::new();
    let kind = explanation.kind;
    let verdict = match (explanation.recognised(), kind) {
        (false, _) => "not_device_related: no known device fault was found in this text".into(),
        (true, FaultKind::NotDeviceRelated) => {
            "not_device_related: this is not a device fault".into()
        }
        (true, kind) => kind.to_string(),
    };
    // Writing to a String can't fail.
    let _ = writeln!(text, "{verdict}");
    if explanation.recognised() {
        let _ = writeln!(text, "\n{}", explanation.cause);
        let _ = writeln!(
            text,
            "\n  evidence    {}",
            explanation.evidence.replace('\n', "\n              ")
        );
        let _ = writeln!(text, "  confidence  {:.2}", explanation.confidence);
        if let Some(framework) = explanation.framework {
            let _ = writeln!(text, "  from        {framework}");
        }
    }
    let _ = writeln!(text, "\nWhat to change:");
    for line in &explanation.advice {
        let _ = writeln!(text, "  - {line}");
    }
    text
}
