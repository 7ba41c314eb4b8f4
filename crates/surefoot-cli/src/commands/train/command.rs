//! The command to go on with a run, as it is printed.

use std::path::Path;

use super::options::Options;

/// Everything of a command line that a checkpoint doesn't hold.
pub(super) struct ResumeCommand {
    flags: Vec<String>,
}

impl ResumeCommand {
    pub(super) fn new(options: &Options, isolated: bool) -> Self {
        let mut flags = options.recovery_flags();
        if isolated {
            flags.push("--isolate".to_owned());
        }
        Self { flags }
    }

    /// Goes on from this checkpoint, which holds the configuration.
    pub(super) fn from(&self, checkpoint: &Path) -> String {
        let path = checkpoint.display().to_string();
        // A name with a NUL byte can't be quoted, and can't be a file's.
        let path = shlex::try_quote(&path).unwrap_or_default();
        let flags: String = self.flags.iter().map(|flag| format!(" {flag}")).collect();
        format!("surefoot train --resume={path}{flags}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_can_be_pasted_into_a_shell() {
        let command = ResumeCommand { flags: vec!["--forbid".into(), "split".into()] };
        let plain = command.from(Path::new("runs/a/step-00000001.safetensors"));
        assert_eq!(
            plain,
            "surefoot train --resume=runs/a/step-00000001.safetensors --forbid split"
        );
        let odd = command.from(Path::new("my runs/it's/step-1.safetensors"));
        let words = shlex::split(&odd).unwrap();
        assert_eq!(words[2], "--resume=my runs/it's/step-1.safetensors");
    }
}
