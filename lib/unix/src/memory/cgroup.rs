//! Limits of control groups on memory, which SLURM sets for jobs (`ConstrainRAMSpace`) and container runtimes for
//! containers: a process that exceeds them is killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A group with a limit in bytes.
#[derive(Clone, Debug, PartialEq)]
struct Group {
    folder: PathBuf,
    limit: u64,
    names: &'static Names,
}

/// Names of files and figures, by version.
#[derive(Debug, PartialEq)]
struct Names {
    limit: &'static str,
    usage: &'static str,
    /// In memory.stat: cached file contents and other memory that the kernel frees on demand.
    freed: &'static [&'static str],
}

const V1: Names = Names {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    freed: &["total_active_file", "total_inactive_file"],
};
const V2: Names = Names {
    limit: "memory.max",
    usage: "memory.current",
    freed: &["active_file", "inactive_file", "slab_reclaimable"],
};

/// A limit above this means no limit: version 1 writes the largest multiple of a page.
const UNLIMITED: u64 = 1 << 60;

/// Returns the bytes that the groups of this process may still use; `None` without a limit.
pub(super) fn available() -> Option<u64> {
    static GROUPS: OnceLock<Vec<Group>> = OnceLock::new();
    let of_process = || {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        groups(&own, Path::new("/sys/fs/cgroup"))
    };
    GROUPS.get_or_init(of_process).iter().filter_map(Group::available).min()
}

/// Returns the groups with a limit, given /proc/self/cgroup and where the hierarchies are mounted. The limits of all
/// ancestors apply: SLURM limits jobs and steps, and runs a task in a group of its own.
fn groups(own: &str, mount: &Path) -> Vec<Group> {
    let mut found = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (root, names) = match controllers {
            "" => (mount.to_path_buf(), &V2),
            _ if controllers.split(',').any(|name| name == "memory") => (mount.join("memory"), &V1),
            _ => continue,
        };
        // In a container, the path may be that of the host, and the group of the container is the root.
        for part in Path::new(path.trim_start_matches('/')).ancestors() {
            let folder = root.join(part);
            let limit = number(&folder.join(names.limit)).filter(|limit| *limit < UNLIMITED);
            found.extend(limit.map(|limit| Group { folder, limit, names }));
        }
    }
    found
}

impl Group {
    fn available(&self) -> Option<u64> {
        let used = number(&self.folder.join(self.names.usage))?;
        let statistics = fs::read_to_string(self.folder.join("memory.stat")).unwrap_or_default();
        let freed = statistics.lines().filter_map(|line| {
            let (name, bytes) = line.split_once(' ')?;
            if self.names.freed.contains(&name) { bytes.parse::<u64>().ok() } else { None }
        });
        Some(self.limit.saturating_sub(used.saturating_sub(freed.sum())))
    }
}

/// Returns the number in a file; `None` if there is none, as in `max`.
fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(folder).unwrap();
        files.iter().for_each(|(name, text)| fs::write(folder.join(name), text).unwrap());
    }

    #[test]
    fn the_smallest_limit_of_all_ancestors_applies() {
        let mount = tempfile::tempdir().unwrap();
        let job = mount.path().join("system.slice/slurmstepd.scope/job_7");
        let stat = ("memory.stat", "anon 1\ninactive_file 1900\nactive_file 100\n");
        write(&job, &[("memory.max", "10000\n"), ("memory.current", "9000\n"), stat]);
        write(&job.join("step_0"), &[("memory.max", "max\n"), ("memory.current", "8000\n")]);
        write(&job.join("step_0/task_0"), &[("memory.max", "50000"), ("memory.current", "100")]);
        let own = "0::/system.slice/slurmstepd.scope/job_7/step_0/task_0\n";
        let found = groups(own, mount.path());
        assert_eq!(found.iter().map(|group| group.limit).collect::<Vec<_>>(), [50000, 10000]);
        assert_eq!(found.iter().filter_map(Group::available).min(), Some(3000));
        assert_eq!(groups("0::/elsewhere\n1:cpu:/a\n", mount.path()), []);
    }

    #[test]
    fn version_1_has_files_of_its_own() {
        let mount = tempfile::tempdir().unwrap();
        let root = mount.path().join("memory");
        let none =
            [("memory.limit_in_bytes", "9223372036854771712"), ("memory.usage_in_bytes", "5")];
        write(&root, &none);
        let stat = ("memory.stat", "inactive_file 1\ntotal_inactive_file 30\n");
        let limited = [("memory.limit_in_bytes", "400"), ("memory.usage_in_bytes", "500"), stat];
        write(&root.join("slurm/uid_1/job_2"), &limited);
        let found = groups("4:memory:/slurm/uid_1/job_2\n0::/\n", mount.path());
        let [group] = &found[..] else { panic!("{found:?}") };
        // More may be in use than the limit while the kernel frees memory.
        assert_eq!((group.limit, group.available()), (400, Some(0)));
    }
}
