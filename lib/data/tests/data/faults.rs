//! Plants every kind of violation that `check` reports.

use crate::common::{files, manifest};
use data::fields::check::{Problem, ProblemKind, ProblemPlace, check_files, check_split};
use data::fields::field::{Field, Shape};
use data::fields::split::{By, SourceSamples, Split, SplitName};
use data::fields::split_set::{TrajectorySet, Verify};
use data::fields::write::{Header, write_field};
use data::split::Share;
use std::path::{Path, PathBuf};

const LIMIT: f32 = 100.0;

/// A file of 3 trajectories, 4 frames and 8 points with `values(trajectory, frame, point)`.
fn field(path: &Path, change: impl Fn(&mut Header), values: impl Fn(usize, usize, usize) -> f32) {
    let shape = Shape { trajectories: 3, frames: 4, grid: vec![8], channels: 1 };
    let [x, t] = [8, 5].map(|n| (0..n).map(f64::from).collect());
    let mut header =
        Header { attributes: vec![("Nu".into(), 0.1.into())], ..Header::tensor(shape, vec![x], t) };
    change(&mut header);
    write_field(path, &header, |writer| {
        (0..header.shape.trajectories).try_for_each(|n| {
            let numbers: Vec<f32> = (0..32).map(|i| values(n, i / 8, i % 8)).collect();
            writer.write(n, &numbers)
        })
    })
    .unwrap();
}

fn ordinary(n: usize, t: usize, x: usize) -> f32 {
    (n * 100 + t * 10 + x) as f32 / 50.0
}

pub fn place(trajectory: usize, frame: Option<usize>, index: Option<usize>) -> ProblemPlace {
    ProblemPlace::Field { trajectory: Some(trajectory), frame, index }
}

fn kinds(faults: &[Problem]) -> Vec<ProblemKind> {
    faults.iter().map(|fault| fault.kind).collect()
}

fn check(path: &Path) -> Vec<Problem> {
    check_files(&[path.to_path_buf()], LIMIT).problems
}

#[test]
fn a_good_file_has_no_violations() {
    let folder = tempfile::tempdir().unwrap();
    let files = files(folder.path(), &[0.001, 4.0], 1);
    let report = check_files(&files, LIMIT);
    assert_eq!((report.files, report.trajectories, report.problems), (2, 40, vec![]));
}

#[test]
fn bad_values_are_found_at_their_position() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.hdf5");
    field(
        &path,
        |_| (),
        |n, t, x| match (n, t, x) {
            (0, ..) => 0.5,
            (1, 2, 3) => f32::NAN,
            (1, 3, 0) => f32::NEG_INFINITY,
            (2, 1, 7) => -1e11,
            _ => ordinary(n, t, x),
        },
    );
    let faults = check(&path);
    assert_eq!(
        kinds(&faults),
        [ProblemKind::Constant, ProblemKind::NotFinite, ProblemKind::TooLarge]
    );
    assert_eq!(faults[0].place, place(0, None, None));
    assert_eq!(faults[1].place, place(1, Some(2), Some(3)));
    assert_eq!(faults[2].place, place(2, Some(1), Some(7)));
    assert!(faults[1].message.contains("trajectory 1, frame 2, point 3: NaN (2 in all)"));
}

#[test]
fn violations_of_shape_coordinates_and_parameter_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let found = |name: &str, change: &dyn Fn(&mut Header)| {
        field(&path(name), change, ordinary);
        kinds(&check(&path(name)))
    };
    assert_eq!(found("good", &|_| ()), []);
    assert_eq!(found("empty", &|h| h.shape.trajectories = 0), [ProblemKind::Empty]);
    assert_eq!(found("x-short", &|h| h.coordinates[0].truncate(7)), [ProblemKind::Coordinates]);
    assert_eq!(found("x-back", &|h| h.coordinates[0].swap(2, 5)), [ProblemKind::Coordinates]);
    assert_eq!(found("x-nan", &|h| h.coordinates[0][3] = f64::NAN), [ProblemKind::Coordinates]);
    assert_eq!(found("t-long", &|h| h.t.push(9.0)), [ProblemKind::Coordinates]);
    assert_eq!(found("no-parameter", &|h| h.attributes.clear()), [ProblemKind::Parameter]);
    let nan = ("Nu".to_string(), f64::NAN.into());
    assert_eq!(
        found("nan-parameter", &|h| h.attributes = vec![nan.clone()]),
        [ProblemKind::Parameter]
    );
}

#[test]
fn files_that_cannot_be_read_do_not_hide_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    field(&path("truncated"), |_| (), ordinary);
    let file = std::fs::OpenOptions::new().write(true).open(path("truncated")).unwrap();
    file.set_len(file.metadata().unwrap().len() - 1).unwrap();
    std::fs::write(path("text"), "no HDF5").unwrap();
    let rank = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/rank_four.hdf5");
    field(&path("constant"), |_| (), |n, _, _| n as f32);
    let all: Vec<PathBuf> =
        vec![path("absent"), path("truncated"), path("text"), rank, path("constant")];
    let report = check_files(&all, LIMIT);
    let unreadable = [ProblemKind::Unreadable; 3];
    let constant = [ProblemKind::Constant; 3];
    assert_eq!(
        kinds(&report.problems),
        [&[ProblemKind::Missing][..], &unreadable, &constant].concat()
    );
    assert_eq!((report.files, report.trajectories), (5, 3));
}

#[test]
fn overlaps_and_exchanged_files_of_a_split_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let (path, split) = manifest(folder.path(), &[0.01, 0.1], 7);
    assert_eq!(check_split(&path, LIMIT).unwrap().problems, []);

    let mut overlapping = split.clone();
    let sample = overlapping.train[1].samples[0];
    overlapping.test[1].samples.push(sample);
    overlapping.save(&path).unwrap();
    let faults = check_split(&path, LIMIT).unwrap().problems;
    assert_eq!(kinds(&faults), [ProblemKind::Overlap]);
    assert_eq!(faults[0].place, place(sample, None, None));
    assert_eq!(faults[0].file, overlapping.file_path(1, &path));
    assert!(faults[0].message.contains("is in train and again in test"), "{}", faults[0].message);

    split.save(&path).unwrap();
    let data = split.file_path(1, &path);
    let other = split.file_path(0, &path);
    std::fs::copy(&other, &data).unwrap();
    let faults = check_split(&path, LIMIT).unwrap().problems;
    assert_eq!(kinds(&faults), [ProblemKind::Changed, ProblemKind::Parameter], "{faults:?}");
    let length = std::fs::metadata(&data).unwrap().len();
    std::fs::OpenOptions::new().write(true).open(&data).unwrap().set_len(length / 2).unwrap();
    assert_eq!(kinds(&check_split(&path, LIMIT).unwrap().problems), [ProblemKind::Unreadable]);
    std::fs::remove_file(&data).unwrap();
    assert_eq!(kinds(&check_split(&path, LIMIT).unwrap().problems), [ProblemKind::Missing]);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(check_split(&path, LIMIT).unwrap_err().exit, unix::Exit::NoInput);
}

type Edit = fn(&mut Split);

/// Edits of a manifest with two files before it is sealed, the kinds of the violations, and words of their messages.
const EDITS: [(Edit, &[ProblemKind], &str); 21] = [
    (
        |split| split.list.files[1].parameter.value = 0.2,
        &[ProblemKind::Parameter],
        "parameter nu=0.1, the manifest says nu=0.2",
    ),
    (
        |split| split.list.files[1].parameter.name = "beta".into(),
        &[ProblemKind::Parameter],
        "says beta=0.1",
    ),
    (
        |split| split.list.files[0].parameter.further = vec![("rho".into(), 1.0)],
        &[ProblemKind::Parameter],
        "says nu=0.01,rho=1",
    ),
    (
        |split| split.content.inputs = 1,
        &[ProblemKind::Manifest, ProblemKind::Mismatch, ProblemKind::Mismatch],
        "to predict",
    ),
    (
        |split| split.content.inputs = 9,
        &[ProblemKind::Manifest, ProblemKind::Mismatch, ProblemKind::Mismatch],
        "9 `inputs`",
    ),
    (
        |split| split.content.channel_names = vec!["w".into()],
        &[ProblemKind::Mismatch, ProblemKind::Mismatch],
        "channels u, the manifest says w",
    ),
    (
        |split| split.content.channel_names.push("v".into()),
        &[ProblemKind::Manifest, ProblemKind::Mismatch, ProblemKind::Mismatch],
        "2 `channel_names` for 1",
    ),
    (
        |split| split.content.channel_names.push("u".into()),
        &[
            ProblemKind::Manifest,
            ProblemKind::Manifest,
            ProblemKind::Mismatch,
            ProblemKind::Mismatch,
        ],
        "repeat a name",
    ),
    (|split| split.validation.clear(), &[ProblemKind::Empty], "the validation split is empty"),
    (
        |split| split.test.iter_mut().for_each(|part| part.samples.clear()),
        &[ProblemKind::Empty],
        "the test split is empty",
    ),
    (
        |split| split.content.shape.frames = 6,
        &[ProblemKind::Mismatch, ProblemKind::Mismatch],
        "frames 5, the manifest says 6",
    ),
    (
        |split| split.content.shape.grid[0] = 8,
        &[ProblemKind::Mismatch, ProblemKind::Mismatch],
        "grid [16], the manifest says",
    ),
    (
        |split| split.content.shape.grid.clear(),
        &[ProblemKind::Manifest, ProblemKind::Mismatch, ProblemKind::Mismatch],
        "5 frames on a grid []",
    ),
    (
        |split| split.list.files[0].trajectories = 21,
        &[ProblemKind::Mismatch],
        "trajectories 20, the manifest",
    ),
    (|split| split.train[0].file = 7, &[ProblemKind::Manifest], "train: file 7 of 2"),
    (
        |split| split.test[0].samples.push(20),
        &[ProblemKind::Manifest],
        "test: trajectory 20 of 1D_Burgers_Sols_Nu0.01.hdf5, which has 20",
    ),
    (
        |split| {
            let twice = split.train[1].samples[0];
            split.train[1].samples.push(twice);
        },
        &[ProblemKind::Overlap],
        "is in train and again in train",
    ),
    (
        |split| split.shares = [12, 4, 3].map(Share::Count),
        &[ProblemKind::Manifest, ProblemKind::Manifest],
        "test lists 4 trajectories of nu=0.1, its share is 3",
    ),
    (
        |split| {
            split.shares = [12, 4, 4].map(Share::Count);
            split.train[0].samples.pop();
        },
        &[ProblemKind::Manifest],
        "train lists 11 trajectories of nu=0.01, its share is 12",
    ),
    (
        |split| (split.by, split.shares[1]) = (By::Parameter, Share::Count(1)),
        &[ProblemKind::Manifest],
        "validation lists 2 regimes, its share is 1",
    ),
    (
        |split| (split.by, split.shares[2]) = (By::File, Share::Count(3)),
        &[ProblemKind::Manifest],
        "test lists 2 files, its share is 3",
    ),
];

#[test]
fn an_edited_manifest_is_found_by_check_and_refused_by_training() {
    let folder = tempfile::tempdir().unwrap();
    let (path, split) = manifest(folder.path(), &[0.01, 0.1], 7);
    let refused = || {
        let open = |name| TrajectorySet::open(&path, name, Verify::Sizes);
        let error = SplitName::ALL.into_iter().find_map(|name| open(name).err()).unwrap();
        assert!(error.exit == unix::Exit::Data, "{error}");
        assert!(error.to_string().contains("split.json"), "{error}");
        error.to_string()
    };
    for (edit, expected, words) in EDITS {
        let mut edited = split.clone();
        edit(&mut edited);
        edited.save(&path).unwrap();
        let faults = check_split(&path, LIMIT).unwrap().problems;
        assert_eq!(kinds(&faults), expected, "{words}: {faults:?}");
        assert!(faults.iter().any(|fault| fault.message.contains(words)), "{words}: {faults:?}");
        refused();
    }
    // All at once.
    let mut edited = split.clone();
    EDITS.iter().for_each(|(edit, ..)| edit(&mut edited));
    edited.save(&path).unwrap();
    let found = kinds(&check_split(&path, LIMIT).unwrap().problems);
    for kind in [
        ProblemKind::Manifest,
        ProblemKind::Mismatch,
        ProblemKind::Parameter,
        ProblemKind::Empty,
        ProblemKind::Overlap,
    ] {
        assert!(found.contains(&kind), "{kind:?} in {found:?}");
    }
    let error = refused();
    assert!(
        error.contains("file 7") && error.contains("; the validation split is empty"),
        "{error}"
    );
    // Manual edits break the seal, even if they are consistent.
    for (from, to) in [
        ("\"seed\":\"7\"", "\"seed\":\"8\""),
        ("\"by\":\"trajectory\"", "\"by\":\"file\""),
        ("\"group_by\":\"state\"", "\"group_by\":\"content\""),
        ("\"samples\":[", "\"samples\": ["),
    ] {
        let text = split.text().unwrap();
        assert!(text.contains(from), "{from} in {text}");
        std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
        let error = check_split(&path, LIMIT).unwrap_err();
        let words = error.to_string();
        assert!(error.exit == unix::Exit::Data && words.contains("was edited"), "{error}");
        assert!(refused().contains("run `ds-prep split` again"));
    }
    let text = split.text().unwrap();
    std::fs::write(&path, format!("{}}}", text.split(",\n\"seal\"").next().unwrap())).unwrap();
    assert!(refused().contains("seal"), "no seal");
    let mut edited = split.clone();
    edited.train[0].samples = vec![3; 200_000];
    edited.save(&path).unwrap();
    assert_eq!(check_split(&path, LIMIT).unwrap().problems.len(), 101, "bounded");
    assert!(refused().contains("and 91 more"));
}

#[test]
fn one_initial_state_in_two_splits_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let seed = 3;
    let (path, split) = manifest(folder.path(), &[0.1], seed);
    // A file with another parameter whose trajectory, from the test, has the first frame of a training trajectory.
    let (train, test) = (split.train[0].samples[0], split.test[0].samples[0]);
    let field_at = |sample| {
        let mut values = vec![0.0; 80];
        Field::open(&split.file_path(0, &path)).unwrap().read(sample, &mut values).unwrap();
        values
    };
    let state = field_at(train)[..16].to_vec();
    let copied = folder.path().join("other_nu0.2.hdf5");
    let shape = Shape { trajectories: 20, frames: 5, grid: vec![16], channels: 1 };
    let first = Field::open(&split.file_path(0, &path)).unwrap();
    let header = Header::tensor(shape, first.coordinates().to_vec(), first.t().to_vec());
    write_field(&copied, &header, |writer| {
        (0..20).try_for_each(|sample| {
            let mut values: Vec<f32> = field_at(sample).iter().map(|u| u + 0.25).collect();
            if sample == test {
                values[..16].copy_from_slice(&state);
            }
            writer.write(sample, &values)
        })
    })
    .unwrap();
    let shares = [12, 4, 4].map(data::split::Share::Count);
    let files = [split.file_path(0, &path), copied.clone()];
    let parts = [0.6, 0.2, 0.2].map(data::split::Share::Fraction);
    let mut leaking = crate::common::divide(&files, parts, seed, &path).unwrap();
    let of_file = |parts: &[SourceSamples], file| {
        let found = parts.iter().find(|part| part.file == file);
        found.map_or(Vec::new(), |part| part.samples.clone())
    };
    for split in [&leaking.train, &leaking.validation, &leaking.test] {
        let (first, second) = (of_file(split, 0), of_file(split, 1));
        assert_eq!(first.contains(&train), second.contains(&test), "kept together");
    }
    // A split by `ds-prep` keeps the two together, so the leak is made by hand: the other regime is split like the
    // first.
    let alone = crate::common::divide(&[copied], shares, seed, &path).unwrap();
    for (of_both, of_one) in [
        (&mut leaking.train, alone.train),
        (&mut leaking.validation, alone.validation),
        (&mut leaking.test, alone.test),
    ] {
        of_both.retain(|part| part.file != 1);
        of_both.extend(of_one.into_iter().map(|part| SourceSamples { file: 1, ..part }));
    }
    for (of_both, of_first) in [
        (&mut leaking.train, &split.train),
        (&mut leaking.validation, &split.validation),
        (&mut leaking.test, &split.test),
    ] {
        of_both.retain(|part| part.file != 0);
        of_both.extend(of_first.iter().cloned());
    }
    leaking.save(&path).unwrap();
    let faults = check_split(&path, LIMIT).unwrap().problems;
    assert_eq!(kinds(&faults), [ProblemKind::SameInitialState]);
    assert_eq!(faults[0].place, place(test, None, None));
}
