//! Bugs of torch on MPS, by release: each as its issue says, for the releases that the issue names.
//!
//! A release is listed under a bug only if the issue, or the change that fixed it, names that release
//! or two others around it. That a release is not listed does not mean that it is free of the bug.

/// The releases of torch since MPS came, oldest first.
pub(super) const RELEASES: [&str; 32] = [
    "1.12.0", "1.12.1", "1.13.0", "1.13.1", "2.0.0", "2.0.1", "2.1.0", "2.1.1", "2.1.2", "2.2.0",
    "2.2.1", "2.2.2", "2.3.0", "2.3.1", "2.4.0", "2.4.1", "2.5.0", "2.5.1", "2.6.0", "2.7.0",
    "2.7.1", "2.8.0", "2.9.0", "2.9.1", "2.10.0", "2.11.0", "2.12.0", "2.12.1", "2.13.0", "2.14.0",
    "2.14.1", "2.15.0",
];

/// One bug.
#[derive(Debug)]
pub(super) struct KnownBug {
    /// Its issue in pytorch/pytorch.
    issue: u32,
    releases: &'static [&'static str],
    /// What goes wrong, in a few words.
    pub(super) what: &'static str,
}

impl KnownBug {
    pub(super) fn address(&self) -> String {
        format!("https://github.com/pytorch/pytorch/issues/{}", self.issue)
    }
}

const KNOWN: [KnownBug; 10] = [
    // Fixed for 2.1.1 by the cherry-pick 112432.
    KnownBug {
        issue: 108_978,
        releases: &["2.1.0"],
        what: "copying a view with a storage offset to the CPU gives wrong values",
    },
    // Named in the issue's title.
    KnownBug {
        issue: 122_016,
        releases: &["2.2.0", "2.2.1"],
        what: "on macOS 14.4 and later, assigning to elements writes wrong values",
    },
    // On main in January 2024, fixed by 124442 in June: in the releases between.
    KnownBug {
        issue: 118_115,
        releases: &["2.3.0", "2.3.1"],
        what: "addcdiv_, and with it Adam, is wrong for non-contiguous tensors",
    },
    // Right in 2.4.1 and wrong in 2.5.1, as the issue says; bisected to 128393.
    KnownBug {
        issue: 141_471,
        releases: &["2.5.0", "2.5.1"],
        what: "on macOS 15 a diffusion model gives noise that was right with 2.4.1",
    },
    // 162779: "for v2.8.0"; users name 2.9.0 as the first release without it.
    KnownBug {
        issue: 162_730,
        releases: &["2.8.0"],
        what: "linear layers with non-contiguous weights give wrong numbers",
    },
    KnownBug {
        issue: 163_597,
        releases: &["2.8.0"],
        what: "attention over non-contiguous queries gives wrong numbers",
    },
    // Reported in February 2026, verified as fixed in 2.11.0 in the issue.
    KnownBug {
        issue: 174_861,
        releases: &["2.10.0"],
        what: "attention in half precision over more than 1023 keys reads out of bounds",
    },
    // "Reproduces identically on 2.12.0, 2.13.0".
    KnownBug {
        issue: 189_495,
        releases: &["2.12.0", "2.12.1", "2.13.0"],
        what: "linear layers with a bias are wrong when a 3D input has more than 65,536 rows",
    },
    // 2.13.0 raises a TypeError instead.
    KnownBug {
        issue: 197_715,
        releases: &["2.14.0"],
        what: "copies into float64 tensors on the CPU write nothing",
    },
    KnownBug {
        issue: 197_805,
        releases: &["2.14.0"],
        what: "two threads that use the device at once abort the process",
    },
];

/// The known bugs of a release.
pub(super) fn of(release: &str) -> Vec<&'static KnownBug> {
    KNOWN.iter().filter(|bug| bug.releases.contains(&release)).collect()
}

/// The next release for which none is known.
pub(super) fn next_without(release: &str) -> Option<&'static str> {
    let at = RELEASES.iter().position(|known| *known == release)?;
    RELEASES[at..].iter().copied().find(|later| of(later).is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pep440_rs::Version;

    #[test]
    fn releases_are_versions_in_order_and_bugs_name_them() {
        let versions: Vec<Version> =
            RELEASES.iter().map(|release| release.parse().expect(release)).collect();
        assert!(versions.is_sorted());
        for bug in &KNOWN {
            assert!(bug.releases.iter().all(|release| RELEASES.contains(release)), "{bug:?}");
        }
    }

    #[test]
    fn the_next_release_without_bugs_is_named() {
        assert_eq!(next_without("2.2.0"), Some("2.2.2"));
        assert_eq!(next_without("2.8.0"), Some("2.9.0"));
        assert_eq!(next_without("2.9.0"), Some("2.9.0"));
    }
}
