//! Files are complete or absent: after errors, on full and read-only disks, and after SIGKILL.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::common::frame;
use unix::publish::*;
use unix::{Error, Exit};

/// Sorted names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn files_folders_and_links_appear_whole() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a");
    publish_bytes(&file, b"old").unwrap();
    let written = REAL.file(&file, |writer| writer.write(b"new")).unwrap();
    assert_eq!((written, fs::read(&file).unwrap()), (3, b"new".to_vec()));

    let made = folder.path().join("step-1");
    let fill = |inside: &Path| {
        fs::create_dir(inside.join("deep")).and_then(|()| fs::write(inside.join("deep/x"), "x"))
    };
    REAL.folder(&made, |f| fill(f).map_err(|e| Error::io(f, e))).unwrap();
    assert_eq!(fs::read(made.join("deep/x")).unwrap(), b"x");
    let again = REAL.folder(&made, |_| Ok(())).unwrap_err();
    assert_eq!(again.exit, Exit::CannotCreate);
    assert!(again.to_string().contains("step-1") && again.to_string().contains("exists"));

    let link = folder.path().join("latest");
    for target in ["nothing", "step-1"] {
        REAL.link(&link, Path::new(target)).unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), Path::new(target));
    }
    assert_eq!(names(folder.path()), ["a", "latest", "step-1"]);
}

#[test]
fn a_folder_made_meanwhile_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step-1");
    let error =
        REAL.folder(&path, |_| fs::create_dir(&path).map_err(|cause| Error::io(&path, cause)));
    assert_eq!(error.unwrap_err().exit, Exit::CannotCreate);
    assert_eq!(names(folder.path()), ["step-1"]);
}

#[test]
fn a_failed_write_leaves_the_old_content_and_no_rubbish() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    publish_bytes(&path, b"old").unwrap();
    let failed = REAL.file(&path, |writer| {
        writer.write_all(&[0; 1 << 21])?;
        Err::<(), _>(io::Error::other(Error::data("column 3 is empty")))
    });
    let error = failed.unwrap_err();
    assert_eq!((error.exit, error.to_string().as_str()), (Exit::Data, "column 3 is empty"));
    let failed = REAL.folder(&folder.path().join("d"), |inside| {
        fs::write(inside.join("x"), "x").map_err(|e| Error::io(inside, e))?;
        Err::<(), _>(Error::data("no"))
    });
    assert_eq!(failed.unwrap_err().exit, Exit::Data);
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(names(folder.path()), ["a"]);
}

#[test]
fn errors_name_the_target_and_say_cannot_create() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("no/such/file");
    for error in [
        publish_bytes(&missing, b"x").unwrap_err(),
        REAL.folder(&missing, |_| Ok(())).unwrap_err(),
        publish_bytes(Path::new("/proc/longhaul"), b"x").unwrap_err(),
    ] {
        assert_eq!(error.exit, Exit::CannotCreate, "{error}");
        let text = error.to_string();
        assert!(text.contains("no/such/file") || text.contains("/proc/longhaul"), "{text}");
    }
    fs::create_dir_all(folder.path().join("d/e")).unwrap();
    let onto_folder = publish_bytes(&folder.path().join("d"), b"x").unwrap_err();
    assert_eq!(onto_folder.exit, Exit::CannotCreate);
    assert_eq!(names(folder.path()), ["d"]);
    assert_eq!(publish_bytes(Path::new("/"), b"x").unwrap_err().exit, Exit::CannotCreate);
}

/// A small tmpfs, unmounted when dropped; `None` where mounting is not permitted.
struct Tmpfs(PathBuf, tempfile::TempDir);

impl Tmpfs {
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tmpfs");
        fs::create_dir(&path).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(&path);
        let mounted = mount.stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        test_support::require_mount(mounted).then_some(Self(path, folder))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_keeps_the_old_content() {
    let Some(Tmpfs(path, _keep)) = &Tmpfs::mount() else { return };
    let file = path.join("a");
    publish_bytes(&file, b"old").unwrap();
    let large = vec![7; 4 << 20];
    // The size is known: refused before a byte is written.
    let error = publish_bytes(&file, &large).unwrap_err();
    assert_eq!(error.exit, Exit::CannotCreate);
    assert!(error.to_string().contains("4.0 MiB"), "{error}");
    // The size is unknown: fails midway.
    let error = REAL.file(&file, |writer| writer.write_all(&large)).unwrap_err();
    assert_eq!(error.exit, Exit::Io);
    assert!(error.to_string().contains("free space"), "{error}");
    assert_eq!((fs::read(&file).unwrap(), names(path)), (b"old".to_vec(), vec!["a".into()]));
}

#[test]
fn a_read_only_disk_exits_with_cannot_create() {
    let Some(Tmpfs(path, _keep)) = &Tmpfs::mount() else { return };
    publish_bytes(&path.join("a"), b"old").unwrap();
    let remounted = Command::new("mount").args(["-o", "remount,ro"]).arg(path).status().unwrap();
    assert!(remounted.success());
    let error = publish_bytes(&path.join("a"), b"new").unwrap_err();
    assert_eq!(error.exit, Exit::CannotCreate);
    assert!(error.to_string().contains("ead-only"), "{error}");
    assert_eq!(fs::read(path.join("a")).unwrap(), b"old");
}

#[test]
fn killed_in_the_middle_of_writing_the_old_content_stands() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    fs::write(&path, "old").unwrap();
    let status = frame().arg("once").arg(&path).arg("--die").status().unwrap();
    assert_eq!(status.code(), None, "died by a signal");
    assert_eq!(fs::read(&path).unwrap(), b"old");
    let left = names(folder.path());
    assert!(left.len() == 2 && left[0].starts_with(TEMPORARY_PREFIX), "{left:?}");
    // Leftovers of the killed process do not disturb the next one.
    assert!(frame().arg("once").arg(&path).status().unwrap().success());
    assert_eq!(fs::read(&path).unwrap(), b"new content");
}

#[test]
fn killed_at_any_moment_the_file_is_whole() {
    let mut random = test_support::Random(test_support::seed());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    for round in 0..30 {
        let mut child = frame().arg("publish").arg(&path).spawn().unwrap();
        // Once the file exists, it always does.
        while round == 0 && !path.exists() {
            assert!(child.try_wait().unwrap().is_none(), "it published nothing");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_secs_f64(0.003 + 0.04 * random.uniform()));
        child.kill().unwrap();
        child.wait().unwrap();
        let content = fs::read(&path).unwrap();
        assert_eq!(content.len(), 1 << 18);
        assert!(content.iter().all(|byte| *byte == content[0]), "a mix of two contents");
    }
}

#[test]
fn the_order_is_write_fsync_rename_fsync_of_the_folder() {
    if !test_support::require_program("strace", &["-V"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let program = frame().get_program().to_os_string();
    let traced = Command::new("strace")
        .args(["-f", "-y", "-e", "trace=write,fsync,rename,renameat,renameat2", "-o"])
        .arg(&trace)
        .arg(program)
        .arg("once")
        .arg(folder.path().join("a"))
        .status();
    assert!(traced.unwrap().success());
    let text = fs::read_to_string(&trace).unwrap();
    let steps: Vec<&str> = text
        .lines()
        .filter(|line| line.contains(folder.path().to_str().unwrap()))
        .map(|line| match line {
            l if l.contains("write(") => "write",
            l if l.contains("rename") => "rename",
            l if l.contains("fsync(") && l.contains("inner/two>") => "fsync inner/two",
            l if l.contains("fsync(") && l.contains("inner>") => "fsync inner",
            l if l.contains("fsync(") && l.contains("/one>") => "fsync one",
            l if l.contains("fsync(") && l.contains(".tmp-") => "fsync temporary",
            _ => "fsync parent",
        })
        .collect();
    let file = ["write", "write", "fsync temporary", "rename", "fsync parent"];
    assert_eq!(steps[..5], file);
    let position = |what: &str| steps.iter().rposition(|step| *step == what).unwrap();
    let renamed = position("rename");
    assert_eq!(steps[renamed..], ["rename", "fsync parent"]);
    assert_eq!(renamed - 1, position("fsync temporary"), "the folder itself, last");
    for inside in ["fsync one", "fsync inner", "fsync inner/two"] {
        assert!((5..renamed).contains(&position(inside)), "{inside}: {steps:?}");
    }
}

#[test]
fn hashes_agree_with_the_one_shot_function() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    for size in [0usize, 1, 1023, 65_537, (1 << 20) + 3] {
        let bytes: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
        fs::write(&path, &bytes).unwrap();
        assert_eq!(hash_file(&path).unwrap(), blake3::hash(&bytes).to_hex().to_string());
    }
    // The first test vector of the BLAKE3 team: the empty input.
    fs::write(&path, "").unwrap();
    assert!(hash_file(&path).unwrap().starts_with("af1349b9f5f9a1a6a0404dea36dcc949"));
    assert_eq!(hash_file(&folder.path().join("none")).unwrap_err().exit, Exit::NoInput);
}

#[test]
fn folders_are_created_with_their_parents() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a/b/c");
    create_folder(&path).unwrap();
    create_folder(&path).unwrap();
    assert!(path.is_dir());
    fs::write(folder.path().join("file"), "").unwrap();
    let error = create_folder(&folder.path().join("file/x")).unwrap_err();
    assert_eq!(error.exit, Exit::CannotCreate);
}
