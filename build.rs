//! Gives the programs their version with the git commit: `LONGHAUL_VERSION=0.1.0 (abcdef123456)`.
//!
//! It stands here and not in `lib/unix` so that a new commit rebuilds only the programs, not every
//! library below them.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let commit = if is_our_repository() { git(&["rev-parse", "--short=12", "HEAD"]) } else { None };
    let commit = commit.unwrap_or_else(|| "unknown".into());
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    println!("cargo::rustc-env=LONGHAUL_VERSION={version} ({commit})");
    println!("cargo::rerun-if-changed=build.rs");
    for path in what_a_commit_touches() {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}

/// False for sources unpacked from an archive inside some other repository.
fn is_our_repository() -> bool {
    let here = std::env::var("CARGO_MANIFEST_DIR")
        .ok()
        .and_then(|path| Path::new(&path).canonicalize().ok());
    git(&["rev-parse", "--show-toplevel"]).map(PathBuf::from) == here && here.is_some()
}

/// HEAD, and the branch it points to. A branch without a file of its own (packed, or without a
/// commit yet) is watched through the folder in which the next commit will create that file.
fn what_a_commit_touches() -> Vec<PathBuf> {
    let mut paths = Vec::new();
    let in_git = |name: &str| git(&["rev-parse", "--git-path", name]).map(PathBuf::from);
    paths.extend(in_git("HEAD"));
    if let Some(branch) = git(&["symbolic-ref", "--quiet", "HEAD"]).and_then(|name| in_git(&name)) {
        let existing = branch.ancestors().find(|path| path.exists()).map(Path::to_path_buf);
        paths.extend(existing);
    }
    paths
}

/// Output of a git command; nothing when there is no git, no repository or no commit.
fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_string())
}
