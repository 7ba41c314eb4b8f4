//! `surefoot journal`: summarises a journal as text, JSON, a page or a trace.

mod report;

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter};
use std::path::{Path, PathBuf};

use clap::Args;
use surefoot::journal::{Line, Reader, Summarizer, Summary, Trace, VERSION};
use surefoot_report::JournalPage;

use crate::args::Global;
use crate::exit::{Exit, Failure};
use crate::terminal::Terminal;

/// A file that starts with this many lines that are not events is not a journal.
const MOST_BROKEN_AT_START: u64 = 1000;
/// How many broken lines are listed.
const BROKEN_SHOWN: usize = 5;

/// Summarise a journal: times, faults, what preceded them and how they ended
#[derive(Debug, Args)]
#[command(after_help = "\
The file is read as a stream, so it may be larger than memory. Medians and p95 are exact for up to
4,096 timings of an operation and within 0.4 % for more. A trace is sorted in memory and takes 200
to 300 bytes per event. A page holds up to 200,000 ordinary events, of more it holds a sample; it
needs no network.

Examples:
  surefoot doctor --journal run.jsonl    write a journal
  surefoot journal run.jsonl             summarise it
  surefoot journal run.jsonl --json      the same with the history of every fault, as JSON
  surefoot journal run.jsonl --html run.html
                                         a page with timeline and search, in one file
  surefoot journal run.jsonl --trace t.json
                                         and open t.json in https://ui.perfetto.dev
  zcat old.jsonl.gz | surefoot journal -")]
pub(crate) struct Journal {
    /// The journal, or - for stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Also write a trace for Perfetto or chrome://tracing to this file
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Also write an HTML page to this file: timeline, memory, faults, search
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// The outputs besides the summary.
#[derive(Default)]
struct Views {
    trace: Option<Trace>,
    page: Option<JournalPage>,
}

impl Journal {
    pub(crate) fn run(self, global: &Global, terminal: &Terminal) -> Result<Exit, Failure> {
        self.refuse_bad_target("trace", "--trace", self.trace.as_deref())?;
        self.refuse_bad_target("page", "--html", self.html.as_deref())?;
        let name = self.name();
        let mut views = Views {
            trace: self.trace.is_some().then(Trace::default),
            page: self.html.is_some().then(|| JournalPage::new(self.title())),
        };
        let summary = read(&name, self.open()?, &mut views)?;
        if let (Some(page), Some(path)) = (&views.page, &self.html) {
            write_page(page, path)?;
            terminal
                .note(&format!("note: wrote the page {}; open it in a browser", path.display()));
        }
        if let (Some(trace), Some(path)) = (views.trace, &self.trace) {
            write_trace(trace, path)?;
            terminal.note(&format!(
                "note: wrote the trace {}; open it in https://ui.perfetto.dev",
                path.display()
            ));
        }
        if global.json {
            terminal.json(&summary)?;
        } else {
            terminal.result(&report::text(&name, &summary))?;
        }
        for note in notes(&summary) {
            terminal.note(&format!("note: {note}"));
        }
        Ok(Exit::Done)
    }

    fn is_stdin(&self) -> bool {
        self.file == Path::new("-")
    }

    fn name(&self) -> String {
        if self.is_stdin() { "stdin".to_owned() } else { self.file.display().to_string() }
    }

    /// The name of the file without its folders.
    fn title(&self) -> String {
        match self.file.file_name() {
            Some(name) if !self.is_stdin() => name.to_string_lossy().into_owned(),
            _ => "journal".to_owned(),
        }
    }

    fn open(&self) -> Result<Box<dyn BufRead>, Failure> {
        if self.is_stdin() {
            return Ok(Box::new(io::stdin().lock()));
        }
        let failed = |error: &io::Error| {
            let failure = Failure::usage(format!("the journal {} can't be read", self.name()))
                .caused_by(error);
            match error.kind() {
                io::ErrorKind::NotFound => {
                    failure.hint("check the name; commands write a journal with --journal FILE")
                }
                _ => failure,
            }
        };
        let file = File::open(&self.file).map_err(|error| failed(&error))?;
        if file.metadata().map_err(|error| failed(&error))?.is_dir() {
            return Err(Failure::usage(format!("the journal {} can't be read", self.name()))
                .because("it is a folder")
                .hint("name the file that was given to --journal"));
        }
        Ok(Box::new(BufReader::with_capacity(1 << 16, file)))
    }

    /// Refuses to overwrite the journal.
    fn refuse_bad_target(
        &self,
        what: &str,
        option: &str,
        target: Option<&Path>,
    ) -> Result<(), Failure> {
        let Some(target) = target else { return Ok(()) };
        if target == Path::new("-") {
            return Err(Failure::usage(format!("the {what} can't go to stdout"))
                .because("the summary goes there")
                .hint(format!("give {option} the name of a file")));
        }
        let same = match (target.canonicalize(), self.file.canonicalize()) {
            (Ok(target), Ok(file)) => target == file,
            _ => false,
        };
        if same {
            return Err(Failure::usage(format!("the {what} can't go to {}", target.display()))
                .because("that is the journal itself, which would be overwritten")
                .hint(format!("give {option} another name")));
        }
        Ok(())
    }
}

fn read(name: &str, source: impl BufRead, views: &mut Views) -> Result<Summary, Failure> {
    let failed = |error: &io::Error| {
        Failure::usage(format!("the journal {name} can't be read")).caused_by(error)
    };
    let mut summarizer = Summarizer::default();
    let mut first_broken = None;
    for line in Reader::new(source) {
        let line = match line {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(not_a_journal(name, &error.to_string()));
            }
            other => other.map_err(|error| failed(&error))?,
        };
        match &line {
            Line::Event(event) => {
                if let Some(trace) = &mut views.trace {
                    trace.add(event).map_err(|error| failed(&error))?;
                }
            }
            Line::Broken { number, why, .. } if first_broken.is_none() => {
                first_broken = Some(format!("line {number}: {why}"));
            }
            _ => {}
        }
        if let Some(page) = &mut views.page {
            page.add(&line);
        }
        summarizer.add(line);
        if summarizer.broken() >= MOST_BROKEN_AT_START && !summarizer.has_found_any() {
            break;
        }
    }
    if summarizer.has_found_any() {
        return Ok(summarizer.finish());
    }
    Err(match first_broken {
        Some(broken) => not_a_journal(name, &broken),
        None => Failure::usage(format!("the journal {name} is empty"))
            .hint("write one with --journal FILE on any other command"),
    })
}

fn not_a_journal(name: &str, why: &str) -> Failure {
    Failure::usage(format!("{name} is not a journal"))
        .because(report::clean(why, 200))
        .hint("a journal has one JSON event per line; write one with --journal FILE")
}

fn write_trace(trace: Trace, path: &Path) -> Result<(), Failure> {
    File::create(path).and_then(|file| trace.write(BufWriter::new(file))).map_err(|error| {
        Failure::usage(format!("the trace {} can't be written", path.display())).caused_by(&error)
    })
}

fn write_page(page: &JournalPage, path: &Path) -> Result<(), Failure> {
    File::create(path).and_then(|file| page.write(BufWriter::new(file))).map_err(|error| {
        Failure::usage(format!("the page {} can't be written", path.display())).caused_by(&error)
    })
}

/// Notes about the file itself.
fn notes(summary: &Summary) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(line) = &summary.cut_off {
        notes.push(format!(
            "line {}, the last one, is incomplete and was skipped: the process that wrote it was \
             stopped",
            line.line
        ));
    }
    for line in summary.broken_lines.iter().take(BROKEN_SHOWN) {
        notes.push(format!("line {} was skipped: {}", line.line, report::clean(&line.why, 200)));
    }
    let unnamed = summary.broken - summary.broken_lines.len().min(BROKEN_SHOWN) as u64;
    if unnamed > 0 {
        notes.push(format!("{unnamed} more broken lines were skipped"));
    }
    if let Some(version) = summary.version.filter(|version| *version > VERSION) {
        notes.push(format!(
            "the journal has format version {version}, this program knows up to {VERSION}: use a newer \
             surefoot to read all of it"
        ));
    }
    notes
}
