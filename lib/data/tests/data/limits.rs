//! Sizes that a file claims are checked before memory is allocated, and no file makes us open another one.

use crate::common::manifest;
use crate::golden::golden;
use data::fields::field::Field;
use data::fields::list::FileSummary;
use data::fields::split::Split;
use hdf5::Group;
use std::fs;
use std::path::Path;
use std::process::Command;
use unix::Exit;

fn refused(path: &Path, exit: Exit, words: &[&str]) {
    let error = Field::open(path).map(drop).unwrap_err();
    assert_eq!(error.exit, exit, "{error}");
    let name = path.file_name().unwrap().to_str().unwrap();
    for word in words.iter().chain([&name]) {
        assert!(error.to_string().contains(word), "{error} lacks {word}");
    }
}

/// A file with coordinates [8] and whatever `more` adds.
fn hdf5_file(path: &Path, more: impl FnOnce(&Group)) {
    let file = hdf5::File::create(path).unwrap();
    for (name, count) in [("x-coordinate", 8), ("t-coordinate", 4)] {
        let values: Vec<f32> = (0..count).map(|i| i as f32).collect();
        file.new_dataset_builder().with_data(&values).create(name).unwrap();
    }
    more(&file);
    file.close().unwrap();
}

#[test]
fn hdf5_files_that_lead_to_others_are_refused_and_links_inside_are_followed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let tensor = |group: &Group, name: &str| {
        group.new_dataset::<f32>().shape([3, 4, 8]).create(name).unwrap().write_raw(&[1f32; 96])
    };
    hdf5_file(&path("good.h5"), |root| tensor(root, "tensor").unwrap());
    Field::open(&path("good.h5")).unwrap();
    hdf5_file(&path("soft.h5"), |root| {
        tensor(&root.create_group("a").unwrap(), "b").unwrap();
        root.link_soft("/a/b", "tensor").unwrap();
    });
    Field::open(&path("soft.h5")).unwrap();

    // Made by golden_links.py: the library cannot create such links once it refuses to follow them.
    let links = golden("../links");
    for (name, word) in
        [("tensor.h5", "tensor (external link"), ("group.h5", "no dataset `0000/data`")]
    {
        fs::copy(links.join(name), path(name)).unwrap();
        fs::copy(path("good.h5"), path("other.h5")).unwrap();
        refused(&path(name), Exit::Data, &[word]);
    }
    let other = path("good.h5");
    let other = other.to_str().unwrap();
    hdf5_file(&path("stored.h5"), |root| {
        let builder = root.new_dataset::<f32>().shape([3, 4, 8]).external(other, 0, 384);
        builder.create("tensor").unwrap();
    });
    refused(&path("stored.h5"), Exit::Data, &["tensor (dataset in other files"]);
    hdf5_file(&path("virtual.h5"), |root| {
        let all = (0..3, 0..4, 0..8);
        let builder = root.new_dataset::<f32>().shape([3, 4, 8]);
        let builder = builder.virtual_map(other, "tensor", [3, 4, 8], all.clone(), [3, 4, 8], all);
        builder.create("tensor").unwrap();
    });
    refused(&path("virtual.h5"), Exit::Data, &["tensor (dataset in other files"]);
}

#[test]
fn lengths_that_files_claim_have_limits() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    hdf5_file(&path("long.h5"), |root| {
        root.unlink("x-coordinate").unwrap();
        root.new_dataset::<f32>().shape([1 << 33]).create("x-coordinate").unwrap();
        root.new_dataset::<f32>().shape([3, 4, 8]).create("tensor").unwrap();
    });
    refused(&path("long.h5"), Exit::Data, &["x-coordinate", "8589934592", "16777216"]);
    hdf5_file(&path("chunk.h5"), |root| {
        let tensor = root.new_dataset::<f32>().shape([30, 10, 1 << 20]).chunk([30, 10, 1 << 20]);
        tensor.deflate(1).create("tensor").unwrap();
    });
    refused(&path("chunk.h5"), Exit::Data, &["chunks of more than 256.0 MiB"]);

    let zarr = path("chunk.zarr");
    let copied = Command::new("cp").arg("-r").args([&golden("none.zarr"), &zarr]).status();
    assert!(copied.unwrap().success());
    let description = zarr.join("tensor/.zarray");
    let text = fs::read_to_string(&description).unwrap();
    let mut fields: serde_json::Value = serde_json::from_str(&text).unwrap();
    fields["chunks"][0] = (1 << 28).into();
    fs::write(&description, fields.to_string()).unwrap();
    refused(&zarr, Exit::Data, &["tensor", "256.0 MiB"]);
    // A file with the name of a chunk but other content.
    fs::write(&description, text).unwrap();
    let chunk = zarr.join("tensor/0.0.0.0.0");
    fs::File::options().write(true).open(&chunk).unwrap().set_len(1 << 30).unwrap();
    let field = Field::open(&zarr).unwrap();
    let mut values = vec![0.0; field.shape().trajectory_len()];
    let error = field.read(0, &mut values).unwrap_err();
    assert_eq!(error.exit, Exit::Data, "{error}");
    assert!(error.to_string().contains("0.0.0.0.0: 1073741824 bytes is more than"), "{error}");
    fs::remove_file(&chunk).unwrap();
    assert!(Command::new("mkfifo").arg(&chunk).status().unwrap().success());
    assert_eq!(field.read(0, &mut values).unwrap_err().exit, Exit::NoInput, "a pipe is no chunk");

    let rows = format!("x,u\n0,{}1\n1,1\n", " ".repeat(1 << 20));
    fs::write(path("row.csv"), rows).unwrap();
    refused(&path("row.csv"), Exit::Data, &["row 2 is longer than 1048576 bytes"]);
    let quoted = format!("x,u\n0,\"{}1\"\n1,1\n", "\n".repeat(1 << 20));
    fs::write(path("quoted.csv"), quoted).unwrap();
    refused(&path("quoted.csv"), Exit::Data, &["row 2 is longer than"]);
}

#[test]
fn links_that_lead_a_folder_back_to_itself_are_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let zarr = folder.path().join("nu0.5.zarr");
    let copied = Command::new("cp").arg("-r").args([&golden("none.zarr"), &zarr]).status();
    assert!(copied.unwrap().success());
    let before = FileSummary::of(&zarr).unwrap().bytes;
    for name in ["a", "b"] {
        std::os::unix::fs::symlink(".", zarr.join(name)).unwrap();
    }
    assert_eq!(FileSummary::of(&zarr).unwrap().bytes, before);
}

#[test]
fn a_trajectory_named_many_times_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (path, mut split) = manifest(folder.path(), &[0.1], 3);
    split.train[0].samples = vec![0; 2_000_000];
    split.save(&path).unwrap();
    let error = Split::load(&path).unwrap_err();
    assert_eq!(error.exit, Exit::Data);
    let told = "trajectory 0 is in train and again in train";
    assert!(error.to_string().contains(told), "{error}");
}
