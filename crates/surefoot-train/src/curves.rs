//! Loss and accuracy over the epochs, as an SVG picture.

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::report::EpochReport;

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 52.0;
const TOP: f64 = 34.0;
const RIGHT: f64 = 14.0;
const BOTTOM: f64 = 40.0;

/// One line of a chart.
struct Line<'a> {
    name: &'a str,
    colour: &'a str,
    values: Vec<f64>,
}

/// Writes `curves.svg` into a folder; nothing if there is no epoch to show.
pub fn write(folder: &Path, epochs: &[EpochReport]) -> io::Result<Option<PathBuf>> {
    if epochs.is_empty() {
        return Ok(None);
    }
    let path = folder.join("curves.svg");
    fs::write(&path, draw(epochs))?;
    Ok(Some(path))
}

/// Two charts side by side.
pub fn draw(epochs: &[EpochReport]) -> String {
    let line = |name, colour, value: fn(&EpochReport) -> f64| Line {
        name,
        colour,
        values: epochs.iter().map(value).collect(),
    };
    let first = epochs.first().map_or(1, |epoch| epoch.epoch);
    let loss = chart(
        "loss",
        first,
        &[
            line("train", "#8a8f98", |epoch| epoch.train_loss),
            line("test", "#1f6feb", |epoch| epoch.test_loss),
        ],
    );
    let accuracy = chart(
        "accuracy",
        first,
        &[
            line("train", "#8a8f98", |epoch| epoch.train_accuracy),
            line("test", "#1f6feb", |epoch| epoch.test_accuracy),
        ],
    );
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{loss}\
         <g transform=\"translate({WIDTH} 0)\">\n{accuracy}</g>\n</svg>\n",
        2.0 * WIDTH
    )
}

fn chart(title: &str, first: u64, lines: &[Line<'_>]) -> String {
    let values = lines.iter().flat_map(|line| &line.values).filter(|value| value.is_finite());
    let (mut low, mut high) = values
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(*value), high.max(*value))
        });
    if !low.is_finite() {
        (low, high) = (0.0, 1.0);
    }
    if high - low < 1e-9 {
        (low, high) = (low - 0.5, high + 0.5);
    }
    let count = lines.iter().map(|line| line.values.len()).max().unwrap_or(1);
    let x = |at: usize| {
        let share = if count > 1 { at as f64 / (count - 1) as f64 } else { 0.5 };
        LEFT + share * (WIDTH - LEFT - RIGHT)
    };
    let y = |value: f64| HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM);
    let mut svg = String::new();
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"18\" font-size=\"13\" font-weight=\"bold\">{title}</text>"
    );
    for tick in 0..=4 {
        let value = low + (high - low) * f64::from(tick) / 4.0;
        let at = y(value);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#e4e6ea\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
            short(value)
        );
    }
    for at in [0, count - 1] {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\">{}</text>",
            x(at),
            HEIGHT - BOTTOM + 16.0,
            first + at as u64
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\">epoch</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 8.0
    );
    for (number, line) in lines.iter().enumerate() {
        let points: Vec<String> = line
            .values
            .iter()
            .enumerate()
            .filter(|(_, value)| value.is_finite())
            .map(|(at, value)| format!("{:.1},{:.1}", x(at), y(*value)))
            .collect();
        let label = WIDTH - RIGHT - 44.0 * (lines.len() - number) as f64;
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\"/>\
             <text x=\"{label:.1}\" y=\"18\" fill=\"{}\">{}</text>",
            points.join(" "),
            line.colour,
            line.colour,
            line.name
        );
        if let [point] = points.as_slice()
            && let Some((cx, cy)) = point.split_once(',')
        {
            let _ =
                writeln!(svg, "<circle cx=\"{cx}\" cy=\"{cy}\" r=\"3\" fill=\"{}\"/>", line.colour);
        }
    }
    svg
}

fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if !(0.001..1000.0).contains(&size) => format!("{value:.1e}"),
        size if size < 0.1 => format!("{value:.3}"),
        size if size < 10.0 => format!("{value:.2}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn epoch(epoch: u64, loss: f64) -> EpochReport {
        EpochReport {
            epoch,
            step: epoch * 10,
            train_loss: loss,
            train_accuracy: 0.5,
            test_loss: loss * 2.0,
            test_accuracy: 0.6,
            samples_per_second: 1.0,
            memory: 0,
            device: "cpu".into(),
        }
    }

    proptest! {
        #[test]
        fn every_point_lies_in_the_picture(losses in prop::collection::vec(any::<f64>(), 1..20)) {
            let epochs: Vec<_> =
                losses.iter().enumerate().map(|(at, loss)| epoch(at as u64 + 1, loss % 1e6)).collect();
            let svg = draw(&epochs);
            prop_assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
            for list in svg.split("points=\"").skip(1) {
                for point in list.split('"').next().unwrap_or_default().split_whitespace() {
                    let (x, y) = point.split_once(',').unwrap();
                    let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
                    prop_assert!((0.0..=WIDTH).contains(&x) && (0.0..=HEIGHT).contains(&y), "{point}");
                }
            }
        }
    }
}
