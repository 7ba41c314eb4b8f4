//! `surefoot check`: finds device bugs in PyTorch code without running it.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use surefoot_torch::discover::{Found, discover};
use surefoot_torch::finding::Severity;
use surefoot_torch::project::{CheckReport, Checked, check_found};
use surefoot_torch::report::{self, count};
use surefoot_torch::settings::{Overrides, Settings};
use surefoot_torch::source::{LARGEST, Source};
use surefoot_torch::{check, fix, plan, rules};

use crate::args::Global;
use crate::exit::{Exit, Failure};
use crate::terminal::{Terminal, is_stdout_coloured};

/// Find device bugs in PyTorch code without running it
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  surefoot check                        check all Python files and notebooks in this folder
  surefoot check train.py eval.ipynb    check these files
  surefoot check --fix src              apply the fixes that are safe
  surefoot check --diff src             show what --fix would change
  surefoot check --select SF00 src      only rules whose code starts with SF00
  surefoot check --explain SF010        what a rule finds, and why
  surefoot check --plan > PLAN.md       how the project uses devices, and what to change
  cat x.py | surefoot check - --stdin-filename x.py

Settings are read from [tool.surefoot] in pyproject.toml: select, ignore, exclude,
per-file-ignores. A line ending in `# noqa: SF001` is left alone.

Exit codes: 0 no errors or warnings; 1 errors or warnings, with --strict also hints; 2 a file could
not be read or parsed.")]
pub(crate) struct Check {
    /// Files and folders, or - for stdin
    #[arg(default_value = ".", value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Apply the fixes that are safe
    #[arg(long, conflicts_with_all = ["diff", "plan"])]
    fix: bool,
    /// Show what --fix would change, and change nothing
    #[arg(long, conflicts_with = "plan")]
    diff: bool,
    /// Check only these rules: codes, prefixes of codes, or names
    #[arg(long, value_name = "CODES", value_delimiter = ',')]
    select: Vec<String>,
    /// Don't check these rules
    #[arg(long, value_name = "CODES", value_delimiter = ',')]
    ignore: Vec<String>,
    /// Explain a rule, or list them all
    #[arg(long, value_name = "RULE", num_args = 0..=1, default_missing_value = "all")]
    explain: Option<String>,
    /// Print how the project uses devices and what to change, as Markdown
    #[arg(long)]
    plan: bool,
    /// Exit with 1 for hints too, not only for errors and warnings
    #[arg(long)]
    strict: bool,
    /// File name to report for text from stdin
    #[arg(long, value_name = "FILE", default_value = "-")]
    stdin_filename: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Readable text
    Text,
    /// One JSON document
    Json,
    /// SARIF 2.1.0
    Sarif,
    /// GitHub Actions annotations
    Github,
}

impl Check {
    pub(crate) fn run(self, global: &Global, terminal: &Terminal) -> Result<Exit, Failure> {
        if let Some(rule) = &self.explain {
            return explain(rule, terminal);
        }
        let start = std::env::current_dir().map_err(|error| {
            Failure::usage("the current folder can't be read").caused_by(&error)
        })?;
        let overrides = Overrides { select: self.select.clone(), ignore: self.ignore.clone() };
        let settings = Settings::find(&start, &overrides).map_err(|error| {
            Failure::usage("the settings can't be used")
                .caused_by(&error)
                .hint("surefoot check --explain lists the rules")
        })?;
        if self.paths.iter().any(|path| path == Path::new("-")) {
            return self.stdin(&settings, global, terminal);
        }
        let found = discover(&self.paths, &settings);
        if found.files.is_empty() && found.requirements.is_empty() && found.errors.is_empty() {
            terminal.note("note: no Python files or notebooks were found");
        }
        if self.diff || self.fix {
            return self.apply_fixes(found, &settings, global, terminal);
        }
        let mut report = check_found(&found, &settings);
        report.errors.splice(0..0, found.errors);
        if self.plan {
            terminal.result(&plan::plan(&found.files, &report))?;
            return Ok(self.outcome(&report));
        }
        self.print(&report, global, terminal)
    }

    fn stdin(
        &self,
        settings: &Settings,
        global: &Global,
        terminal: &Terminal,
    ) -> Result<Exit, Failure> {
        if self.paths.len() > 1 || self.plan {
            return Err(Failure::usage("stdin can only be checked by itself")
                .hint("surefoot check - < file.py"));
        }
        let mut bytes = Vec::new();
        io::stdin()
            .lock()
            .take(LARGEST + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| Failure::usage("stdin can't be read").caused_by(&error))?;
        let rules = settings.rules_for(Path::new(&self.stdin_filename));
        let mut report = CheckReport::default();
        let source = match Source::from_bytes(self.stdin_filename.clone(), bytes) {
            Ok(source) => source,
            Err(error) => {
                report.add(Err(error));
                return self.print(&report, global, terminal);
            }
        };
        let fixed = if self.fix || self.diff { fix::fix(&source, &rules) } else { None };
        if self.diff {
            let changes = fixed.as_ref().map(|fixed| fix::diff(&source, &fixed.source));
            terminal.result(&changes.unwrap_or_default())?;
            return Ok(if fixed.is_some() { Exit::No } else { Exit::Done });
        }
        if self.fix {
            // The text goes to stdout as it was or as it is now; what is left goes to stderr.
            let now = fixed.map_or(source, |fixed| fixed.source);
            terminal.result(&now.text)?;
            report
                .add(check::check(&now, &rules).map(|findings| Checked { source: now, findings }));
            terminal.note(report::text::render(&report, false).trim_end());
            return Ok(self.outcome(&report));
        }
        report.add(check::check(&source, &rules).map(|findings| Checked { source, findings }));
        self.print(&report, global, terminal)
    }

    /// `--fix` and `--diff`.
    fn apply_fixes(
        &self,
        found: Found,
        settings: &Settings,
        global: &Global,
        terminal: &Terminal,
    ) -> Result<Exit, Failure> {
        let mut report = check_found(&found, settings);
        let mut changes = String::new();
        let mut mended = 0;
        for checked in &mut report.checked {
            let path = PathBuf::from(&checked.source.path);
            let rules = settings.rules_for(&path);
            let Some(fixed) = fix::fix(&checked.source, &rules) else { continue };
            mended += fixed.count;
            if self.diff {
                changes.push_str(&fix::diff(&checked.source, &fixed.source));
                continue;
            }
            fix::write(&checked.source, &fixed).map_err(|error| {
                Failure::usage(format!("{} can't be written", path.display())).caused_by(&error)
            })?;
            let findings = check::check(&fixed.source, &rules).unwrap_or_default();
            *checked = Checked { source: fixed.source, findings };
        }
        report.errors.splice(0..0, found.errors);
        if self.diff {
            terminal.result(&changes)?;
            for error in &report.errors {
                terminal.note(report::text::error_text(error, false).trim_end());
            }
            terminal.note(&format!("{} would be fixed", count(mended, "finding")));
            return Ok(match (report.errors.is_empty(), mended) {
                (false, _) => Exit::Usage,
                (true, 0) => Exit::Done,
                (true, _) => Exit::No,
            });
        }
        report.checked.retain(|checked| !checked.findings.is_empty());
        terminal.note(&format!("{} fixed", count(mended, "finding")));
        self.print(&report, global, terminal)
    }

    fn print(
        &self,
        report: &CheckReport,
        global: &Global,
        terminal: &Terminal,
    ) -> Result<Exit, Failure> {
        match if global.json { Format::Json } else { self.format } {
            Format::Json => terminal.json(&report::json::document(report))?,
            Format::Sarif => terminal.json(&report::sarif::document(report))?,
            Format::Github => terminal.result(&report::github::render(report))?,
            Format::Text => {
                terminal.result(&report::text::render(report, is_stdout_coloured()))?;
                terminal.note(&summary(report));
            }
        }
        Ok(self.outcome(report))
    }

    /// A file that could not be checked counts more than any finding; hints alone count with
    /// `--strict` only.
    fn outcome(&self, report: &CheckReport) -> Exit {
        let mut findings = report.checked.iter().flat_map(|checked| &checked.findings);
        if !report.errors.is_empty() {
            Exit::Usage
        } else if findings.any(|found| self.strict || found.severity != Severity::Hint) {
            Exit::No
        } else {
            Exit::Done
        }
    }
}

fn summary(report: &CheckReport) -> String {
    let fixable = report
        .checked
        .iter()
        .flat_map(|checked| &checked.findings)
        .filter(|finding| finding.fix.is_some())
        .count();
    let mut text = format!(
        "{} in {}, {} of Python",
        count(report.findings(), "finding"),
        count(report.files, "file"),
        count(report.lines, "line"),
    );
    if !report.errors.is_empty() {
        text.push_str(&format!("; {} could not be checked", count(report.errors.len(), "file")));
    }
    if fixable > 0 {
        text.push_str(&format!("; {fixable} can be fixed with --fix"));
    }
    text
}

fn explain(name: &str, terminal: &Terminal) -> Result<Exit, Failure> {
    if name == "all" {
        let rows = rules::ALL.iter().map(|rule| {
            let fix = if rule.fixable { "fix" } else { "" };
            format!("{}  {:<7}  {fix:<3}  {}\n", rule.code, rule.severity.word(), rule.summary)
        });
        terminal.result(&rows.collect::<String>())?;
        return Ok(Exit::Done);
    }
    match rules::find(name) {
        Some(rule) => terminal.result(rule.page).map(|()| Exit::Done),
        None => Err(Failure::usage(format!("there is no rule `{name}`"))
            .hint("surefoot check --explain lists the rules")),
    }
}
