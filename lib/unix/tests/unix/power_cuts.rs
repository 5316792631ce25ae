//! Single files and links: after any power cut, a reader sees the old or the new content.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use test_support::crash::{self, Content, Op, Recorder, materialise, snapshot, states};
use unix::disk::Rename;
use unix::publish::Publisher;

/// The operations of a program on a disk, and the content before.
struct Trace {
    before: Content,
    ops: Vec<Op>,
}

/// Records `work` in a folder that contains the file `a` with `old`, and the link `l` to `old`.
fn trace(work: impl FnOnce(&Publisher, &Path)) -> Trace {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a"), "old").unwrap();
    std::os::unix::fs::symlink("old", folder.path().join("l")).unwrap();
    let before = snapshot(folder.path());
    let disk = Recorder::new(folder.path());
    work(&Publisher::new(&disk), folder.path());
    disk.promise();
    Trace { before, ops: disk.ops() }
}

/// Returns the number of states, or the first in which `name` is neither the old nor the new content, or not the new
/// one after durability was reported.
fn check(
    before: &Content,
    ops: &[Op],
    name: &str,
    old: Option<&Content>,
    new: &Content,
) -> Result<usize, String> {
    let states = states(before, ops);
    for state in &states {
        let Content::Folder(found) = &state.content else { panic!("a folder") };
        let found = found.get(name);
        let promised = ops[..state.done].contains(&Op::Promise);
        if found != Some(new) && (promised || found != old) {
            return Err(format!("after {:?}: {found:?}", &ops[..state.done]));
        }
    }
    Ok(states.len())
}

fn file(text: &str) -> Content {
    Content::File(text.into())
}

#[test]
fn a_file_is_the_old_or_the_new_after_any_power_cut() {
    let t = trace(|publisher, folder| publisher.bytes(&folder.join("a"), b"brand new").unwrap());
    let (old, new) = (file("old"), file("brand new"));
    let count = check(&t.before, &t.ops, "a", Some(&old), &new).unwrap();
    // Nothing done; the temporary file empty, half written and complete; published; and that after the promise.
    assert_eq!(count, 6, "{:?}", t.ops);
    // Each fsync is necessary.
    for mutant in
        [crash::without_file_syncs(&t.ops), crash::without_folder_syncs(&t.ops, Path::new(""))]
    {
        assert_ne!(mutant, t.ops);
        check(&t.before, &mutant, "a", Some(&old), &new).unwrap_err();
    }
    // Written in place it would be torn.
    let in_place = [Op::Write("a".into(), b"more".into()), Op::SyncFile("a".into())];
    check(&t.before, &in_place, "a", Some(&old), &file("oldmore")).unwrap_err();
}

#[test]
fn a_link_and_a_folder_are_the_old_or_the_new_after_any_power_cut() {
    let t = trace(|publisher, folder| publisher.link(&folder.join("l"), Path::new("new")).unwrap());
    let link = |target: &str| Content::Link(target.into());
    check(&t.before, &t.ops, "l", Some(&link("old")), &link("new")).unwrap();

    let t = trace(|publisher, folder| {
        let fill = |inside: &Path| {
            let x = publisher.inner_file(&inside.join("x"), 1, |writer| writer.write_all(b"x"))?;
            let y = publisher.inner_file(&inside.join("y"), 2, |writer| writer.write_all(b"yy"))?;
            x.sync().and_then(|()| y.sync())
        };
        publisher.folder(&folder.join("f"), fill).unwrap();
    });
    let entries = [("x".to_string(), file("x")), ("y".to_string(), file("yy"))];
    let new = Content::Folder(BTreeMap::from(entries));
    check(&t.before, &t.ops, "f", None, &new).unwrap();
    for mutant in
        [crash::without_file_syncs(&t.ops), crash::without_folder_syncs(&t.ops, Path::new(""))]
    {
        check(&t.before, &mutant, "f", None, &new).unwrap_err();
    }
}

/// The model itself: after all operations, with nothing lost, it agrees with a real disk.
#[test]
fn the_model_agrees_with_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let disk = Recorder::new(root);
    let before = snapshot(root);
    let publisher = Publisher::new(&disk);
    publisher.create_folder(&root.join("d/e")).unwrap();
    for (name, text) in [("a", "1"), ("b", "2"), ("d/c", "3"), ("a", "4")] {
        publisher.bytes(&root.join(name), text.as_bytes()).unwrap();
    }
    publisher.link(&root.join("l"), Path::new("a")).unwrap();
    publisher.rename(&root.join("l"), &root.join("m"), Rename::New).unwrap();
    publisher.rename(&root.join("a"), &root.join("m"), Rename::New).unwrap_err();
    if !publisher.exchange(&root.join("a"), &root.join("d")).unwrap() {
        test_support::skip("this file system does not exchange names");
    }
    let after = snapshot(root);
    assert_eq!(crash::after(&before, &disk.ops()), after);
    let copy = folder.path().join("copy");
    materialise(&after, &copy);
    assert_eq!(snapshot(&copy), after);
}
