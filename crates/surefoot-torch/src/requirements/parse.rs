//! Reads the requirements on torch from the files that name them. A file that can't be read as what
//! it is called has none.

use std::ops::Range;

use pep440_rs::{Operator, VersionSpecifier, VersionSpecifiers};
use ruff_text_size::{TextRange, TextSize};

use super::Requirement;

/// The requirements on torch in a file of this name.
pub(super) fn requirements(path: &str, text: &str) -> Vec<Requirement> {
    let name = path.rsplit(['/', '\\']).next().unwrap_or(path);
    match name {
        "pyproject.toml" => pyproject(text),
        "uv.lock" | "poetry.lock" => lock(text),
        "environment.yml" | "environment.yaml" => conda(text),
        _ => lines(text).filter_map(|(line, at)| pip(line, at)).collect(),
    }
}

/// Lines with where they start, without what follows a `#`.
fn lines(text: &str) -> impl Iterator<Item = (&str, usize)> {
    text.split_inclusive('\n').scan(0, |at, line| {
        let start = *at;
        *at += line.len();
        let end = line.find(" #").unwrap_or(line.len());
        let line = &line[..end];
        Some((if line.starts_with('#') { "" } else { line }, start))
    })
}

/// A requirement as pip writes it, such as `torch[opt]>=2.1,<2.3; python_version > "3.8"`.
fn pip(line: &str, at: usize) -> Option<Requirement> {
    let start = line.len() - line.trim_start().len();
    let line = line.trim().trim_end_matches('\\').trim_end();
    let (requirement, marker) = line.split_once(';').unwrap_or((line, ""));
    if is_for_another_platform(marker) {
        return None;
    }
    let requirement = requirement.split(" --hash").next().unwrap_or(requirement).trim_end();
    let rest = after_name(requirement, &["torch"])?;
    let rest = match rest.strip_prefix('[') {
        Some(extras) => extras.split_once(']')?.1.trim_start(),
        None => rest,
    };
    let rest = rest.trim_start_matches('(').trim_end_matches(')');
    let versions = specifiers(rest)?;
    Some(Requirement { range: range(at + start..at + start + requirement.len()), versions })
}

/// What follows one of the names, if it is a whole word.
fn after_name<'t>(text: &'t str, names: &[&str]) -> Option<&'t str> {
    names.iter().find_map(|name| {
        let head = text.get(..name.len())?;
        let rest = &text[name.len()..];
        let ends = !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || "-_.".contains(c));
        (head.eq_ignore_ascii_case(name) && ends).then(|| rest.trim_start())
    })
}

/// Whether a marker leaves macOS out. One with alternatives is taken to let it in.
fn is_for_another_platform(marker: &str) -> bool {
    const OTHERS: [&str; 6] = [
        "sys_platform==linux",
        "sys_platform==win32",
        "sys_platform!=darwin",
        "platform_system==linux",
        "platform_system==windows",
        "platform_system!=darwin",
    ];
    let marker = marker.to_ascii_lowercase();
    let alternatives = marker.contains(" or ");
    let marker = marker.replace(['"', '\'', ' '], "");
    !alternatives && OTHERS.iter().any(|other| marker.contains(other))
}

/// Versions as PEP 440 writes them. A local version (`+cu118`) is a build for another platform.
fn specifiers(text: &str) -> Option<VersionSpecifiers> {
    let versions: VersionSpecifiers = text.trim().parse().ok()?;
    (!versions.iter().any(|specifier| specifier.version().is_local())).then_some(versions)
}

/// A requirement of Poetry: `^2.1`, `~2.1`, `2.1.*`, `2.1` or what pip takes.
fn poetry(text: &str) -> Option<VersionSpecifiers> {
    let text = text.trim();
    let (caret, bare) = match (text.strip_prefix('^'), text.strip_prefix('~')) {
        (Some(rest), _) => (true, rest),
        (None, Some(rest)) if !rest.starts_with('=') => (false, rest),
        _ if text.starts_with(|c: char| c.is_ascii_digit()) => {
            return format!("=={text}").parse().ok();
        }
        _ => return if text == "*" { None } else { specifiers(text) },
    };
    let version: pep440_rs::Version = bare.trim().parse().ok()?;
    let mut next: Vec<u64> = version.release().iter().copied().take(2).collect();
    // ^2.1 stays below 3, ~2.1 below 2.2.
    if caret && next.first().is_some_and(|major| *major > 0) {
        next.truncate(1);
    }
    *next.last_mut()? += 1;
    let below = pep440_rs::Version::new(next);
    let lower = VersionSpecifier::from_version(Operator::GreaterThanEqual, version).ok()?;
    let upper = VersionSpecifier::from_version(Operator::LessThan, below).ok()?;
    Some([lower, upper].into_iter().collect())
}

fn pyproject(text: &str) -> Vec<Requirement> {
    let Ok(document) = text.parse::<toml::Table>() else { return Vec::new() };
    let mut found = Vec::new();
    let mut lists: Vec<&toml::Value> = Vec::new();
    let tables = |table: Option<&toml::Value>| -> Vec<toml::Value> {
        let table = table.and_then(toml::Value::as_table);
        table.map(|table| table.values().cloned().collect()).unwrap_or_default()
    };
    let project = document.get("project");
    lists.extend(project.and_then(|project| project.get("dependencies")));
    let optional = tables(project.and_then(|project| project.get("optional-dependencies")));
    let groups = tables(document.get("dependency-groups"));
    lists.extend(optional.iter().chain(&groups));
    for item in lists.iter().filter_map(|list| list.as_array()).flatten() {
        let Some(written) = item.as_str() else { continue };
        if let Some(requirement) = pip(written, 0)
            && let Some(place) = find_string(text, written)
        {
            found.push(Requirement { range: place, ..requirement });
        }
    }
    let poetry_table = document.get("tool").and_then(|tool| tool.get("poetry"));
    let torch = poetry_table.and_then(|table| table.get("dependencies")?.get("torch"));
    let version = torch.and_then(|torch| match torch {
        toml::Value::Table(table)
            if table.get("platform").is_some_and(|on| on.as_str() != Some("darwin")) =>
        {
            None
        }
        toml::Value::Table(table) => table.get("version")?.as_str(),
        other => other.as_str(),
    });
    if let Some(version) = version
        && let (Some(versions), Some(place)) = (poetry(version), find_line(text, "torch"))
    {
        found.push(Requirement { range: place, versions });
    }
    found
}

/// Where a string of a TOML file is written.
fn find_string(text: &str, value: &str) -> Option<TextRange> {
    ['"', '\''].iter().find_map(|quote| {
        let at = text.find(&format!("{quote}{value}{quote}"))?;
        Some(range(at + 1..at + 1 + value.len()))
    })
}

/// The line that gives a key of a TOML file its value.
fn find_line(text: &str, key: &str) -> Option<TextRange> {
    lines(text).find_map(|(line, at)| {
        let rest = line.trim_start().strip_prefix(key)?.trim_start();
        rest.starts_with('=').then(|| range(at..at + line.trim_end().len()))
    })
}

/// The versions of torch that a lock file pins.
fn lock(text: &str) -> Vec<Requirement> {
    let mut found = Vec::new();
    let mut is_torch = false;
    for (line, at) in lines(text) {
        let line = line.trim_end();
        if line.starts_with("name = ") {
            is_torch = line == "name = \"torch\"";
        } else if let (true, Some(version)) = (is_torch, line.strip_prefix("version = ")) {
            if let Some(versions) = specifiers(&format!("=={}", version.trim_matches('"'))) {
                found.push(Requirement { range: range(at..at + line.len()), versions });
            }
            is_torch = false;
        }
    }
    found
}

/// Requirements of conda, and those of pip inside: `- pytorch=2.8`, `- conda-forge::pytorch>=2.1`.
fn conda(text: &str) -> Vec<Requirement> {
    let requirement = |(line, at): (&str, usize)| {
        let start = line.len() - line.trim_start().len();
        let item = line.trim().strip_prefix("- ")?.trim().trim_matches(['"', '\'']);
        let item = item.rsplit_once("::").map_or(item, |(_, item)| item);
        let rest = after_name(item, &["pytorch", "torch"])?;
        let exact = rest.strip_prefix('=').filter(|rest| !rest.starts_with('='));
        let versions = match exact {
            // `=2.8` means 2.8 and its patches; a build may follow.
            Some(exact) => {
                let version = exact.split('=').next().unwrap_or(exact);
                specifiers(&format!("=={}.*", version.trim_end_matches(".*")))?
            }
            None => specifiers(rest)?,
        };
        Some(Requirement { range: range(at + start..at + line.trim_end().len()), versions })
    };
    lines(text).filter_map(requirement).collect()
}

fn range(bytes: Range<usize>) -> TextRange {
    let offset = |at: usize| TextSize::try_from(at).unwrap_or_default();
    TextRange::new(offset(bytes.start), offset(bytes.end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &str, text: &str) -> Vec<(String, String)> {
        requirements(path, text)
            .into_iter()
            .map(|found| (text[found.range].to_owned(), found.versions.to_string()))
            .collect()
    }

    fn one(written: &str, versions: &str) -> Vec<(String, String)> {
        vec![(written.to_owned(), versions.to_owned())]
    }

    #[test]
    fn requirements_of_pip_are_read() {
        let read = |text: &str| read("a/requirements-dev.txt", text);
        assert_eq!(read("numpy\ntorch==2.8.0  # pinned\n"), one("torch==2.8.0", "==2.8.0"));
        assert_eq!(
            read("Torch[opt] >= 2.1, < 2.3"),
            one("Torch[opt] >= 2.1, < 2.3", ">=2.1, <2.3")
        );
        assert_eq!(read("torch==2.8.0 \\\n    --hash=sha256:ab\n"), one("torch==2.8.0", "==2.8.0"));
        assert_eq!(read("torch==2.1.0; sys_platform == 'darwin'").len(), 1);
        for other in [
            "torchvision==0.15",
            "torch-geometric==2.8.0",
            "torch==2.8.0+cu126",
            "torch==2.8.0; sys_platform == 'linux'",
            "torch==2.8.0; platform_system != \"Darwin\"",
            "torch @ https://example.org/torch.whl",
            "# torch==2.8.0",
            "-r torch.txt",
        ] {
            assert_eq!(read(other), [], "{other}");
        }
    }

    #[test]
    fn requirements_of_pyproject_are_read() {
        let text = "[project]\ndependencies = [\"numpy\", 'torch>=2.1,<2.2']\n\
            [project.optional-dependencies]\nmac = [\"torch==2.8.0\"]\n\
            [dependency-groups]\ndev = [{include-group = \"x\"}, \"torch~=2.3.0\"]\n";
        let found: Vec<String> =
            read("pyproject.toml", text).into_iter().map(|(written, _)| written).collect();
        assert_eq!(found, ["torch>=2.1,<2.2", "torch==2.8.0", "torch~=2.3.0"]);
        let poetry = |version: &str| {
            read("pyproject.toml", &format!("[tool.poetry.dependencies]\ntorch = {version}\n"))
        };
        assert_eq!(poetry("\"^2.1\""), one("torch = \"^2.1\"", ">=2.1, <3"));
        assert_eq!(poetry("\"~2.8\"")[0].1, ">=2.8, <2.9");
        assert_eq!(poetry("\"2.8.0\"")[0].1, "==2.8.0");
        assert_eq!(poetry("{version = \"2.8.*\"}")[0].1, "==2.8.*");
        assert_eq!(poetry("\"*\""), []);
        assert_eq!(read("pyproject.toml", "not toml ["), []);
    }

    #[test]
    fn lock_files_and_conda_are_read() {
        let lock = "[[package]]\nname = \"torch\"\nversion = \"2.8.0\"\n\
            [[package]]\nname = \"torchvision\"\nversion = \"0.2\"\n";
        assert_eq!(read("uv.lock", lock), one("version = \"2.8.0\"", "==2.8.0"));
        let conda = |item: &str| {
            let text = format!("dependencies:\n  - python=3.11\n  - {item}\n");
            read("environment.yml", &text).first().map(|(_, versions)| versions.clone())
        };
        assert_eq!(conda("pytorch=2.8").as_deref(), Some("==2.8.*"));
        assert_eq!(conda("conda-forge::pytorch=2.8.0=py311").as_deref(), Some("==2.8.0.*"));
        assert_eq!(conda("torch==2.8.0").as_deref(), Some("==2.8.0"));
        assert_eq!(conda("pytorch-cuda=12.1"), None);
    }
}
