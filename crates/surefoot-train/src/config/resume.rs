//! The configuration of a run that goes on from a checkpoint.
//!
//! The checkpoint's configuration applies. What the command line or an edited file says
//! differently is a contradiction if it would make another run of it (other data, another model,
//! another learning rate); only with `overriding` does it win. What decides how the run is
//! carried out, not what comes out (its length, devices, memory, loading, checkpoints), may
//! always change.

use super::{Config, ConfigError, Entries};

/// Keys that a resumed run may change: how long and where it runs, not what it computes.
const FREE: [&str; 12] = [
    "epochs",
    "steps",
    "early_stop",
    "device",
    "memory",
    "workers",
    "prefetch",
    "staging",
    "on_fault",
    "checkpoint.folder",
    "checkpoint.every",
    "checkpoint.keep",
];

/// A key with two values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The key, for example `optimizer.lr`.
    pub key: String,
    /// Its value in the checkpoint; none if it is not set there.
    pub stored: Option<String>,
    /// The other value.
    pub other: Option<String>,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "not set".to_owned());
        write!(
            f,
            "{} is {} in the checkpoint and {} here",
            self.key,
            value(&self.stored),
            value(&self.other)
        )
    }
}

/// A configuration to go on with.
#[derive(Clone, Debug)]
pub struct Resumed {
    /// The configuration.
    pub config: Config,
    /// All keys that flags set, in the first run and in this one.
    pub flags: Vec<(String, String)>,
    /// Where the configuration file says something else than the checkpoint, which applies.
    pub differs_from_file: Vec<Difference>,
    /// What was changed from the checkpoint's configuration.
    pub changed: Vec<Difference>,
}

/// Why a run can't go on with what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// What was asked for contradicts the checkpoint.
    #[error("{}", listed(.0))]
    Contradiction(Vec<Difference>),
    /// The configuration is wrong in itself.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

fn listed(differences: &[Difference]) -> String {
    let lines: Vec<String> = differences.iter().map(ToString::to_string).collect();
    lines.join("; ")
}

/// Resolves the configuration of a run that goes on: `stored` and `stored_flags` are the
/// checkpoint's, `file` the text of a configuration file if one was named, `flags` the keys set on
/// the command line now.
pub fn resume(
    stored: &Entries,
    stored_flags: &[(String, String)],
    file: Option<&str>,
    flags: &[(String, String)],
    overriding: bool,
) -> Result<Resumed, ResumeError> {
    let all_flags = [stored_flags, flags].concat();
    let asked = match file {
        Some(text) => Config::parse(text, &all_flags)?,
        None => Config::from_entries(stored, flags)?,
    };
    let changed = differences(stored, &asked.entries());
    let contradictions: Vec<Difference> =
        changed.iter().filter(|difference| !is_free(&difference.key)).cloned().collect();
    if !contradictions.is_empty() && !overriding {
        return Err(ResumeError::Contradiction(contradictions));
    }
    let differs_from_file = match file {
        Some(text) => {
            let file = Config::parse(text, &[]).map(|config| config.entries()).unwrap_or_default();
            let differ = differences(&asked.entries(), &file).into_iter();
            let set_now = |key: &str| flags.iter().any(|(flag, _)| flag == key);
            differ.filter(|difference| !set_now(&difference.key)).collect()
        }
        None => Vec::new(),
    };
    Ok(Resumed { config: asked, flags: all_flags, differs_from_file, changed })
}

fn is_free(key: &str) -> bool {
    FREE.contains(&key)
}

fn differences(stored: &Entries, other: &Entries) -> Vec<Difference> {
    let keys: std::collections::BTreeSet<&String> = stored.keys().chain(other.keys()).collect();
    keys.into_iter()
        .filter(|key| stored.get(*key) != other.get(*key))
        .map(|key| Difference {
            key: key.clone(),
            stored: stored.get(key).cloned(),
            other: other.get(key).cloned(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "{data: {kind: csv, path: a.csv}, model: {kind: mlp}, epochs: 3}";

    fn flags(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn stored() -> (Entries, Vec<(String, String)>) {
        let first = flags(&[("data.path", "b.csv"), ("epochs", "300")]);
        (Config::parse(FILE, &first).unwrap().entries(), first)
    }

    #[test]
    fn the_stored_configuration_applies_with_and_without_its_file() {
        let (entries, first) = stored();
        for file in [None, Some(FILE)] {
            let resumed = resume(&entries, &first, file, &[], false).unwrap();
            assert_eq!(resumed.config.entries(), entries);
            assert!(resumed.changed.is_empty());
            let named: Vec<&str> =
                resumed.differs_from_file.iter().map(|one| one.key.as_str()).collect();
            let expected: &[&str] = if file.is_some() { &["data.path", "epochs"] } else { &[] };
            assert_eq!(named, expected);
        }
    }

    #[test]
    fn length_devices_and_loading_may_change() {
        let (entries, first) = stored();
        let free =
            flags(&[("steps", "7"), ("device", "cpu"), ("workers", "3"), ("memory", "1GiB")]);
        let resumed = resume(&entries, &first, Some(FILE), &free, false).unwrap();
        assert_eq!(resumed.config.length, super::super::Length::Steps(7));
        assert_eq!(resumed.config.memory, Some(1 << 30));
    }

    #[test]
    fn other_data_and_an_edited_file_are_refused_unless_overridden() {
        let (entries, first) = stored();
        let other = flags(&[("data.path", "c.csv")]);
        let edited = FILE.replace("epochs", "optimizer: {lr: 0.5}, epochs");
        for (file, flags, key) in [(FILE, &other, "data.path"), (&edited, &first, "optimizer.lr")] {
            let refused = resume(&entries, &first, Some(file), flags, false).unwrap_err();
            let ResumeError::Contradiction(why) = refused else { panic!("{refused}") };
            assert_eq!(why.iter().map(|one| one.key.as_str()).collect::<Vec<_>>(), [key]);
            let resumed = resume(&entries, &first, Some(file), flags, true).unwrap();
            assert_eq!(resumed.changed.len(), 1);
        }
    }
}
