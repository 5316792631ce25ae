//! Crash states: what a power cut may leave of the operations on a disk.
//!
//! [`Recorder`] is a disk that records every operation while it performs it in a real folder. [`states`] takes such a
//! list and builds, for a power cut after each of its operations, every state that the disk may then be in;
//! [`materialise`] writes one into a folder, so that the real reader can be run on it.
//!
//! The model is weaker than any file system in use: data that was not fsynced may be lost, or be there up to its half;
//! names that were created, changed or removed since the last fsync of their folder may be lost one by one, except that
//! a later change of a name is never kept without the earlier ones. A rename is lost or kept as a whole. The idea is
//! that of ALICE (Pillai et al., OSDI 2014).

mod recorder;
mod tree;

pub use recorder::{Op, Recorder};
pub use tree::{Content, materialise, snapshot};

use std::collections::HashSet;
use std::path::Path;

use tree::Tree;

/// Maximum number of states per moment; beyond that only the extremes of each folder and file are combined.
const MOST: usize = 5_000;

/// A state of the disk after a power cut.
pub struct State {
    /// Number of operations before the power cut.
    pub done: usize,
    /// What is on the disk.
    pub content: Content,
}

/// Every distinct state after a power cut at any moment of `ops`, beginning with the durable content `start`. Equal
/// states are returned once per number of promises made before them: see [`Op::Promise`].
pub fn states(start: &Content, ops: &[Op]) -> Vec<State> {
    let mut tree = Tree::new(start);
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    let mut promises = 0;
    for done in 0..=ops.len() {
        if let Some(op) = done.checked_sub(1).map(|last| &ops[last]) {
            promises += usize::from(matches!(op, Op::Promise));
            tree.apply(op);
        }
        for content in tree.states(MOST) {
            if seen.insert((promises, content.clone())) {
                found.push(State { done, content });
            }
        }
    }
    found
}

/// The content of the disk after all of `ops`, without a power cut.
pub fn after(start: &Content, ops: &[Op]) -> Content {
    let mut tree = Tree::new(start);
    ops.iter().for_each(|op| tree.apply(op));
    tree.states(MOST).swap_remove(0)
}

/// The operations of a program that forgets to fsync its files.
pub fn without_file_syncs(ops: &[Op]) -> Vec<Op> {
    ops.iter().filter(|op| !matches!(op, Op::SyncFile(_))).cloned().collect()
}

/// The operations of a program that forgets to fsync `folder`.
pub fn without_folder_syncs(ops: &[Op], folder: &Path) -> Vec<Op> {
    let forgotten = |op: &Op| matches!(op, Op::SyncFolder(path) if path == folder);
    ops.iter().filter(|op| !forgotten(op)).cloned().collect()
}

/// The operations of a program that writes the files called `name` before the other files of their folders.
pub fn with_first(ops: &[Op], name: &str) -> Vec<Op> {
    let mut reordered: Vec<Op> = Vec::new();
    for op in ops {
        let of = |path: &Path| path.file_name().is_some_and(|found| found == name);
        let folder = match op {
            Op::Create(path) | Op::Write(path, _) | Op::SyncFile(path) if of(path) => path.parent(),
            _ => None,
        };
        let Some(folder) = folder else {
            reordered.push(op.clone());
            continue;
        };
        let other = |op: &Op| match op {
            Op::Create(path) => path.parent() == Some(folder) && !of(path),
            _ => false,
        };
        let at = reordered.iter().position(other).unwrap_or(reordered.len());
        reordered.insert(at, op.clone());
    }
    reordered
}
