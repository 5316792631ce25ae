//! Checkpoints that were damaged, moved, or lost their links.

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::symlink;

use tensor::random::{Philox, Purpose};
use unix::publish::hash_file;

use super::*;

const RESUME: &str = "train-stage codec -c codec.yaml --run run";

#[test]
fn a_flipped_byte_is_found_by_file_and_tensor_and_resuming_takes_the_older_one() {
    let random = Philox::new(test_support::seed(), Purpose::Test);
    let manifest = learn::checkpoint::manifest_of(&FIXTURE.path().join("run/ckpt/step-00000006"));
    let manifest = manifest.unwrap();
    for round in 0..4 {
        let copy = copy();
        let folder = copy.path();
        let file = &manifest.files[random.below(round, 0, manifest.files.len() as u64) as usize];
        let tensor = &file.tensors[random.below(round, 1, file.tensors.len() as u64) as usize];
        let at = tensor.start + random.below(round, 2, tensor.end - tensor.start);
        let path = folder.join("run/ckpt/step-00000006").join(&file.name);
        let mut bytes = fs::read(&path).unwrap();
        bytes[at as usize] ^= 1 << random.below(round, 3, 8);
        fs::write(&path, bytes).unwrap();
        let output = run_checked(folder, "ckpt verify run --json");
        assert_eq!(output.status, Some(65), "{}", output.stderr);
        let named = format!("\"file\":\"{}\",\"tensor\":\"{}\"", file.name, tensor.name);
        assert!(output.stdout.contains(&named), "{named}: {}", output.stdout);
        let output = run_checked(folder, RESUME);
        assert_eq!(output.status, Some(0), "{}", output.stderr);
        assert!(
            output.stderr.contains("skipping checkpoint: run/ckpt/step-00000006"),
            "{}",
            output.stderr
        );
        assert!(output.stderr.contains("update 4 of 6"), "{}", output.stderr);
        assert_eq!(
            run_checked(folder, "ckpt verify run").status,
            Some(0),
            "the damaged one was replaced"
        );
    }
}

#[test]
fn links_that_are_missing_dangling_or_lead_outside_do_not_matter() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("manifest.json"), "{}").unwrap();
    for target in [None, Some("step-99999999"), outside.path().to_str(), Some("latest")] {
        let copy = copy();
        let checkpoints = copy.path().join("run/ckpt");
        for link in ["latest", "best"] {
            fs::remove_file(checkpoints.join(link)).unwrap();
            target.map_or(Ok(()), |to| symlink(to, checkpoints.join(link))).unwrap();
        }
        // Remove the last checkpoint, so that it is made again from the one before it.
        fs::remove_dir_all(checkpoints.join("step-00000006")).unwrap();
        let output = run_checked(copy.path(), RESUME);
        assert_eq!(output.status, Some(0), "{target:?}: {}", output.stderr);
        assert!(output.stderr.contains("update 4 of 6"), "{target:?}: {}", output.stderr);
        assert_eq!(run_checked(copy.path(), "ckpt verify run/ckpt/latest").status, Some(0));
        let make = "latent-cache make run --data split.json -o again";
        assert_eq!(run_checked(copy.path(), make).status, Some(0), "{target:?}");
    }
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1, "nothing was written outside");
}

#[test]
fn a_copy_by_cp_tar_or_rsync_is_a_good_checkpoint() {
    let ways = [
        ("cp", "cp -r run elsewhere"),
        ("tar", "mkdir elsewhere; tar cf - -C run . | tar xf - -C elsewhere"),
        ("rsync", "rsync -r --links run/ elsewhere/"),
    ];
    for (program, way) in ways {
        if !test_support::require_program(program, &["--version"]) {
            continue;
        }
        let copy = copy();
        let script = format!("{way}; rm -r run; ckpt verify elsewhere; ckpt show elsewhere");
        let output = shell(copy.path(), &script);
        assert_eq!(output.status, Some(0), "{way}: {}", output.stderr);
        let output = run_checked(copy.path(), "train-stage codec -c codec.yaml --run elsewhere");
        assert_eq!(output.status, Some(0), "{way}: {}", output.stderr);
        let alone = "cp -r elsewhere/ckpt/step-00000004 alone; ckpt verify alone";
        assert_eq!(shell(copy.path(), alone).status, Some(0));
    }
}

/// A checkpoint that is replaced or removed while a process reads it stays unchanged for that process.
#[test]
fn saving_does_not_change_files_that_another_process_has_open() {
    let copy = copy();
    let folder = copy.path();
    let path = folder.join("run/ckpt/step-00000006/model.safetensors");
    let before = fs::read(&path).unwrap();
    let mut open = fs::File::open(&path).unwrap();
    // SAFETY: the file is only read, and the test checks that it does not change.
    let map = unsafe { memmap2::Mmap::map(&open) }.unwrap();
    // Goes back to update 2, and saves 4 and 6 again.
    let output = run_checked(folder, &format!("{RESUME} --resume run/ckpt/step-00000002"));
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    assert_eq!(output.stderr.matches("finished at update 6").count(), 1, "{}", output.stderr);
    assert_eq!(&map[..], before, "a mapped checkpoint changed");
    let mut now = Vec::new();
    open.seek(SeekFrom::Start(0)).unwrap();
    open.read_to_end(&mut now).unwrap();
    assert_eq!(now, before);
    use std::os::unix::fs::MetadataExt;
    let (old, new) = (open.metadata().unwrap(), fs::metadata(&path).unwrap());
    assert_ne!(old.ino(), new.ino(), "it was written in place, or not at all");
    assert_eq!(hash_file(&path).unwrap(), blake3::hash(&before).to_hex().to_string(), "same bits");
    let output = run_checked(folder, "ckpt prune run --keep-last 1");
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    assert_eq!(&map[..], before);
}

/// An average of checkpoints, and imported weights, can be used like any other codec.
#[test]
fn made_checkpoints_serve_latent_cache_and_evaluate() {
    let copy = copy();
    let script = "ckpt average run/ckpt/step-0000000[246] -o mean
        ckpt import weights.safetensors --like run -o imported
        ckpt verify mean imported
        for made in mean imported; do
            latent-cache make $made --data split.json -o latents-$made
            evaluate score $made --data split.json --steps 2 -o report-$made
        done";
    let output = shell(copy.path(), script);
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    let output =
        run_checked(copy.path(), "train-stage codec -c codec.yaml --run new --resume mean");
    assert_eq!(output.status, Some(65), "no training goes on from a mean: {}", output.stderr);
}
