//! A file tree of which only a part is durable.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use unix::disk::Rename;

use super::Op;

/// The content of a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    /// A file with these bytes.
    File(Vec<u8>),
    /// A symbolic link to this target.
    Link(PathBuf),
    /// A folder.
    Folder(BTreeMap<String, Content>),
}

/// A change of the names in a folder, which is lost or kept as a whole.
type Change = Vec<(String, Option<usize>)>;

enum Node {
    File { durable: Vec<u8>, now: Vec<u8> },
    Link(PathBuf),
    Folder { durable: BTreeMap<String, usize>, pending: Vec<Change> },
}

/// Nodes by index; 0 is the root folder.
pub struct Tree(Vec<Node>);

impl Tree {
    /// A tree that is entirely durable.
    pub fn new(content: &Content) -> Self {
        let mut tree = Self(Vec::new());
        tree.grow(content);
        tree
    }

    fn grow(&mut self, content: &Content) -> usize {
        let number = self.0.len();
        match content {
            Content::File(bytes) => {
                self.0.push(Node::File { durable: bytes.clone(), now: bytes.clone() });
            }
            Content::Link(target) => self.0.push(Node::Link(target.clone())),
            Content::Folder(entries) => {
                self.0.push(Node::Link(PathBuf::new())); // until its entries have numbers
                let durable =
                    entries.iter().map(|(name, c)| (name.clone(), self.grow(c))).collect();
                self.0[number] = Node::Folder { durable, pending: Vec::new() };
            }
        }
        number
    }

    /// Applies an operation as the program sees it: nothing is lost.
    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Create(path) => {
                self.add(path, Node::File { durable: Vec::new(), now: Vec::new() });
            }
            Op::MakeFolder(path) => {
                self.add(path, Node::Folder { durable: BTreeMap::new(), pending: Vec::new() });
            }
            Op::Symlink(target, link) => self.add(link, Node::Link(target.clone())),
            Op::Write(path, bytes) => {
                let number = self.find(path);
                let Node::File { now, .. } = &mut self.0[number] else { panic!("{op:?}") };
                now.extend_from_slice(bytes);
            }
            Op::SyncFile(path) => {
                let number = self.find(path);
                let Node::File { durable, now } = &mut self.0[number] else { panic!("{op:?}") };
                durable.clone_from(now);
            }
            Op::SyncFolder(path) => {
                let number = self.find(path);
                let Node::Folder { durable, pending } = &mut self.0[number] else {
                    panic!("{op:?}")
                };
                for change in pending.drain(..) {
                    take(durable, &change);
                }
            }
            Op::Rename(from, to, how) => {
                assert_eq!(from.parent(), to.parent(), "the model knows renames within a folder");
                let moved = self.find(from);
                let there = (*how == Rename::Exchange).then(|| self.find(to));
                self.change(from, vec![(name(to), Some(moved)), (name(from), there)]);
            }
            Op::RemoveFile(path) | Op::RemoveFolder(path) => {
                self.change(path, vec![(name(path), None)]);
            }
            Op::FailedSync(_) | Op::Promise => {}
        }
    }

    fn add(&mut self, path: &Path, node: Node) {
        self.0.push(node);
        self.change(path, vec![(name(path), Some(self.0.len() - 1))]);
    }

    fn change(&mut self, path: &Path, change: Change) {
        let folder = self.find(path.parent().expect("a folder"));
        let Node::Folder { pending, .. } = &mut self.0[folder] else { panic!("{path:?}") };
        pending.push(change);
    }

    fn find(&self, path: &Path) -> usize {
        path.iter().fold(0, |folder, part| {
            let Node::Folder { durable, pending } = &self.0[folder] else { panic!("{path:?}") };
            let mut names = durable.clone();
            pending.iter().for_each(|change| take(&mut names, change));
            *names.get(part.to_str().unwrap()).unwrap_or_else(|| panic!("{path:?} at {part:?}"))
        })
    }

    /// The states that a power cut may leave now: each way to keep a part of each node's changes, combined with each
    /// way of every other node; if these are more than `most`, each way is only combined with all changes of the
    /// others, and with none.
    pub fn states(&self, most: usize) -> Vec<Content> {
        let mut ways = vec![1; self.0.len()];
        self.count_ways(0, &mut ways);
        let product = ways.iter().try_fold(1_usize, |all, n| all.checked_mul(*n));
        let mut choices: Vec<Vec<usize>> = vec![vec![0; ways.len()]];
        if product.is_some_and(|product| product <= most) {
            for (node, ways) in ways.iter().enumerate().filter(|(_, ways)| **ways > 1) {
                let before = std::mem::take(&mut choices);
                for way in 0..*ways {
                    choices.extend(before.iter().cloned().map(|mut choice| {
                        choice[node] = way;
                        choice
                    }));
                }
            }
        } else {
            let nothing: Vec<usize> = ways.iter().map(|ways| ways - 1).collect();
            for others in [vec![0; ways.len()], nothing] {
                for (node, ways) in ways.iter().enumerate() {
                    choices.extend((0..*ways).map(|way| {
                        let mut choice = others.clone();
                        choice[node] = way;
                        choice
                    }));
                }
            }
        }
        choices.iter().map(|choice| self.content(0, choice)).collect()
    }

    /// Counts the ways of every node that is reachable from `number`.
    fn count_ways(&self, number: usize, ways: &mut [usize]) {
        ways[number] = self.0[number].ways();
        if let Node::Folder { durable, pending } = &self.0[number] {
            let added = pending.iter().flatten().filter_map(|(_, number)| number.as_ref());
            durable.values().chain(added).for_each(|inner| self.count_ways(*inner, ways));
        }
    }

    fn content(&self, number: usize, choice: &[usize]) -> Content {
        let way = choice[number];
        match &self.0[number] {
            Node::Link(target) => Content::Link(target.clone()),
            Node::File { durable, now } => Content::File(match way {
                0 => now.clone(),
                1 => now[..(durable.len() + now.len()) / 2].to_vec(),
                _ => durable.clone(),
            }),
            Node::Folder { durable, pending } => {
                let mut names = durable.clone();
                for (change, kept) in pending.iter().zip(&subsets(pending)[way]) {
                    if *kept {
                        take(&mut names, change);
                    }
                }
                let entries =
                    names.into_iter().map(|(name, number)| (name, self.content(number, choice)));
                Content::Folder(entries.collect())
            }
        }
    }
}

impl Node {
    /// In how many ways a power cut may affect the node; the first loses nothing.
    fn ways(&self) -> usize {
        match self {
            Node::Link(_) => 1,
            Node::File { durable, now } if durable == now => 1,
            Node::File { .. } => 3,
            Node::Folder { pending, .. } => subsets(pending).len(),
        }
    }
}

/// Which changes may be kept together, from all to none. If there are many: the first few, all but one, and only one.
fn subsets(changes: &[Change]) -> Vec<Vec<bool>> {
    let count = changes.len();
    let all: Vec<Vec<bool>> = if count <= 8 {
        let bits = (0..1_u32 << count).rev();
        bits.map(|bits| (0..count).map(|i| bits >> i & 1 == 1).collect()).collect()
    } else {
        let first = (0..=count).rev().map(|n| (0..count).map(|i| i < n).collect());
        let but = (0..count).map(|n| (0..count).map(|i| i != n).collect());
        let alone = (0..count).map(|n| (0..count).map(|i| i == n).collect());
        let mut some: Vec<Vec<bool>> = first.chain(but).chain(alone).collect();
        some.push(vec![false; count]);
        some
    };
    let is_legal = |kept: &Vec<bool>| {
        (0..count).filter(|i| kept[*i]).all(|later| {
            (0..later)
                .filter(|i| !kept[*i])
                .all(|lost| !share_a_name(&changes[lost], &changes[later]))
        })
    };
    all.into_iter().filter(is_legal).collect()
}

fn share_a_name(a: &Change, b: &Change) -> bool {
    a.iter().any(|(name, _)| b.iter().any(|(other, _)| name == other))
}

fn take(names: &mut BTreeMap<String, usize>, change: &Change) {
    for (name, number) in change {
        match number {
            Some(number) => drop(names.insert(name.clone(), *number)),
            None => drop(names.remove(name)),
        }
    }
}

fn name(path: &Path) -> String {
    path.file_name().and_then(|name| name.to_str()).expect("a name").to_string()
}

/// The content of a real folder.
pub fn snapshot(path: &Path) -> Content {
    let found = fs::symlink_metadata(path).unwrap();
    if found.is_symlink() {
        Content::Link(fs::read_link(path).unwrap())
    } else if found.is_dir() {
        let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        Content::Folder(entries.map(|path| (name(&path), snapshot(&path))).collect())
    } else {
        Content::File(fs::read(path).unwrap())
    }
}

/// Writes the content to a real disk, under a name that does not exist yet.
pub fn materialise(content: &Content, path: &Path) {
    match content {
        Content::File(bytes) => fs::write(path, bytes).unwrap(),
        Content::Link(target) => std::os::unix::fs::symlink(target, path).unwrap(),
        Content::Folder(entries) => {
            fs::create_dir(path).unwrap();
            for (name, content) in entries {
                materialise(content, &path.join(name));
            }
        }
    }
}
