//! Memory limits of Linux control groups, which containers, systemd and Slurm set.
//!
//! A process is in one group of each hierarchy, and the limit of every group above it holds too, so
//! all of them are read, for version 1 and version 2. Files that can't be read set no limit.

use std::path::{Path, PathBuf};

/// The strictest limit that holds for a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryLimit {
    /// Bytes that may be used.
    pub(super) total: u64,
    /// Bytes of them that are free.
    pub(super) free: u64,
}

/// The limits of this process; none if no group above it has one.
pub(super) fn memory_limit() -> Option<MemoryLimit> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    limit_of(&groups, Path::new("/sys/fs/cgroup"))
}

/// The limits of a process in `groups` (the lines of `/proc/PID/cgroup`), read below `root`.
fn limit_of(groups: &str, root: &Path) -> Option<MemoryLimit> {
    let mut strictest: Option<MemoryLimit> = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let (hierarchy, limit, usage) = if controllers.is_empty() {
            (root.to_owned(), "memory.max", "memory.current")
        } else if controllers.split(',').any(|controller| controller == "memory") {
            (root.join("memory"), "memory.limit_in_bytes", "memory.usage_in_bytes")
        } else {
            continue;
        };
        for group in with_ancestors(&hierarchy, path) {
            let Some(total) = number(&group.join(limit)) else { continue };
            let used = number(&group.join(usage)).unwrap_or(0);
            // Cached files count as used and are given back when memory is needed.
            let cached =
                field(&group.join("memory.stat"), &["inactive_file", "total_inactive_file"]);
            let free = total.saturating_sub(used.saturating_sub(cached.unwrap_or(0)));
            let found = MemoryLimit { total, free };
            strictest = Some(strictest.map_or(found, |known| MemoryLimit {
                total: known.total.min(found.total),
                free: known.free.min(found.free),
            }));
        }
    }
    strictest
}

/// The group at `path` of a hierarchy and every group above it. In a container the path may be one
/// of the host's, which is not there: then the root of the hierarchy remains.
fn with_ancestors(hierarchy: &Path, path: &str) -> Vec<PathBuf> {
    let relative = Path::new(path.trim_start_matches('/'));
    relative.ancestors().map(|ancestor| hierarchy.join(ancestor)).collect()
}

/// The number in a file; none for "max", and for version 1's way to say "no limit".
fn number(file: &Path) -> Option<u64> {
    let bytes: u64 = std::fs::read_to_string(file).ok()?.trim().parse().ok()?;
    (bytes < 1 << 62).then_some(bytes)
}

/// The value of the first of `names` that a file of lines `name value` has.
fn field(file: &Path, names: &[&str]) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let value = |name: &&str| {
        let line = text.lines().find_map(|line| line.strip_prefix(*name)?.strip_prefix(' '))?;
        line.trim().parse().ok()
    };
    names.iter().find_map(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let file = root.join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }

    #[test]
    fn the_limit_of_a_group_above_holds_in_version_2() {
        let root = tempfile::tempdir().unwrap();
        // As systemd does it: the slice has the limit, the scope below has none.
        write(root.path(), "user.slice/memory.max", "1000000\n");
        write(root.path(), "user.slice/memory.current", "400000\n");
        write(root.path(), "user.slice/memory.stat", "anon 300000\ninactive_file 100000\n");
        write(root.path(), "user.slice/run.scope/memory.max", "max\n");
        let found = limit_of("0::/user.slice/run.scope\n", root.path());
        assert_eq!(found, Some(MemoryLimit { total: 1_000_000, free: 700_000 }));
    }

    #[test]
    fn the_strictest_of_several_limits_holds_in_version_1() {
        let root = tempfile::tempdir().unwrap();
        // As Slurm does it: a limit for the job, a stricter one for the step.
        let job = "memory/slurm/uid_1/job_2";
        write(root.path(), &format!("{job}/memory.limit_in_bytes"), "5000\n");
        write(root.path(), &format!("{job}/step_0/memory.limit_in_bytes"), "3000\n");
        write(root.path(), &format!("{job}/step_0/memory.usage_in_bytes"), "1000\n");
        write(root.path(), "memory/memory.limit_in_bytes", "9223372036854771712\n");
        let groups = "5:cpuset:/\n4:memory:/slurm/uid_1/job_2/step_0\n";
        let found = limit_of(groups, root.path());
        assert_eq!(found, Some(MemoryLimit { total: 3000, free: 2000 }));
    }

    #[test]
    fn a_process_without_limits_has_none() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(limit_of("0::/\n", root.path()), None);
        assert_eq!(limit_of("nonsense\n::\n", root.path()), None);
        // A container's path that is not visible inside it: the root's own limit holds.
        write(root.path(), "memory.max", "77\n");
        let found = limit_of("0::/docker/abc\n", root.path());
        assert_eq!(found, Some(MemoryLimit { total: 77, free: 77 }));
    }
}
