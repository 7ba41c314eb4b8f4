//! The JSONL file: each event one line, each line one `write` in append mode.
//!
//! Nothing is gathered into longer writes, though those cost less a line: a kill can stop a write
//! where a page of the file ends, and would then cost more than the last line.
//!
//! The kernel puts appending writes of threads and processes one after the other, so no lock is
//! held here. A line that was written in part (a full disk, a signal) is written again whole on a
//! line of its own; if that fails too, whoever writes next starts a new line first.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use super::line::render;
use super::{Event, VERSION, now_us};

#[derive(Debug)]
pub(super) struct FileSink {
    path: PathBuf,
    file: File,
    /// The file may end in the middle of a line.
    torn: AtomicBool,
    lost: Mutex<Option<Lost>>,
}

/// The first write error that has not been reported yet.
#[derive(Debug)]
struct Lost {
    first: io::Error,
    events: u64,
}

thread_local! {
    static LINE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl FileSink {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let named = |error: io::Error| {
            let what = format!("the journal {} could not be opened: {error}", path.display());
            io::Error::new(error.kind(), what)
        };
        let file = OpenOptions::new().append(true).create(true).open(path).map_err(named)?;
        let torn = ends_in_a_broken_line(path, &file);
        let sink = Self {
            path: path.to_owned(),
            file,
            torn: AtomicBool::new(torn),
            lost: Mutex::default(),
        };
        let header =
            HeaderLine { surefoot_journal: VERSION, time_us: now_us(), pid: std::process::id() };
        sink.write_line(&mut Vec::new(), |line| Ok(serde_json::to_writer(line, &header)?))
            .map_err(named)?;
        Ok(sink)
    }

    #[inline]
    pub(super) fn append(&self, event: &Event) {
        let written = LINE
            .try_with(|line| self.write_line(&mut line.borrow_mut(), |line| render(event, line)))
            // The thread is ending and its buffer is gone already.
            .unwrap_or_else(|_| self.write_line(&mut Vec::new(), |line| render(event, line)));
        if let Err(error) = written {
            let mut lost = self.lost();
            lost.get_or_insert(Lost { first: error, events: 0 }).events += 1;
        }
    }

    /// Reports the first error since the last call, once.
    pub(super) fn take_error(&self) -> io::Result<()> {
        self.lost().take().map_or(Ok(()), |lost| Err(self.describe(&lost)))
    }

    fn write_line(
        &self,
        line: &mut Vec<u8>,
        render: impl FnOnce(&mut Vec<u8>) -> io::Result<()>,
    ) -> io::Result<()> {
        line.clear();
        line.push(b'\n');
        render(line)?;
        line.push(b'\n');
        let torn = self.torn.load(Ordering::Relaxed) && self.torn.swap(false, Ordering::Relaxed);
        if !torn && self.write_once(&line[1..])? == line.len() - 1 {
            return Ok(());
        }
        // The leading newline ends the broken line.
        match self.write_once(line) {
            Ok(written) if written == line.len() => Ok(()),
            outcome => {
                self.torn.store(true, Ordering::Relaxed);
                outcome.and(Err(io::ErrorKind::WriteZero.into()))
            }
        }
    }

    fn write_once(&self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match (&self.file).write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => return outcome,
            }
        }
    }

    fn describe(&self, lost: &Lost) -> io::Error {
        let what = format!(
            "the journal {} lost {} event{}; the first write that failed: {}",
            self.path.display(),
            lost.events,
            if lost.events == 1 { "" } else { "s" },
            lost.first
        );
        io::Error::new(lost.first.kind(), what)
    }

    fn lost(&self) -> MutexGuard<'_, Option<Lost>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for FileSink {
    fn drop(&mut self) {
        if let Err(error) = self.take_error() {
            tracing::error!(target: "surefoot::journal", "{error}");
        }
    }
}

#[derive(Serialize)]
struct HeaderLine {
    surefoot_journal: u32,
    time_us: u64,
    pid: u32,
}

/// Only a regular file can be looked back into; a pipe or a terminal has no broken line. A file
/// that can be written but not read gets the benefit of a newline.
fn ends_in_a_broken_line(path: &Path, file: &File) -> bool {
    if !file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() > 0) {
        return false;
    }
    let mut last = [0];
    let looked = File::open(path).and_then(|mut file| {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)
    });
    looked.is_err() || last != *b"\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{EventKind, Journal, Line, Reader};

    fn events_of(path: &Path) -> Vec<String> {
        let mut events = Vec::new();
        for line in Reader::new(io::BufReader::new(File::open(path).unwrap())) {
            match line.unwrap() {
                Line::Event(event) => events.push(event.op.into_owned()),
                Line::Header(header) => events.push(format!("header {}", header.version)),
                Line::Broken { number, .. } => events.push(format!("broken {number}")),
            }
        }
        events
    }

    fn note(op: &'static str) -> Event {
        Event::new(EventKind::Note, op)
    }

    #[test]
    fn runs_follow_each_other_in_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.jsonl");
        for op in ["first", "second"] {
            Journal::builder().file(&path).unwrap().build().record(note(op));
        }
        assert_eq!(events_of(&path), ["header 1", "first", "header 1", "second"]);
    }

    #[test]
    fn a_file_that_ends_in_a_broken_line_goes_on_after_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.jsonl");
        std::fs::write(&path, "{\"time_us\":1,\"kind\":\"no").unwrap();
        Journal::builder().file(&path).unwrap().build().record(note("after"));
        assert_eq!(events_of(&path), ["broken 1", "header 1", "after"]);
    }

    #[test]
    fn threads_append_whole_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.jsonl");
        let journal = Journal::builder().file(&path).unwrap().build();
        let elsewhere = Journal::builder().file(&path).unwrap().build();
        std::thread::scope(|scope| {
            for journal in [&journal, &elsewhere, &journal, &elsewhere] {
                scope.spawn(move || {
                    for number in 0..2_000 {
                        journal.record(note("x").context("pad", "y".repeat(number % 500)));
                    }
                });
            }
        });
        journal.flush().unwrap();
        let events = events_of(&path);
        assert_eq!(events.iter().filter(|op| *op == "x").count(), 8_000);
        assert_eq!(events.len(), 8_002);
    }

    #[test]
    fn a_folder_is_refused_with_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let error = Journal::builder().file(folder.path()).unwrap_err().to_string();
        assert!(error.contains(&*folder.path().to_string_lossy()), "{error}");
    }

    /// A socket that nobody empties takes a part of a long line, as a full disk would.
    #[cfg(unix)]
    #[test]
    fn a_line_that_was_written_in_part_does_not_spoil_the_next() {
        use std::os::fd::OwnedFd;
        use std::os::unix::net::UnixStream;
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        let sink = FileSink {
            path: "socket".into(),
            file: OwnedFd::from(ours).into(),
            torn: AtomicBool::new(false),
            lost: Mutex::default(),
        };
        let long = (0..60).fold(note("long"), |event, number| {
            event.context(number.to_string(), "x".repeat(16_000))
        });
        sink.append(&long);
        assert!(sink.take_error().unwrap_err().to_string().contains("lost 1 event;"));

        let mut text = Vec::new();
        assert_eq!(theirs.read_to_end(&mut text).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        sink.append(&note("after"));
        drop(sink);
        theirs.read_to_end(&mut text).unwrap();
        let lines: Vec<_> = Reader::new(&*text).map(Result::unwrap).collect();
        let [Line::Broken { number: 1, .. }, Line::Event(after)] = &lines[..] else {
            panic!("{} lines: {:.200}", lines.len(), format!("{lines:?}"))
        };
        assert_eq!(after.op, "after");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_first_write_error_is_kept_and_told_once_with_what_it_cost() {
        let sink = FileSink {
            path: "/dev/full".into(),
            file: OpenOptions::new().append(true).open("/dev/full").unwrap(),
            torn: AtomicBool::new(false),
            lost: Mutex::default(),
        };
        sink.append(&note("a"));
        sink.append(&note("b"));
        let error = sink.take_error().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(error.to_string().contains("/dev/full lost 2 events"), "{error}");
        assert!(sink.take_error().is_ok());
    }
}
