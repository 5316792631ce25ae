//! Manifests, the sets they describe, and statistics.

use crate::common::{divide, files, fresh_seed, manifest};
use data::fields::field::Field;
use data::fields::split::{Split, SplitName};
use data::fields::split_set::{TrajectorySet, Verify};
use data::fields::stats::Stats;
use data::split::Share;
use std::collections::HashSet;
use std::os::unix::fs::FileExt;
use unix::Exit;

#[test]
fn splits_are_disjoint_balanced_complete_and_a_function_of_the_seed() {
    let folder = tempfile::tempdir().unwrap();
    let seed = fresh_seed();
    let (path, split) = manifest(folder.path(), &[0.01, 0.1], seed);
    let mut seen = HashSet::new();
    for (name, count) in [(SplitName::Train, 12), (SplitName::Validation, 4), (SplitName::Test, 4)]
    {
        for (file, part) in split.parts(name).iter().enumerate() {
            assert_eq!((part.file, part.samples.len()), (file, count), "{name}");
            assert!(part.samples.is_sorted());
            assert!(part.samples.iter().all(|&s| s < 20 && seen.insert((file, s))), "{name}");
        }
    }
    assert_eq!(seen.len(), 40);
    let again = |seed| {
        let files: Vec<_> = (0..2).map(|i| split.file_path(i, &path)).collect();
        let shares = [Share::Fraction(0.6), Share::Fraction(0.2), Share::Fraction(0.2)];
        divide(&files, shares, seed, &path).unwrap()
    };
    assert_eq!(again(seed), split);
    assert_ne!(again(seed + 1).train, split.train);
    assert_eq!(Split::load(&path).unwrap().0, split);
}

#[test]
fn shares_are_percentages_or_counts_that_the_regimes_have() {
    let folder = tempfile::tempdir().unwrap();
    let files = files(folder.path(), &[0.1], 1);
    let manifest = folder.path().join("split.json");
    let counts = |shares: [&str; 3]| {
        let shares = shares.map(|text| text.parse::<Share>().unwrap());
        let split = divide(&files, shares, 1, &manifest)?;
        Ok::<_, unix::Error>(SplitName::ALL.map(|name| split.count(name)))
    };
    assert_eq!(counts(["80%", "10%", "10%"]).unwrap(), [16, 2, 2]);
    assert_eq!(counts(["33%", "33%", "34%"]).unwrap(), [7, 6, 7]);
    assert_eq!(counts(["17", "1", "0"]).unwrap(), [17, 1, 0]);
    assert_eq!(counts(["50%", "3", "0%"]).unwrap(), [10, 3, 0]);
    let error = counts(["18", "2", "1"]).unwrap_err();
    assert_eq!(error.exit, Exit::Usage);
    assert!(error.to_string().contains("Nu0.1.hdf5: 20 trajectories of nu=0.1, 21"), "{error}");
    assert_eq!(counts(["80%", "1%", "10%"]).unwrap_err().exit, Exit::Usage);
    for wrong in ["", "x", "-1", "101%", "nan%", "1.5"] {
        assert!(wrong.parse::<Share>().is_err(), "{wrong}");
    }
}

#[test]
fn a_set_reads_what_the_files_hold() {
    let folder = tempfile::tempdir().unwrap();
    let (path, split) = manifest(folder.path(), &[0.01, 0.1], 4);
    // The manifest and its files may be moved together.
    let moved = folder.path().with_extension("moved");
    std::fs::rename(folder.path(), &moved).unwrap();
    let path = moved.join(path.file_name().unwrap());
    let set = TrajectorySet::open(&path, SplitName::Validation, Verify::Hashes).unwrap();
    assert_eq!((set.len(), set.shape().trajectory_len(), set.t().len()), (8, 5 * 16, 5));
    let mut i = 0;
    for part in split.parts(SplitName::Validation) {
        let field = Field::open(&split.file_path(part.file, &path)).unwrap();
        for &sample in &part.samples {
            let (mut ours, mut theirs, mut some) = ([0.0; 80], [0.0; 80], [0.0; 32]);
            set.read(i, &mut ours).unwrap();
            field.read(sample, &mut theirs).unwrap();
            set.read_frames(i, 1..3, &mut some).unwrap();
            assert_eq!((ours, &ours[16..48]), (theirs, &some[..]));
            assert_eq!((set.entry(i).sample, set.entry(i).file), (sample, field.path()));
            assert_eq!(Some(set.entry(i).parameter), field.parameter());
            i += 1;
        }
    }
    assert_eq!(set.read(8, &mut [0.0; 80]).unwrap_err().exit, Exit::Bug);
    std::fs::remove_dir_all(&moved).unwrap();
}

#[test]
fn changed_truncated_and_missing_files_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let (path, split) = manifest(folder.path(), &[0.01, 0.1], 4);
    let data = split.file_path(0, &path);
    let open = |verify| TrajectorySet::open(&path, SplitName::Train, verify);
    let whole = std::fs::read(&data).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&data).unwrap();

    file.write_all_at(&[0x77], whole.len() as u64 / 2).unwrap();
    assert!(open(Verify::Sizes).is_ok(), "sizes alone do not see a flipped byte");
    let error = open(Verify::Hashes).unwrap_err();
    assert_eq!(error.exit, Exit::Data);
    assert!(error.to_string().contains("Nu0.01.hdf5") && error.to_string().contains("split.json"));

    file.set_len(whole.len() as u64 - 8).unwrap();
    assert_eq!(open(Verify::Sizes).unwrap_err().exit, Exit::Data);
    std::fs::remove_file(&data).unwrap();
    let error = open(Verify::Sizes).unwrap_err();
    assert_eq!(error.exit, Exit::NoInput);
    assert!(error.to_string().contains("Nu0.01.hdf5"), "{error}");
}

#[test]
fn manifests_that_contradict_themselves_are_bad_data() {
    let folder = tempfile::tempdir().unwrap();
    let (path, split) = manifest(folder.path(), &[0.1], 4);
    let refused = |change: &dyn Fn(&mut Split)| {
        let mut wrong = split.clone();
        change(&mut wrong);
        wrong.save(&path).unwrap();
        let error = Split::load(&path).unwrap_err();
        assert!(error.exit == Exit::Data && error.to_string().contains("split.json"), "{error}");
    };
    refused(&|split| split.train[0].file = 1);
    refused(&|split| split.test[0].samples.push(20));
    std::fs::write(&path, "{").unwrap();
    assert_eq!(Split::load(&path).unwrap_err().exit, Exit::Data);
    assert_eq!(Split::load(&folder.path().join("no")).unwrap_err().exit, Exit::NoInput);
}

#[test]
fn the_same_content_twice_and_other_shapes_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = files(folder.path(), &[0.1], 4);
    let copy = folder.path().join("copy.hdf5");
    std::fs::copy(&files[0], &copy).unwrap();
    files.push(copy);
    let shares = [Share::Count(1); 3];
    let error = divide(&files, shares, 1, &folder.path().join("s")).unwrap_err();
    assert!(error.exit == Exit::Data && error.to_string().contains("same content"), "{error}");
}

#[test]
fn statistics_are_those_of_the_training_numbers_on_any_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = manifest(folder.path(), &[0.01, 0.1], fresh_seed());
    let set = TrajectorySet::open(&path, SplitName::Train, Verify::Sizes).unwrap();
    let of = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| Stats::of(&set)).unwrap()
    };
    let stats = of(1);
    assert_eq!(stats, of(3));

    let mut all = Vec::new();
    for i in 0..set.len() {
        let mut one = [0.0; 80];
        set.read(i, &mut one).unwrap();
        all.extend(one.map(f64::from));
    }
    let n = all.len() as f64;
    let mean = all.iter().sum::<f64>() / n;
    let square = all.iter().map(|u| u * u).sum::<f64>() / n;
    let found = stats.overall;
    assert_eq!((found.count, stats.trajectories), (24 * 80, 24));
    assert!((found.mean - mean).abs() < 1e-12 && (found.rms - square.sqrt()).abs() < 1e-12);
    assert!((found.std - (square - mean * mean).sqrt()).abs() < 1e-12);
    assert_eq!(found.max, all.iter().copied().fold(f64::MIN, f64::max));
    assert_eq!(found.min, all.iter().copied().fold(f64::MAX, f64::min));
    assert_eq!(stats.regimes.iter().map(|r| r.parameter.value).collect::<Vec<_>>(), [0.01, 0.1]);

    let file = folder.path().join("stats.json");
    stats.save(&file).unwrap();
    assert_eq!(Stats::load(&file, &set).unwrap().0, stats);
    let test = TrajectorySet::open(&path, SplitName::Test, Verify::Sizes).unwrap();
    assert_eq!(Stats::of(&test).unwrap_err().exit, Exit::Data);
}

#[test]
fn a_parameter_that_is_not_finite_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let files = files(folder.path(), &[0.1], 3);
    let file = hdf5::File::open_rw(&files[0]).unwrap();
    file.attr("Nu").unwrap().write_scalar(&f64::NAN).unwrap();
    file.close().unwrap();
    let shares = [Share::Fraction(0.6), Share::Fraction(0.2), Share::Fraction(0.2)];
    let error = divide(&files, shares, 3, &folder.path().join("split.json")).unwrap_err();
    assert!(error.exit == Exit::Data && error.to_string().contains("nu=NaN"), "{error}");
}
