//! Sites: the places in a model where its activations are looked at.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A place in a model. Sites are ordered by their depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Site {
    /// Behind the embeddings.
    Embeddings,
    /// Behind the block of this number.
    Block(usize),
    /// Behind the final norm, at the last token.
    Norm,
    /// The logits of the last token.
    Head,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embeddings => f.pad("embeddings"),
            Self::Block(number) => f.pad(&format!("block {number}")),
            Self::Norm => f.pad("final norm"),
            Self::Head => f.pad("head"),
        }
    }
}

impl From<Site> for String {
    fn from(site: Site) -> Self {
        site.to_string()
    }
}

impl FromStr for Site {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "embeddings" => Ok(Self::Embeddings),
            "final norm" => Ok(Self::Norm),
            "head" => Ok(Self::Head),
            _ => text
                .strip_prefix("block ")
                .and_then(|number| number.parse().ok())
                .map(Self::Block)
                // One text for one site: no "block 007".
                .filter(|site| site.to_string() == text)
                .ok_or_else(|| {
                    format!("'{text}' is not a site: embeddings, block 0, …, final norm or head")
                }),
        }
    }
}

impl TryFrom<String> for Site {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// Which sites are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SiteSelection {
    /// All of them.
    #[default]
    All,
    /// Those where behaviour changes most.
    Auto,
}

/// The relative change of the profile at each site from the one before; nothing at the first.
pub fn changes(profiles: &[Vec<f64>]) -> Vec<f64> {
    let pairs = profiles.windows(2).map(|pair| relative_change(&pair[0], &pair[1]));
    profiles.iter().take(1).map(|_| 0.0).chain(pairs).collect()
}

/// The places where behaviour changes most: the change is above the mean of all changes. The
/// first and the last place are always among them, so that a change anywhere is seen somewhere.
pub fn most_changing(changes: &[f64]) -> Vec<(usize, f64)> {
    let mean = changes.iter().sum::<f64>() / changes.len().saturating_sub(1).max(1) as f64;
    let ends = [0, changes.len().saturating_sub(1)];
    let kept = |(at, change): &(usize, f64)| ends.contains(at) || *change > mean;
    changes.iter().copied().enumerate().filter(kept).collect()
}

/// How much a profile changes, as a share of what it was.
fn relative_change(before: &[f64], after: &[f64]) -> f64 {
    let changes = before.iter().zip(after).map(|(before, after)| {
        (after - before).abs() / before.abs().max(after.abs()).max(f64::MIN_POSITIVE)
    });
    changes.sum::<f64>() / before.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_have_one_name_each_and_are_ordered_by_depth() {
        let sites = [Site::Embeddings, Site::Block(0), Site::Block(11), Site::Norm, Site::Head];
        for site in sites {
            assert_eq!(site.to_string().parse(), Ok(site));
        }
        assert!(sites.is_sorted());
        for wrong in ["block", "block 01", "block -1", "Head", "", "block +1"] {
            assert!(wrong.parse::<Site>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn sites_that_change_most_are_found() {
        let profile = |level: f64| vec![level, level * 1.1];
        let levels = [1.0, 1.01, 1.02, 9.0, 9.01, 9.0, 9.05];
        let found = most_changing(&changes(&levels.map(profile)));
        let places: Vec<usize> = found.iter().map(|(at, _)| *at).collect();
        assert_eq!(places, [0, 3, 6]);
        assert!(found[1].1 > 0.8);
    }
}
