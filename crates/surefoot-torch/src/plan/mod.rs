//! A project's device story: where devices are chosen, what is made and where it ends up, and
//! what to change, in the order in which to change it. Written as Markdown with a diagram.

mod diagram;
mod steps;
mod story;

use std::fmt::Write;
use std::path::PathBuf;

use crate::project::{CheckReport, map_files};
use crate::report::count;
use crate::source::Source;
use story::{Made, Sort, Story};

/// How many rows a table shows before it says how many more there are.
const ROWS: usize = 60;

/// The plan for these files and what was found in them.
pub fn plan(files: &[PathBuf], report: &CheckReport) -> String {
    let stories =
        map_files(files, |path| Source::read(path).ok().and_then(|source| story::tell(&source)));
    let mut all = Story::default();
    for story in stories.into_iter().flatten() {
        all.devices.extend(story.devices);
        all.made.extend(story.made);
    }
    render(&all, report)
}

fn render(story: &Story, report: &CheckReport) -> String {
    let mut out = String::from("# Device plan\n\n");
    let mut write = |text: std::fmt::Arguments<'_>| {
        // Writing to a string can't fail.
        let _ = out.write_fmt(text);
    };
    write(format_args!(
        "{}, {} of Python, {}, {} that could not be read.\n\n",
        count(report.files, "file"),
        count(report.lines, "line"),
        count(report.findings(), "finding"),
        count(report.errors.len(), "file"),
    ));
    write(format_args!("## Where devices are chosen\n\n"));
    if story.devices.is_empty() {
        write(format_args!("Nowhere: what has no device named is on the CPU.\n\n"));
    } else {
        write(format_args!("| device | where | can be |\n| --- | --- | --- |\n"));
        for device in story.devices.iter().take(ROWS) {
            write(format_args!(
                "| `{}` | {} | {} |\n",
                cell(&device.name),
                plain(&device.place),
                plain(&device.can)
            ));
        }
        more(&mut write, story.devices.len());
        write(format_args!("\n"));
    }
    for sort in [Sort::Model, Sort::Optimizer, Sort::Loader, Sort::Tensor] {
        let made: Vec<&Made> = story.made.iter().filter(|made| made.sort == sort).collect();
        write(format_args!("## {}\n\n", sort.title()));
        if made.is_empty() {
            write(format_args!("None are made here.\n\n"));
            continue;
        }
        write(format_args!("| name | made by | where | device |\n| --- | --- | --- | --- |\n"));
        for made in made.iter().take(ROWS) {
            write(format_args!(
                "| `{}` | `{}` | {} | {} |\n",
                cell(&made.name),
                cell(&made.maker),
                plain(&made.place),
                plain(&made.device),
            ));
        }
        more(&mut write, made.len());
        write(format_args!("\n"));
    }
    write(format_args!("## What to change, in this order\n\n"));
    write(format_args!("{}", steps::render(report)));
    write(format_args!("## The picture\n\n```mermaid\n{}```\n", diagram::render(story)));
    out
}

fn more(write: &mut impl FnMut(std::fmt::Arguments<'_>), total: usize) {
    if total > ROWS {
        write(format_args!("\n…and {} more.\n", total - ROWS));
    }
}

/// Text that may stand between backticks in a table's cell.
fn cell(text: &str) -> String {
    plain(text).replace('`', "'")
}

/// Text that may stand in a table's cell.
fn plain(text: &str) -> String {
    text.replace('|', "\\|").replace(['\n', '\r'], " ")
}
