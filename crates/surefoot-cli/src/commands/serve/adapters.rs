//! The adapters of `surefoot serve --adapter [NAME=]DIR`: each is a model of its own to clients, and all share the weights.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::exit::Failure;
use crate::model_folder::ModelFolder;

/// An adapter and what clients call the model with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedAdapter {
    pub(super) name: String,
    pub(super) folder: PathBuf,
}

impl FromStr for NamedAdapter {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        // A folder may have '=' in its name.
        Ok(match text.split_once('=') {
            Some((name, folder)) if !name.contains('/') && !Path::new(text).is_dir() => {
                Self { name: name.to_owned(), folder: folder.into() }
            }
            _ => Self { name: folder_name(Path::new(text)), folder: text.into() },
        })
    }
}

/// The name of a folder; empty if it has none.
fn folder_name(folder: &Path) -> String {
    let whole = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    whole.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

impl NamedAdapter {
    /// The adapters, if each has a name of its own and `model`, which is called `base`, can be run with them.
    pub(super) fn checked(
        adapters: &[Self],
        base: &str,
        model: &ModelFolder,
    ) -> Result<Vec<Self>, Failure> {
        if !adapters.is_empty() && model.adapter().is_some() {
            let message =
                format!("'{base}' is a fine-tuned model already, so --adapter can't be used");
            return Err(Failure::usage(message).hint("name the published model's folder"));
        }
        for (number, adapter) in adapters.iter().enumerate() {
            let (name, folder) = (&adapter.name, adapter.folder.display());
            let earlier = adapters[..number].iter().find(|other| other.name == *name);
            let problem = match earlier {
                _ if name.is_empty() => format!("the adapter {folder} has no name"),
                _ if name == base => {
                    format!("the adapter {folder} and the model are both called '{name}'")
                }
                Some(other) => format!(
                    "the adapters {} and {folder} are both called '{name}'",
                    other.folder.display()
                ),
                None => continue,
            };
            return Err(
                Failure::usage(problem).hint("--adapter NAME=DIR, as clients should call it")
            );
        }
        Ok(adapters.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (String, PathBuf) {
        let adapter: NamedAdapter = text.parse().unwrap();
        (adapter.name, adapter.folder)
    }

    #[test]
    fn an_adapter_has_the_name_it_is_given_or_its_folders() {
        assert_eq!(parsed("chats=runs/a/adapter"), ("chats".to_owned(), "runs/a/adapter".into()));
        assert_eq!(parsed("runs/chats"), ("chats".to_owned(), "runs/chats".into()));
        assert_eq!(parsed("runs/lr=1/adapter"), ("adapter".to_owned(), "runs/lr=1/adapter".into()));
        assert_eq!(parsed("=runs/a").0, "");
    }

    #[test]
    fn names_are_not_used_twice() {
        let model = ModelFolder::of(Path::new("llama")).unwrap();
        let check = |texts: &[&str]| {
            let adapters: Vec<NamedAdapter> =
                texts.iter().map(|text| text.parse().unwrap()).collect();
            NamedAdapter::checked(&adapters, "llama", &model).map(|adapters| adapters.len())
        };
        assert_eq!(check(&["a=x", "b=x"]).unwrap(), 2);
        for wrong in [&["a=x", "a=y"][..], &["llama=x"], &["=x"]] {
            assert!(check(wrong).is_err(), "{wrong:?}");
        }
    }
}
