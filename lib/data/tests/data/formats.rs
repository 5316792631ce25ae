//! Formats other than HDF5, written by NumPy and Zarr, are read correctly or refused with a reason.

use crate::common::divide;
use crate::golden::{N, T, assert_values, golden};
use data::fields::field::{Field, ReadOptions};
use data::split::Share;
use std::fs;
use std::path::Path;
use unix::Exit;

#[test]
fn arrays_of_numpy_zarr_and_tables_are_read() {
    type Case<'a> = (&'a str, Option<&'a str>, &'a [&'a str], Option<&'a str>, bool);
    let cases: [Case; 9] = [
        ("nu0.3.npy", None, &["u"], Some("nu=0.3"), true),
        ("fortran.npy", Some("nctyx"), &["u0", "u1"], None, false),
        ("stored.npz", None, &["u0", "u1"], Some("nu=0.5"), true),
        ("packed.npz", None, &["u0", "u1"], Some("nu=0.5"), true),
        ("table.csv", None, &["density", "Vx"], Some("nu=0.2"), true),
        ("none.zarr", None, &["u0", "u1"], Some("nu=0.5"), false),
        ("blosc.zarr", None, &["u0", "u1"], Some("nu=0.5"), false),
        ("zlib.zarr", None, &["u0", "u1"], Some("nu=0.5"), false),
        ("zstd.zarr", None, &["u0", "u1"], Some("nu=0.5"), false),
    ];
    for (name, axes, channels, parameter, direct) in cases {
        let axes = axes.map(|axes| axes.parse().unwrap());
        let reading = ReadOptions { axes, ..ReadOptions::default() };
        let field =
            Field::open_as(&golden(name), &reading).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((field.shape().trajectories, field.shape().frames), (N, T), "{name}");
        assert_eq!(field.channels(), channels, "{name}");
        assert_eq!(field.parameter().cloned(), parameter.map(|p| p.parse().unwrap()), "{name}");
        assert_eq!(field.is_direct(), direct, "{name}");
        assert_values(&field, name);
        if !name.ends_with("npy") {
            assert_eq!(field.t()[..2], [0.0, 0.25], "{name}");
            assert_eq!(field.coordinates()[0].len(), 7, "{name}");
        }
    }
}

#[test]
fn tables_and_zarr_can_only_be_imported() {
    let manifest = tempfile::tempdir().unwrap();
    for name in ["table.csv", "none.zarr"] {
        let shares = [Share::Count(1), Share::Count(1), Share::Count(0)];
        let split = divide(&[golden(name)], shares, 1, &manifest.path().join("split.json"));
        let error = split.unwrap_err();
        assert_eq!(error.exit, Exit::Data, "{error}");
        assert!(error.to_string().contains("`ds-prep import`"), "{error}");
    }
}

#[test]
fn unsupported_files_are_refused_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |name: &str, words: &[&str]| {
        let error = Field::open(&folder.path().join(name)).unwrap_err();
        assert_eq!(error.exit, Exit::Data, "{error}");
        for word in [&[name][..], words].concat() {
            assert!(error.to_string().contains(word), "{error} lacks {word}");
        }
    };
    let put = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    let npy = fs::read(golden("nu0.3.npy")).unwrap();
    put("short.npy", &npy[..npy.len() - 1]);
    refused("short.npy", &["truncated"]);
    let descr = |name: &[u8]| {
        let at = npy.windows(5).position(|five| five == b"'<f4'").unwrap();
        [&npy[..at], name, &npy[at + 5..]].concat()
    };
    put("complex.npy", &descr(b"'<c8'"));
    refused("complex.npy", &["dtype <c8", ".astype('float32')"]);
    put("text.npz", b"no archive");
    refused("text.npz", &["NumPy"]);
    fs::copy(golden("fortran.npy"), folder.path().join("fortran.npy")).unwrap();
    refused("fortran.npy", &["[3, 2, 5, 6, 7]", "--axes"]);

    put("word.csv", b"x,u\n0,1\n1,two\n");
    refused("word.csv", &["line 3", "column 2", "two"]);
    put("missing.csv", b"t,x,u\n0,0,1\n0,1,2\n1,0,3\n");
    refused("missing.csv", &["3 rows", "[2, 2]"]);
    put("twice.csv", b"t,x,u\n0,0,1\n0,1,2\n1,0,3\n1,0,4\n");
    refused("twice.csv", &["repeats a point"]);
    put("nowhere.csv", b"t,u\n0,1\n");
    refused("nowhere.csv", &["`x`"]);
    for (separator, name) in [(";", "semicolons"), ("\t", "tabs"), ("|", "vertical bars")] {
        put("other.csv", ["t", "x", "u\n0", "0", "1\n"].join(separator).as_bytes());
        refused("other.csv", &[name, "only commas"]);
    }

    let copy = |name: &str| copy_folder(&golden("zlib.zarr"), &folder.path().join(name));
    copy("bz2.zarr");
    let description = folder.path().join("bz2.zarr/tensor/.zarray");
    let text = fs::read_to_string(&description).unwrap();
    fs::write(&description, text.replace("\"zlib\"", "\"bz2\"")).unwrap();
    refused("bz2.zarr", &["compressor bz2 is not supported"]);
    copy("filtered.zarr");
    let description = folder.path().join("filtered.zarr/tensor/.zarray");
    let filters = r#""filters": [{"id": "delta", "dtype": "<f4"}, {"id": "quantize"}]"#;
    assert!(text.contains("\"filters\": null"), "{text}");
    fs::write(&description, text.replace("\"filters\": null", filters)).unwrap();
    refused("filtered.zarr", &["`tensor`", "filter delta, quantize is not supported"]);
    let separator = r#""dimension_separator": "-", "filters": null"#;
    fs::write(&description, text.replace("\"filters\": null", separator)).unwrap();
    refused("filtered.zarr", &["dimension separator `-`"]);
    fs::create_dir(folder.path().join("three.zarr")).unwrap();
    put("three.zarr/zarr.json", b"{}");
    refused("three.zarr", &["version 3", "zarr_format=2"]);
    copy("large.zarr");
    let description = folder.path().join("large.zarr/tensor/.zarray");
    let more = |from: &str, to: &str| text.replacen(from, to, 1);
    // More chunks than exist, and a shape larger than the chunks can hold.
    assert!(text.contains("        5,\n"), "{text}");
    fs::write(&description, text.replace("        5,\n", "        1000000,\n")).unwrap();
    refused("large.zarr", &["cannot hold", "1000000"]);
    fs::write(&description, more("        5,\n", "        1,\n")).unwrap();
    refused("large.zarr", &["0.1.0.0.0", "12 of 60", "--fill-missing"]);
    copy("damaged.zarr");
    put("damaged.zarr/tensor/0.0.0.0.0", b"not zlib");
    let field = Field::open(&folder.path().join("damaged.zarr")).unwrap();
    let error = field.read(0, &mut vec![0.0; field.shape().trajectory_len()]).unwrap_err();
    assert!(error.exit == Exit::Data && error.to_string().contains("0.0.0.0.0"), "{error}");
    // A chunk that was never written holds the fill value, but a lost one looks the same.
    fs::remove_file(folder.path().join("damaged.zarr/tensor/0.0.0.0.0")).unwrap();
    refused("damaged.zarr", &["chunk 0.0.0.0.0 is missing (11 of 12 exist)", "--fill-missing"]);
    let reading = ReadOptions { fill_missing: true, ..ReadOptions::default() };
    let field = Field::open_as(&folder.path().join("damaged.zarr"), &reading).unwrap();
    let mut all = vec![1.0; field.shape().trajectory_len()];
    field.read(0, &mut all).unwrap();
    assert_eq!(all[0], 0.0);
    fs::create_dir(folder.path().join("empty.zarr")).unwrap();
    refused("empty.zarr", &[".zgroup"]);
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}
