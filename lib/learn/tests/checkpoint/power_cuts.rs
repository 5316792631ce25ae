//! Opens every state that a power cut may leave of a save with the loader.

use std::collections::BTreeSet;
use std::sync::Arc;

use learn::checkpoint::{Saver, list, load, load_newest, manifest_of};

use super::*;
use test_support::crash::{self, Content, Op, Recorder, materialise, snapshot};

/// A recorded save, and the states that may be found after it.
struct Scene {
    before: Content,
    ops: Vec<Op>,
    /// The newest state before the save, and the new one.
    old: State,
    new: State,
    /// Other states in the folder.
    others: Vec<State>,
    /// Whether the disk can exchange names, so that a link to a replaced checkpoint is never dangling.
    flags: bool,
}

impl Scene {
    /// `earlier` states are in the folder, each written by a separate attempt; then another attempt saves `new`. The
    /// saver's removal of leftovers, its links and its pruning are part of the recording.
    fn record(earlier: &[State], new: State, rules: KeepRules, flags: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for (attempt, state) in (1..).zip(earlier) {
            let mut saver =
                Saver::new(root, KeepRules { last: 9, ..rules.clone() }, attempt).unwrap();
            saver.save(state.clone()).unwrap();
            saver.finish().unwrap();
        }
        // Leftovers of a killed save.
        std::fs::create_dir(root.join(".tmp-step-00000009-dead-1-0")).unwrap();
        std::fs::write(root.join(".tmp-step-00000009-dead-1-0/model.safetensors"), "half").unwrap();
        let before = snapshot(root);
        let mut disk = Recorder::new(root);
        disk.flags = flags;
        let attempt = earlier.len() as u64 + 1;
        let mut saver = Saver::on(Arc::new(disk.clone()), root, rules, attempt).unwrap();
        saver.save(new.clone()).unwrap();
        saver.finish().unwrap().unwrap();
        disk.promise();
        assert_eq!(crash::after(&before, &disk.ops()), snapshot(root), "the model and the disk");
        let (old, others) = earlier.split_last().unwrap();
        Self { before, ops: disk.ops(), old: old.clone(), new, others: others.to_vec(), flags }
    }

    /// Returns the number of states if all of them are valid: the loader returns exactly the old or the new state, and
    /// the new one once the save was confirmed; everything that is listed or has a manifest is complete; `best` and
    /// `latest` name complete checkpoints.
    fn check(&self, ops: &[Op]) -> Result<usize, String> {
        let states = crash::states(&self.before, ops);
        let place = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        for (number, state) in states.iter().enumerate() {
            let folder = place.path().join(number.to_string());
            materialise(&state.content, &folder);
            let promised = ops[..state.done].contains(&Op::Promise);
            self.look(&folder, promised).map_err(|fault| {
                format!("{fault}\nin {:?}\nafter {:#?}", names(&folder), &ops[..state.done])
            })?;
            std::fs::remove_dir_all(&folder).unwrap();
        }
        Ok(states.len())
    }

    fn look(&self, folder: &Path, promised: bool) -> Result<(), String> {
        let newest = load_newest(folder).map_err(|error| error.to_string())?;
        let newest = newest.ok_or("nothing is found")?;
        if !is_same(&newest, &self.new) && (promised || !is_same(&newest, &self.old)) {
            return Err(format!("{} is found (promised: {promised})", newest.path().display()));
        }
        let known = |path: &Path| {
            let loaded = load(path).map_err(|error| error.to_string())?;
            let all = self.others.iter().chain([&self.old, &self.new]);
            all.clone()
                .any(|state| is_same(&loaded, state))
                .then_some(())
                .ok_or("a mix".to_string())
        };
        let listed = list(folder).map_err(|error| error.to_string())?;
        listed.iter().try_for_each(|entry| known(&entry.path))?;
        for name in names(folder) {
            let path = folder.join(&name);
            let holds = path.is_symlink() && (self.flags || path.exists());
            if holds || !name.starts_with(".trash-") && manifest_of(&path).is_ok() {
                known(&path).map_err(|fault| format!("{name}: {fault}"))?;
            }
        }
        Ok(())
    }
}

fn rules() -> KeepRules {
    KeepRules { last: 1, best: 1, every: 0, metric: "error".into(), ..KeepRules::default() }
}

/// As small as possible, so that there can be many.
fn tiny(update: u64, mark: u64, error: f64) -> State {
    let mut state = state(mark, update);
    state.metrics = json!({"error": error});
    state
}

/// The new checkpoint is the best: the old one is removed, and `best` is updated.
fn better() -> Scene {
    let seed = seed();
    Scene::record(&[tiny(1, seed, 0.5)], tiny(2, seed, 0.25), rules(), true)
}

#[test]
fn after_any_power_cut_the_old_or_the_new_checkpoint_loads() {
    let scene = better();
    let count = scene.check(&scene.ops).unwrap();
    println!("{} operations, {count} states", scene.ops.len());
    assert!(count > 100, "{count} states of {:#?}", scene.ops);
    let kinds: BTreeSet<&str> = scene.ops.iter().map(kind).collect();
    let all = ["create", "fsync", "fsync folder", "mkdir", "rename", "rmdir", "symlink", "unlink"];
    assert!(all.iter().all(|kind| kinds.contains(kind)), "{kinds:?}");
}

/// Whether the operation writes a file of this name.
fn written(op: &Op, name: &str) -> bool {
    matches!(op, Op::SyncFile(path) if path.ends_with(name))
}

fn kind(op: &Op) -> &'static str {
    match op {
        Op::Create(_) => "create",
        Op::Write(..) => "write",
        Op::SyncFile(_) => "fsync",
        Op::FailedSync(_) => "failed fsync",
        Op::MakeFolder(_) => "mkdir",
        Op::Symlink(..) => "symlink",
        Op::Rename(..) => "rename",
        Op::RemoveFile(_) => "unlink",
        Op::RemoveFolder(_) => "rmdir",
        Op::SyncFolder(_) => "fsync folder",
        Op::Promise => "promise",
    }
}

/// A run that went back writes an update again, on disks with and without the exchange of names.
#[test]
fn a_checkpoint_that_is_replaced_is_the_old_or_the_new_after_any_power_cut() {
    let seed = seed();
    for flags in [true, false] {
        let (old, new) = (tiny(2, seed, 0.5), tiny(2, seed ^ 1, 0.25));
        let scene = Scene::record(&[old], new, rules(), flags);
        let count = scene.check(&scene.ops).unwrap();
        println!("exchange {flags}: {} operations, {count} states", scene.ops.len());
        let exchanges = scene.ops.iter().filter(
            |op| matches!(op, Op::Rename(_, _, how) if *how == unix::disk::Rename::Exchange),
        );
        assert_eq!(exchanges.count(), usize::from(flags));
    }
}

#[test]
fn no_power_cut_while_pruning_takes_the_best_or_the_last_good_one() {
    let seed = seed();
    // The first is the best and stays; the second is removed.
    let earlier = [tiny(1, seed, 0.1), tiny(2, seed, 0.5)];
    let scene = Scene::record(&earlier, tiny(3, seed, 0.3), rules(), true);
    let count = scene.check(&scene.ops).unwrap();
    println!("{} operations, {count} states", scene.ops.len());
    for state in crash::states(&scene.before, &scene.ops) {
        let Content::Folder(found) = state.content else { panic!("a folder") };
        assert!(found.contains_key("step-00000001"), "the best went: {:?}", found.keys());
        assert_eq!(found.get("best"), Some(&Content::Link("step-00000001".into())));
    }
}

/// Each of these bugs has occurred in some program; the check must detect it.
#[test]
fn a_save_that_forgets_an_fsync_or_begins_with_the_manifest_is_caught() {
    let scene = better();
    let fault = |mutant: &[Op]| {
        assert_ne!(mutant, scene.ops, "the mutant is none");
        scene.check(mutant).unwrap_err()
    };
    // Data not synced: a confirmed checkpoint is damaged.
    fault(&crash::without_file_syncs(&scene.ops));
    // The same for any single file, also before the manifest is written.
    let synced = |op: &&Op| matches!(op, Op::SyncFile(_));
    let first = scene.ops.iter().position(|op| synced(&op)).unwrap();
    let count = scene.ops.iter().filter(synced).count();
    assert_eq!(count, 4, "a save syncs three files and its manifest, together");
    for at in first..first + 3 {
        let mut mutant = scene.ops.clone();
        let sync = mutant.remove(at);
        assert!(synced(&&sync), "{sync:?}");
        fault(&mutant);
        let manifest = mutant.iter().position(|op| synced(&op) && written(op, "manifest.json"));
        mutant.insert(manifest.unwrap() + 1, sync);
        fault(&mutant);
    }
    // Names not synced: the new checkpoint is confirmed, but only its temporary name exists.
    fault(&crash::without_folder_syncs(&scene.ops, Path::new("")));
    let told = fault(&crash::with_first(&scene.ops, "manifest.json"));
    assert!(told.contains(".tmp-step-00000002"), "{told}");
    // The names inside the new folder, and those between the files and the manifest.
    let inside = scene.ops.iter().find_map(|op| match op {
        Op::MakeFolder(path) => Some(path.clone()),
        _ => None,
    });
    fault(&crash::without_folder_syncs(&scene.ops, &inside.unwrap()));
    // Without the fsync after the rename to a trash name, a pruned checkpoint is found half removed.
    let trashed = scene.ops.iter().position(
        |op| matches!(op, Op::Rename(_, to, _) if to.to_string_lossy().starts_with(".trash-step")),
    );
    let mut mutant = scene.ops.clone();
    assert_eq!(mutant.remove(trashed.unwrap() + 1), Op::SyncFolder("".into()));
    fault(&mutant);
}

/// Only a limited number of many files are open at a time, and all are synced before the manifest is written.
#[test]
fn many_files_are_durable_before_the_manifest() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Recorder::new(folder.path());
    let mut many = state(seed(), 1);
    for part in 0..37 {
        let part = (format!("optim-{part}-of-37"), vec![("w".into(), Tensor::scalar(part as f32))]);
        many.tensors.extend([part]);
    }
    let mut saver = Saver::on(Arc::new(disk.clone()), folder.path(), rules(), 1).unwrap();
    saver.save(many.clone()).unwrap();
    saver.finish().unwrap().unwrap();
    assert!(is_same(&load_newest(folder.path()).unwrap().unwrap(), &many));
    let (mut waiting, mut most) = (BTreeSet::new(), 0);
    for op in disk.ops() {
        match op {
            Op::Create(path) if path.ends_with("manifest.json") => {
                assert_eq!(waiting, BTreeSet::new());
            }
            Op::Create(path) => assert!(waiting.insert(path)),
            Op::SyncFile(path) => drop(waiting.remove(&path)),
            _ => {}
        }
        most = most.max(waiting.len());
    }
    assert!((2..=16).contains(&most), "{most} open files");
}

/// fsyncgate: a second fsync of the same file may succeed although data was lost, so there must be none.
#[test]
fn a_file_whose_fsync_failed_is_given_up() {
    let seed = seed();
    for failing in 1.. {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        learn::checkpoint::write(root, &state(seed, 1), 1).unwrap();
        let mut disk = Recorder::new(root);
        disk.failing_sync = failing;
        let mut saver = Saver::on(Arc::new(disk.clone()), root, rules(), 2).unwrap();
        saver.save(state(seed, 2)).unwrap();
        let result = saver.finish();
        let ops = disk.ops();
        let failed = ops.iter().find_map(|op| match op {
            Op::FailedSync(path) => Some(path.clone()),
            _ => None,
        });
        let Some(failed) = failed else {
            assert_eq!(failing, 5, "a save syncs three files and its manifest");
            result.unwrap();
            break;
        };
        assert_eq!(result.unwrap_err().exit, unix::Exit::Io);
        assert!(!ops.contains(&Op::SyncFile(failed.clone())), "{ops:#?}");
        assert!(ops.contains(&Op::RemoveFile(failed)), "{ops:#?}");
        assert!(!ops.iter().any(|op| matches!(op, Op::Rename(..))), "{ops:#?}");
        assert_eq!(names(root), ["step-00000001"]);
        assert!(is_same(&load_newest(root).unwrap().unwrap(), &state(seed, 1)));
    }
}
