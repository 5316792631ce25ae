//! Every kind of input file replaced by something of another kind.

use std::fs;

use super::*;

/// A file, and a command that reads it.
const READERS: [(&str, &str); 13] = [
    ("codec.yaml", "train-stage codec -c codec.yaml --run new"),
    ("split.json", "train-stage codec -c codec.yaml --run new"),
    ("stats.json", "train-stage codec -c codec.yaml --run new"),
    ("raw/1D_Burgers_Sols_Nu0.1.hdf5", "ds-prep ls raw/1D_Burgers_Sols_Nu0.1.hdf5"),
    ("raw/1D_Burgers_Sols_Nu0.1.hdf5", "train-stage codec -c codec.yaml --run new"),
    ("latents/train/index.json", "train-stage operator -c operator.yaml --run new"),
    ("latents/train/shard-00000.safetensors", "latent-cache verify latents/train"),
    ("run/ckpt/step-00000006/manifest.json", "ckpt show run/ckpt/step-00000006"),
    ("run/ckpt/step-00000006/model.safetensors", "ckpt verify run/ckpt/step-00000006"),
    ("run/ckpt/step-00000006/model.safetensors", "ckpt export run -o out.safetensors"),
    ("weights.safetensors", "ckpt import weights.safetensors --like run -o made"),
    ("weights.safetensors", "ckpt import weights.safetensors --like codec.yaml -o made"),
    ("scored/metrics.json", "evaluate compare scored"),
];

/// What replaces the file, made by a shell with its name in `$f`; and what the error says, besides the name.
const FORMS: [(&str, &str); 10] = [
    ("missing", "rm $f"),
    ("of no bytes", "rm $f; : > $f"),
    ("a folder", "rm $f; mkdir $f"),
    ("a pipe", "rm $f; mkfifo $f"),
    ("a link to itself", "rm $f; ln -s $(basename $f) $f"),
    ("a dangling link", "rm $f; ln -s nowhere $f"),
    ("4 GiB and a byte, sparse", "truncate -s 4294967297 $f"),
    ("cut in the middle", "truncate -s $(($(stat -c %s $f) / 2)) $f"),
    ("NUL bytes", "n=$(stat -c %s $f); rm $f; head -c $n /dev/zero > $f"),
    ("random bytes", "n=$(stat -c %s $f); rm $f; head -c $n /dev/urandom > $f"),
];

#[test]
fn every_reader_refuses_files_of_other_kinds() {
    let mut faults = Vec::new();
    for (file, command) in READERS {
        let copy = copy();
        let folder = copy.path();
        let with = |script: &str| {
            let output = shell(folder, &format!("f={file}; {script}"));
            assert_eq!(output.status, Some(0), "{script}: {}", output.stderr);
        };
        with("cp $f good");
        for (form, plant) in FORMS {
            // A pipe is a valid configuration file (`-c <(...)`), and HDF5 ignores data after the end of a file.
            let pipe = form == "a pipe" && file.ends_with(".yaml");
            if pipe || (form.starts_with("4 GiB") && command.starts_with("ds-prep")) {
                continue;
            }
            with(plant);
            let output = run_checked(folder, command);
            let status = output.status.unwrap_or_default();
            // `verify` reports on stdout; an empty configuration has many errors, none of which is about the file.
            let expected = format!("{}{}", output.stdout, output.stderr);
            let name = file.rsplit('/').next().unwrap_or(file);
            let empty = file.ends_with(".yaml") && form == "of no bytes";
            let named = expected.contains(name) || empty || command.contains("--like codec.yaml");
            if ![65, 66, 78].contains(&status) || !named || output.stderr.lines().count() > 12 {
                faults.push(format!("{file} {form}: {command}: {status}\n{expected}"));
            }
            with("rm -rf $f new made out.safetensors; cp good $f");
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn names_with_newlines_and_unreadable_files() {
    let copy = copy();
    let folder = copy.path();
    let name = "two\nlines $(touch ran) 'and' \"quotes\"";
    fs::rename(folder.join("run"), folder.join(name)).unwrap();
    fs::rename(folder.join("split.json"), folder.join("split\n.json")).unwrap();
    let quoted = "\"$(ls -d two*)\"";
    for command in [
        format!("ckpt verify {quoted}"),
        format!("ckpt ls --json {quoted}"),
        format!("ckpt diff {quoted} {quoted}/ckpt/best"),
        format!("latent-cache make {quoted} --data \"$(ls -d split*.json)\" -o out"),
    ] {
        let output = shell(folder, &command);
        assert!(matches!(output.status, Some(0 | 1)), "{command}: {}", output.stderr);
    }
    let rows = shell(folder, &format!("ckpt ls --json {quoted}")).stdout;
    assert_eq!(rows.lines().count(), 3, "a row is a line whatever the name: {rows}");
    assert!(!folder.join("ran").exists());

    if rustix::process::geteuid().is_root() {
        test_support::skip("root may read every file");
        return;
    }
    for (file, command) in READERS {
        let copy = super::copy();
        let planted = shell(copy.path(), &format!("chmod 000 {file}"));
        assert_eq!(planted.status, Some(0));
        let output = run_checked(copy.path(), command);
        assert!(
            matches!(output.status, Some(65 | 66)),
            "{file}: {:?} {}",
            output.status,
            output.stderr
        );
    }
}

/// The log, the status and the record of attempts are written by us: a run resumes whatever happened to them.
#[test]
fn a_run_continues_despite_damaged_records() {
    for file in ["log.jsonl", "status.json", "env.json"] {
        for plant in ["truncate -s -7 $f", "head -c 99 /dev/urandom > $f", ": > $f"] {
            let copy = copy();
            let script = format!("f=run/{file}; {plant}; rm -r run/ckpt/step-00000006");
            assert_eq!(shell(copy.path(), &script).status, Some(0));
            let output = run_checked(copy.path(), "train-stage codec -c codec.yaml --run run");
            assert_eq!(output.status, Some(0), "{file} {plant}: {}", output.stderr);
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.jsonl");
    let fields = serde_json::json!({"update": 1});
    unix::log::Log::open(&path, 1).unwrap().write("update", &fields).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(256 << 20).unwrap();
    let found = unix::log::read(&path).unwrap();
    assert_eq!((found.records.len(), found.bad_lines), (1, 1), "a line of 256 MiB is one bad line");
}

#[test]
fn truncated_mistyped_and_cyclic_hdf5_files_are_refused() {
    let copy = copy();
    let folder = copy.path();
    let file = "raw/1D_Burgers_Sols_Nu0.1.hdf5";
    let bytes = fs::read(folder.join(file)).unwrap();
    let cuts = [1, 7, 8, 64, 96, 512, 800, 2048, bytes.len() / 2, bytes.len() - 1];
    for cut in cuts {
        fs::write(folder.join(file), &bytes[..cut]).unwrap();
        for command in ["ds-prep ls", "ds-prep check", "ds-prep show"] {
            let output = run_checked(folder, &format!("{command} {file}"));
            assert!(
                matches!(output.status, Some(65)),
                "{command} at {cut}: {:?} {}",
                output.status,
                output.stderr
            );
        }
    }
    fs::write(folder.join(file), &bytes).unwrap();
    // The datatype is a message of the header: class 1, float, becomes 0, 3, 7 or 9.
    let places: Vec<usize> = (0..bytes.len().min(8192)).filter(|at| bytes[*at] == 0x11).collect();
    assert!(!places.is_empty());
    for at in places {
        for class in [0x10, 0x13, 0x17, 0x19] {
            let mut other = bytes.clone();
            other[at] = class;
            fs::write(folder.join(file), other).unwrap();
            let output = run_checked(folder, &format!("ds-prep check {file}"));
            assert!(
                matches!(output.status, Some(0 | 65 | 74)),
                "{at}: {:?} {}",
                output.status,
                output.stderr
            );
        }
    }
    let script = "ln -s b a; ln -s a b; ln -s . raw/again; ds-prep ls a";
    let output = shell(folder, script);
    assert_eq!(output.status, Some(66), "{}", output.stderr);
    assert!(output.stderr.contains("symbolic links"), "{}", output.stderr);
}
