//! Which rules apply to which file: `[tool.surefoot]` of `pyproject.toml`, then the command line.
//!
//! ```toml
//! [tool.surefoot]
//! select = ["SF0"]
//! ignore = ["SF029"]
//! exclude = ["third_party/"]
//!
//! [tool.surefoot.per-file-ignores]
//! "tests/*" = ["SF006"]
//! ```

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use serde::Deserialize;

use crate::requirements::asks_for_at_least;
use crate::rules::{self, CheckRule};

/// Why the settings can't be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A `pyproject.toml` that can't be read.
    #[error("{path} can't be read: {error}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// Not TOML, or a key that means nothing here.
    #[error("{path}: {message}")]
    Parse {
        /// The file.
        path: String,
        /// What is wrong, with the line.
        message: String,
    },
    /// A rule that does not exist.
    #[error("no rule begins with `{prefix}` ({from})")]
    UnknownRule {
        /// What was asked for.
        prefix: String,
        /// Where it was asked for.
        from: String,
    },
    /// A pattern that can't be used.
    #[error("the pattern `{pattern}` can't be used: {message}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// Why.
        message: String,
    },
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct Table {
    select: Option<Vec<String>>,
    ignore: Vec<String>,
    exclude: Vec<String>,
    per_file_ignores: BTreeMap<String, Vec<String>>,
}

/// What the command line adds.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// `--select`: instead of what the file selects.
    pub select: Vec<String>,
    /// `--ignore`: besides what the file ignores.
    pub ignore: Vec<String>,
}

/// Which rules apply where.
#[derive(Debug)]
pub struct Settings {
    /// The folder that patterns are relative to.
    root: PathBuf,
    rules: Vec<&'static CheckRule>,
    exclude: Gitignore,
    per_file: Vec<(Gitignore, Vec<String>)>,
    /// By folder: whether its project asks for a torch that loads weights only, of itself.
    safe_loading: Mutex<HashMap<PathBuf, bool>>,
}

/// From this release on `torch.load` loads weights only unless told otherwise.
const SAFE_LOADING: &str = "2.6.0";

impl Settings {
    /// Reads the nearest `pyproject.toml` at or above `start` that has `[tool.surefoot]`.
    pub fn find(start: &Path, overrides: &Overrides) -> Result<Self, SettingsError> {
        let start = start.canonicalize().unwrap_or_else(|_| start.to_owned());
        for folder in start.ancestors() {
            let path = folder.join("pyproject.toml");
            if !path.is_file() {
                continue;
            }
            let name = path.display().to_string();
            let text = fs::read_to_string(&path)
                .map_err(|error| SettingsError::Read { path: name.clone(), error })?;
            if let Some(table) = read_table(&text, &name)? {
                return Self::resolve(folder, &name, table, overrides);
            }
        }
        Self::resolve(&start, "pyproject.toml", Table::default(), overrides)
    }

    /// All rules, for every file.
    pub fn defaults(root: &Path) -> Self {
        let (rules, exclude) = (rules::ALL.to_vec(), Gitignore::empty());
        let per_file = Vec::new();
        Self { root: root.to_owned(), rules, exclude, per_file, safe_loading: Mutex::default() }
    }

    fn resolve(
        root: &Path,
        name: &str,
        table: Table,
        overrides: &Overrides,
    ) -> Result<Self, SettingsError> {
        let (selected, from) = match &table.select {
            _ if !overrides.select.is_empty() => (&overrides.select, "--select"),
            Some(select) => (select, name),
            None => (&Vec::new(), name),
        };
        known(selected, from)?;
        known(&table.ignore, name)?;
        known(&overrides.ignore, "--ignore")?;
        // A choice on the command line is not undone by the file.
        let from_file: &[String] = if overrides.select.is_empty() { &table.ignore } else { &[] };
        let everything = table.select.is_none() && overrides.select.is_empty();
        let rules = rules::ALL
            .iter()
            .copied()
            .filter(|rule| everything || matches_any(rule, selected))
            .filter(|rule| !matches_any(rule, from_file) && !matches_any(rule, &overrides.ignore))
            .collect();
        let mut per_file = Vec::new();
        for (pattern, codes) in table.per_file_ignores {
            known(&codes, name)?;
            per_file.push((patterns(root, &[pattern])?, codes));
        }
        let exclude = patterns(root, &table.exclude)?;
        Ok(Self { root: root.to_owned(), rules, exclude, per_file, safe_loading: Mutex::default() })
    }

    /// The rules for a file. That `torch.load` runs code from the file is no trouble of a project that
    /// asks for a torch which does not.
    pub fn rules_for(&self, path: &Path) -> Vec<&'static CheckRule> {
        let mut rules = self.chosen_for(path);
        let is_pickle = |rule: &&'static CheckRule| rules::is_about_pickle(rule);
        if rules.iter().any(is_pickle) && self.loads_safely(path) {
            rules.retain(|rule| !is_pickle(rule));
        }
        rules
    }

    fn loads_safely(&self, path: &Path) -> bool {
        let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(&self.root);
        // Another thread that panicked has left the map as it was.
        let mut known = self.safe_loading.lock().unwrap_or_else(PoisonError::into_inner);
        *known.entry(folder.to_owned()).or_insert_with(|| {
            let folder = folder.canonicalize().unwrap_or_else(|_| self.root.join(folder));
            asks_for_at_least(SAFE_LOADING, &folder)
        })
    }

    fn chosen_for(&self, path: &Path) -> Vec<&'static CheckRule> {
        if self.per_file.is_empty() {
            return self.rules.clone();
        }
        let ignored: Vec<&Vec<String>> = self
            .per_file
            .iter()
            .filter(|(pattern, _)| self.matches(pattern, path, false))
            .map(|(_, codes)| codes)
            .collect();
        let keep =
            |rule: &&'static CheckRule| !ignored.iter().any(|codes| matches_any(rule, codes));
        self.rules.iter().copied().filter(keep).collect()
    }

    /// Whether a file or folder is left out by `exclude`.
    pub fn excludes(&self, path: &Path, is_folder: bool) -> bool {
        !self.exclude.is_empty() && self.matches(&self.exclude, path, is_folder)
    }

    fn matches(&self, pattern: &Gitignore, path: &Path, is_folder: bool) -> bool {
        let absolute = path.canonicalize().unwrap_or_else(|_| self.root.join(path));
        let Ok(relative) = absolute.strip_prefix(&self.root) else { return false };
        pattern.matched_path_or_any_parents(relative, is_folder).is_ignore()
    }
}

fn read_table(text: &str, name: &str) -> Result<Option<Table>, SettingsError> {
    let parse = |message: String| SettingsError::Parse { path: name.to_owned(), message };
    let document: toml::Table =
        text.parse().map_err(|error: toml::de::Error| parse(error.to_string()))?;
    let tool = document.get("tool").and_then(|tool| tool.get("surefoot"));
    let Some(table) = tool else { return Ok(None) };
    let table = table
        .clone()
        .try_into::<Table>()
        .map_err(|error| parse(format!("in [tool.surefoot]: {}", error.to_string().trim())))?;
    Ok(Some(table))
}

fn matches_any(rule: &CheckRule, prefixes: &[String]) -> bool {
    prefixes.iter().any(|prefix| begins(rule, prefix))
}

fn begins(rule: &CheckRule, prefix: &str) -> bool {
    prefix.eq_ignore_ascii_case("ALL")
        || rule.name == prefix
        || !prefix.is_empty()
            && rule.code.get(..prefix.len()).is_some_and(|head| head.eq_ignore_ascii_case(prefix))
}

fn known(prefixes: &[String], from: &str) -> Result<(), SettingsError> {
    match prefixes.iter().find(|prefix| !rules::ALL.iter().any(|rule| begins(rule, prefix))) {
        Some(prefix) => {
            Err(SettingsError::UnknownRule { prefix: prefix.clone(), from: from.to_owned() })
        }
        None => Ok(()),
    }
}

fn patterns(root: &Path, lines: &[String]) -> Result<Gitignore, SettingsError> {
    let fail = |pattern: &str, error: ignore::Error| SettingsError::Pattern {
        pattern: pattern.to_owned(),
        message: error.to_string(),
    };
    let mut builder = GitignoreBuilder::new(root);
    for line in lines {
        builder.add_line(None, line).map_err(|error| fail(line, error))?;
    }
    builder.build().map_err(|error| fail(&lines.join(" "), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(settings: &Settings, path: &str) -> Vec<&'static str> {
        settings.rules_for(Path::new(path)).iter().map(|rule| rule.code).collect()
    }

    fn project(text: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("pyproject.toml"), text).expect("written");
        folder
    }

    #[test]
    fn prefixes_select_and_ignore() {
        let folder = project("[tool.surefoot]\nselect = [\"SF00\"]\nignore = [\"SF006\"]\n");
        let settings = Settings::find(folder.path(), &Overrides::default()).expect("settings");
        let found = codes(&settings, "a.py");
        assert_eq!(found.len(), 8);
        assert!(!found.contains(&"SF006") && !found.contains(&"SF010"));
    }

    #[test]
    fn the_command_line_selects_instead_of_the_file() {
        let folder = project("[tool.surefoot]\nselect = [\"SF001\"]\nignore = [\"SF029\"]\n");
        let overrides = Overrides { select: vec!["SF029".to_owned()], ignore: Vec::new() };
        let settings = Settings::find(folder.path(), &overrides).expect("settings");
        assert_eq!(codes(&settings, "a.py"), ["SF029"]);
    }

    #[test]
    fn a_project_that_asks_for_a_safe_torch_is_not_told_of_pickles() {
        for (requirement, told) in
            [("torch>=2.6", false), ("torch>=2.5", true), ("torch>=2.7,<3", false), ("numpy", true)]
        {
            let folder = project(&format!("[project]\ndependencies = [\"{requirement}\"]\n"));
            fs::create_dir(folder.path().join("src")).expect("made");
            let settings = Settings::find(folder.path(), &Overrides::default()).expect("settings");
            let file = folder.path().join("src/a.py").display().to_string();
            assert_eq!(codes(&settings, &file).contains(&"SF025"), told, "{requirement}");
        }
    }

    #[test]
    fn unknown_keys_and_rules_are_errors() {
        let folder = project("[tool.surefoot]\nselekt = []\n");
        let error = Settings::find(folder.path(), &Overrides::default()).expect_err("an error");
        assert!(error.to_string().contains("selekt"), "{error}");
        let folder = project("[tool.surefoot]\nignore = [\"SF9\"]\n");
        let error = Settings::find(folder.path(), &Overrides::default()).expect_err("an error");
        assert!(error.to_string().contains("SF9"), "{error}");
    }

    #[test]
    fn files_have_their_own_ignores_and_exclusions() {
        let folder = project(
            "[tool.surefoot]\nexclude = [\"old/\"]\n[tool.surefoot.per-file-ignores]\n\"tests/*\" = [\"SF\"]\n",
        );
        let settings = Settings::find(folder.path(), &Overrides::default()).expect("settings");
        assert!(codes(&settings, "tests/a.py").is_empty());
        assert_eq!(codes(&settings, "a.py").len(), rules::ALL.len());
        assert!(settings.excludes(Path::new("old"), true));
        assert!(settings.excludes(Path::new("old/a.py"), false));
        assert!(!settings.excludes(Path::new("new/a.py"), false));
    }
}
