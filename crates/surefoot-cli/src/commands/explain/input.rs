//! What `explain` reads, in bounded memory: a message, a log of any length, or messages a line at a time.

use std::borrow::Cow;
use std::io::{self, BufRead, Read};

use serde::Deserialize;
use surefoot_explain::{LogAnswer, LogReader};

/// The longest line of `--jsonl`, in bytes.
const MAX_LINE: u64 = 8 << 20;

/// A text up to this size is explained as one message; a longer one is a log.
const LONGEST_MESSAGE: usize = 16 << 10;

/// What a file or stdin holds.
pub(super) enum Input {
    Message(String),
    Log(Box<LogAnswer>),
}

/// Reads a stream to its end.
pub(super) fn read(mut stream: impl Read) -> io::Result<Input> {
    let mut piece = vec![0; 1 << 20];
    let mut beginning = Vec::new();
    let mut log = LogReader::new();
    let mut length = 0;
    loop {
        let read = match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if beginning.len() < LONGEST_MESSAGE {
            let room = LONGEST_MESSAGE - beginning.len();
            beginning.extend_from_slice(&piece[..read.min(room)]);
        }
        length += read;
        log.feed(&piece[..read]);
    }
    if length <= LONGEST_MESSAGE {
        return Ok(Input::Message(String::from_utf8_lossy(&beginning).into_owned()));
    }
    Ok(Input::Log(Box::new(log.finish())))
}

/// One line: a message, nothing (a blank line), or why it can't be parsed.
type Line = Result<Option<String>, String>;

/// The messages of a JSON Lines stream, one item per line.
pub(super) struct Messages<R> {
    stream: R,
    line: Vec<u8>,
}

impl<R: BufRead> Messages<R> {
    pub(super) fn new(stream: R) -> Self {
        Self { stream, line: Vec::new() }
    }

    fn read(&mut self) -> io::Result<Option<Line>> {
        self.line.clear();
        let read = self.stream.by_ref().take(MAX_LINE).read_until(b'\n', &mut self.line)?;
        if read == 0 {
            return Ok(None);
        }
        if read as u64 == MAX_LINE && !self.line.ends_with(b"\n") {
            self.stream.skip_until(b'\n')?;
            return Ok(Some(Err(format!("longer than {MAX_LINE} bytes"))));
        }
        Ok(Some(message_of(&self.line)))
    }
}

impl<R: BufRead> Iterator for Messages<R> {
    type Item = io::Result<Line>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

fn message_of(line: &[u8]) -> Line {
    #[derive(Deserialize)]
    struct Row<'a> {
        #[serde(borrow)]
        message: Cow<'a, str>,
    }
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    match serde_json::from_slice::<Row<'_>>(line) {
        Ok(row) => Ok(Some(row.message.into_owned())),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: &[u8]) -> Vec<Line> {
        Messages::new(bytes).map(|line| line.unwrap()).collect()
    }

    #[test]
    fn a_short_text_is_a_message_and_a_long_one_a_log() {
        match read(&b"short"[..]).unwrap() {
            Input::Message(text) => assert_eq!(text, "short"),
            Input::Log(_) => panic!("a short text was read as a log"),
        }
        let log =
            "step ok\n".repeat(5000) + "RuntimeError: CUDA error: device-side assert triggered\n";
        match read(log.as_bytes()).unwrap() {
            Input::Log(found) => assert_eq!(found.first.map(|first| first.line), Some(5001)),
            Input::Message(_) => panic!("a long text was read as a message"),
        }
    }

    #[test]
    fn every_line_has_one_answer() {
        let found =
            lines(b"{\"message\":\"a\\u00e9\"}\n\nnot json\n{\"text\":1}\n{\"message\":\"last\"}");
        assert_eq!(found.len(), 5);
        assert_eq!(found[0], Ok(Some("a\u{e9}".to_owned())));
        assert_eq!(found[1], Ok(None));
        assert!(found[2].is_err() && found[3].is_err());
        assert_eq!(found[4], Ok(Some("last".to_owned())));
    }

    #[test]
    fn an_endless_line_is_refused_and_the_next_one_read() {
        let mut bytes = vec![b'x'; MAX_LINE as usize + 10];
        bytes.extend_from_slice(b"\n{\"message\":\"next\"}\n");
        let found = lines(&bytes);
        assert_eq!(found.len(), 2);
        assert!(found[0].as_ref().unwrap_err().contains("longer"));
        assert_eq!(found[1], Ok(Some("next".to_owned())));
    }

    #[test]
    fn any_bytes_give_as_many_answers_as_lines() {
        let mut random = fastrand::Rng::with_seed(7);
        let pieces: [&[u8]; 9] =
            [b"\n", b"{", b"}", b"\"message\":", b"\"x\"", b"\xff\xfe", b"null", b"[", b"\\u00"];
        for _ in 0..2000 {
            let mut bytes = Vec::new();
            for _ in 0..random.usize(..24) {
                bytes.extend_from_slice(pieces[random.usize(..pieces.len())]);
            }
            let newlines = bytes.iter().filter(|&&b| b == b'\n').count();
            let open = usize::from(bytes.last().is_some_and(|&b| b != b'\n'));
            assert_eq!(lines(&bytes).len(), newlines + open, "{bytes:?}");
        }
    }
}
