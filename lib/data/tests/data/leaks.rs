//! Splits without leaks, and planted leaks that are found by content.

use crate::common::{divide, divide_by, fresh_seed, manifest};
use crate::golden::golden;
use data::fields::audit::audit;
use data::fields::check::{Problem, ProblemKind};
use data::fields::field::{Field, Shape};
use data::fields::split::{By, GroupBy, SourceSamples, Split};
use data::fields::write::{Header, write_field};
use data::split::Share;
use std::path::{Path, PathBuf};
use tensor::random::{Philox, Purpose};

fn kinds(faults: &[Problem]) -> Vec<ProblemKind> {
    faults.iter().map(|fault| fault.kind).collect()
}

/// A file of 20 trajectories of 5 frames on 16 points with `values(sample)`, and the parameter `nu`.
pub fn write(path: &Path, nu: f64, values: impl Fn(usize) -> Vec<f32>) {
    let shape = Shape { trajectories: 20, frames: 5, grid: vec![16], channels: 1 };
    let [x, t] = [16, 5].map(|n| (0..n).map(f64::from).collect());
    let attributes = vec![("Nu".into(), nu.into())];
    let header = Header { attributes, ..Header::tensor(shape, vec![x], t) };
    write_field(path, &header, |writer| (0..20).try_for_each(|i| writer.write(i, &values(i))))
        .unwrap();
}

/// 80 random values per sample.
pub fn noise(seed: u64) -> impl Fn(usize) -> Vec<f32> {
    let random = Philox::new(seed, Purpose::Test);
    move |sample| (0..80).map(|i| random.uniform(sample as u64, i) - 0.5).collect()
}

#[test]
fn leaks_are_found_by_content_alone() {
    let folder = tempfile::tempdir().unwrap();
    let seed = fresh_seed();
    let (path, split) = manifest(folder.path(), &[0.1], seed);
    assert_eq!(audit(std::slice::from_ref(&path), 0.01).unwrap().problems, []);
    let original = |sample| {
        let mut all = vec![0.0; 80];
        Field::open(&split.file_path(0, &path)).unwrap().read(sample, &mut all).unwrap();
        all
    };
    let [train, other, third] = [0, 1, 2].map(|i| split.train[0].samples[i]);
    // A second data set, whose test split has a copy of a training trajectory of the first, one that starts at a later
    // frame of another, one with the same first frame, and one with a little noise added.
    let file = folder.path().join("second_nu0.7.hdf5");
    let random = noise(seed);
    let planted: Vec<Vec<f32>> = {
        let later = [&original(other)[32..], &random(100)[..32]].concat();
        let begin = [&original(third)[..16], &random(101)[..64]].concat();
        let near = original(train).iter().zip(random(102)).map(|(u, e)| u + 1e-4 * e).collect();
        vec![original(train), later, begin, near]
    };
    write(&file, 0.7, |sample| planted.get(sample).cloned().unwrap_or_else(|| random(sample)));
    let second = folder.path().join("second.json");
    let mut split = divide(&[file], [16, 2, 2].map(Share::Count), seed, &second).unwrap();
    split.train = vec![SourceSamples { file: 0, samples: (8..20).collect() }];
    split.validation = vec![];
    split.shares = [12, 0, 8].map(Share::Count);
    split.test = vec![SourceSamples { file: 0, samples: (0..8).collect() }];
    split.save(&second).unwrap();

    let report = audit(&[path.clone(), second.clone()], 0.01).unwrap();
    let count = |kind| report.problems.iter().filter(|fault| fault.kind == kind).count();
    for kind in [
        ProblemKind::Duplicate,
        ProblemKind::SharedFrame,
        ProblemKind::SameInitialState,
        ProblemKind::NearDuplicate,
    ] {
        assert_eq!(count(kind), 1, "{kind:?} in {:?}", report.problems);
    }
    assert_eq!(report.problems.len(), 4);
    for fault in &report.problems {
        assert!(fault.message.contains("second_nu0.7.hdf5") && fault.message.contains("train"));
    }
    let exact = audit(&[path, second], 0.0).unwrap().problems;
    assert!(exact.iter().all(|fault| fault.kind != ProblemKind::NearDuplicate));
    assert_eq!(exact.len(), 3);
}

#[test]
fn variants_of_one_coefficient_stay_together() {
    let folder = tempfile::tempdir().unwrap();
    let seed = fresh_seed();
    let random = noise(seed);
    let shape = Shape { trajectories: 20, frames: 1, grid: vec![4, 4], channels: 2 };
    let mut files = Vec::new();
    for beta in [0.1, 1.0, 10.0] {
        let path = folder.path().join(format!("2D_DarcyFlow_beta{beta:?}_Train.hdf5"));
        let golden = Field::open(&golden("2D_DarcyFlow_beta10.0_Train.hdf5")).unwrap();
        let header = Header {
            layout: golden.layout(),
            channels: golden.channels().to_vec(),
            inputs: golden.inputs(),
            ..Header::tensor(shape.clone(), vec![Vec::new(); 2], Vec::new())
        };
        // The same coefficients in every file, in another order, with different solutions.
        let shift = (beta * 10.0) as usize % 20;
        write_field(&path, &header, |writer| {
            (0..20).try_for_each(|i| {
                let coefficient = random((i + shift) % 20);
                let both =
                    (0..16).flat_map(|p| [coefficient[p], beta as f32 + i as f32 + p as f32]);
                writer.write(i, &both.collect::<Vec<f32>>())
            })
        })
        .unwrap();
        files.push((path, shift));
    }
    let paths: Vec<PathBuf> = files.iter().map(|(path, _)| path.clone()).collect();
    let manifest = folder.path().join("split.json");
    let shares = [0.6, 0.2, 0.2].map(Share::Fraction);
    let split = divide(&paths, shares, seed, &manifest).unwrap();
    split.save(&manifest).unwrap();
    for parts in [&split.train, &split.validation, &split.test] {
        let coefficients = |part: &SourceSamples| {
            let shift = files[part.file].1;
            let mut all: Vec<usize> = part.samples.iter().map(|i| (i + shift) % 20).collect();
            all.sort_unstable();
            all
        };
        assert_eq!(parts.len(), 3);
        assert!(parts.iter().all(|part| coefficients(part) == coefficients(&parts[0])));
    }
    assert_eq!(split.train[0].samples.len(), 12);
    assert_eq!(audit(std::slice::from_ref(&manifest), 0.01).unwrap().problems, []);
    // Split by file they do not stay together: the audit reports every coefficient of the test.
    let by_file =
        divide_by(By::File, GroupBy::State, &paths, [1, 1, 1].map(Share::Count), seed, &manifest)
            .unwrap();
    by_file.save(&manifest).unwrap();
    let faults = audit(&[manifest], 0.0).unwrap().problems;
    assert_eq!(kinds(&faults), [ProblemKind::SameInitialState; 40]);
}

#[test]
fn whole_regimes_and_whole_files_go_to_one_split() {
    let folder = tempfile::tempdir().unwrap();
    let seed = fresh_seed();
    let path = folder.path().join("split.json");
    let mut files = Vec::new();
    for (number, nu) in [0.5, 0.1, 2.0, 0.1, 1.0].into_iter().enumerate() {
        files.push(folder.path().join(format!("{number}.hdf5")));
        write(&files[number], nu, noise(seed + number as u64));
    }
    let of = |by, shares: [usize; 3]| {
        divide_by(by, GroupBy::State, &files, shares.map(Share::Count), seed, &path)
    };
    let numbers =
        |parts: &[SourceSamples]| -> Vec<usize> { parts.iter().map(|part| part.file).collect() };
    let split: Split = of(By::Parameter, [2, 1, 1]).unwrap();
    assert_eq!(numbers(&split.train), [0, 1, 3], "0.1 of both files, 0.5");
    assert_eq!((numbers(&split.validation), numbers(&split.test)), (vec![4], vec![2]));
    assert_eq!(split.test[0].samples, (0..20).collect::<Vec<_>>());
    assert!(of(By::Parameter, [3, 1, 1]).unwrap_err().to_string().contains("4 regimes"));
    let split = of(By::File, [3, 1, 1]).unwrap();
    let mut all =
        [numbers(&split.train), numbers(&split.validation), numbers(&split.test)].concat();
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2, 3, 4]);
}
