//! What to quote of the last lines of a Python process that was killed: what was said before the crash, and the line of
//! Python that was running, which Python's faulthandler writes.

/// What faulthandler begins with.
const FATAL: &str = "Fatal Python error: ";

/// The last line before the crash and the innermost line of the user's own code; the last line of all where
/// faulthandler had no chance, as after SIGKILL.
pub(super) fn quote(words: &[String]) -> Option<String> {
    let says = |line: &&String| !line.trim().is_empty();
    let Some(fatal) = words.iter().rposition(|line| line.starts_with(FATAL)) else {
        let last = words.iter().rev().find(says)?;
        return Some(format!("its last line on stderr: {last}"));
    };
    let dump = &words[fatal + 1..];
    let stack = dump.iter().skip_while(|line| !line.starts_with("Current thread")).skip(1);
    let frames: Vec<&str> = stack.map_while(|line| line.trim().strip_prefix("File ")).collect();
    let is_installed =
        |frame: &str| frame.contains("site-packages") || frame.contains("/lib/python");
    let own = frames.iter().find(|frame| !is_installed(frame)).or(frames.first());
    let before = words[..fatal].iter().rev().find(says);
    let mut told = Vec::new();
    told.extend(before.map(|line| format!("its last line on stderr: {line}")));
    told.extend(own.map(|frame| format!("Python was at {frame}")));
    if told.is_empty() {
        told.push(words[fatal].clone());
    }
    Some(told.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quoted(text: &str) -> Option<String> {
        quote(&text.lines().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn a_crash_names_the_users_own_line_and_what_was_said_before() {
        let text = "epoch 3\n\
            -[MTLDebugCommandBuffer preCommit]:222: failed assertion\n\n\
            Fatal Python error: Aborted\n\n\
            Thread 0x1 (most recent call first):\n  File \"/x/other.py\", line 9 in wait\n\n\
            Current thread 0x2 (most recent call first):\n\
            \x20 File \"/venv/lib/python3.11/site-packages/torch/nn/functional.py\", line 55 in linear\n\
            \x20 File \"/home/me/train.py\", line 12 in step\n\
            \x20 File \"/home/me/train.py\", line 30 in <module>\n\n\
            Extension modules: numpy, torch._C (total: 2)";
        let told = quoted(text).unwrap();
        assert_eq!(
            told,
            "its last line on stderr: -[MTLDebugCommandBuffer preCommit]:222: failed assertion; \
             Python was at \"/home/me/train.py\", line 12 in step"
        );
    }

    #[test]
    fn without_a_dump_the_last_line_is_quoted_and_silence_says_nothing() {
        assert_eq!(quoted("one\ntwo\n\n").unwrap(), "its last line on stderr: two");
        assert_eq!(quoted(""), None);
        assert_eq!(quoted("Fatal Python error: Aborted").unwrap(), "Fatal Python error: Aborted");
    }
}
