//! Copies planted in a test split, modified in every way that an audit must detect.

use crate::common::{divide, fresh_seed};
use data::fields::audit::audit;
use data::fields::check::{Problem, ProblemKind};
use data::fields::field::Shape;
use data::fields::split::SourceSamples;
use data::fields::write::{Header, write_field};
use data::split::Share;
use std::path::{Path, PathBuf};
use tensor::random::{Philox, Purpose};

const FRAMES: usize = 5;
const COUNT: usize = 12;

/// Writes trajectories [frames, grid, channels], and a manifest that has all of them in one split.
fn manifest(folder: &Path, name: &str, shape: &Shape, all: &[Vec<f32>], test: bool) -> PathBuf {
    let file = folder.join(format!("{name}.hdf5"));
    let coordinates = |n: &usize| (0..*n).map(|i| i as f64).collect();
    let header = Header {
        attributes: vec![("Nu".into(), 0.1.into())],
        ..Header::tensor(
            shape.clone(),
            shape.grid.iter().map(coordinates).collect(),
            coordinates(&shape.frames),
        )
    };
    write_field(&file, &header, |writer| {
        all.iter().enumerate().try_for_each(|(i, values)| writer.write(i, values))
    })
    .unwrap();
    let path = folder.join(format!("{name}.json"));
    let mut split = divide(&[file], [10, 1, 1].map(Share::Count), 0, &path).unwrap();
    let part = vec![SourceSamples { file: 0, samples: (0..shape.trajectories).collect() }];
    (split.train, split.validation, split.test) = (vec![], vec![], vec![]);
    let (own, at) = if test { (&mut split.test, 2) } else { (&mut split.train, 0) };
    *own = part;
    split.shares = [0; 3].map(Share::Count);
    split.shares[at] = Share::Count(shape.trajectories);
    split.save(&path).unwrap();
    path
}

fn shape(grid: &[usize]) -> Shape {
    Shape { trajectories: COUNT, frames: FRAMES, grid: grid.to_vec(), channels: 2 }
}

/// Independent trajectories, uniform between -0.5 and 0.5.
fn noise(shape: &Shape, seed: u64) -> Vec<Vec<f32>> {
    let random = Philox::new(seed, Purpose::Test);
    let one = |i| (0..shape.trajectory_len() as u64).map(|j| random.uniform(i, j) - 0.5).collect();
    (0..shape.trajectories as u64).map(one).collect()
}

/// The violations that an audit reports when a modified copy of trajectory 3 of the training split is planted as the
/// seventh of the test. `change` gets its frames [points, 2].
fn found(
    train: &Shape,
    test: &Shape,
    change: impl Fn(&mut Vec<Vec<f32>>, &dyn Fn(u64) -> f32),
) -> Vec<Problem> {
    let seed = fresh_seed();
    let (original, mut others) = (noise(train, seed), noise(test, seed + 1));
    let mut frames: Vec<Vec<f32>> =
        original[3].chunks_exact(train.frame_len()).map(<[f32]>::to_vec).collect();
    let random = Philox::new(seed + 2, Purpose::Test);
    change(&mut frames, &|i| random.uniform(0, i) - 0.5);
    others[7] = frames.concat();
    audited((train, &original), (test, &others))
}

/// The violations that an audit reports for a training and a test split with these trajectories.
fn audited(train: (&Shape, &[Vec<f32>]), test: (&Shape, &[Vec<f32>])) -> Vec<Problem> {
    let folder = tempfile::tempdir().unwrap();
    let paths = [
        manifest(folder.path(), "train", train.0, train.1, false),
        manifest(folder.path(), "test", test.0, test.1, true),
    ];
    audit(&paths, 0.01).unwrap().problems
}

#[track_caller]
fn assert_one(faults: &[Problem], kind: ProblemKind, words: &str) {
    let [fault] = faults else { panic!("one {kind:?} expected: {faults:?}") };
    assert_eq!(fault.kind, kind, "{fault:?}");
    for words in ["train.hdf5", "test.hdf5", "trajectory 3 of", "trajectory 7 of", words] {
        assert!(fault.message.contains(words), "`{words}` in {}", fault.message);
    }
}

fn mean(frame: &[f32], channel: usize) -> f64 {
    frame[channel..].iter().step_by(2).map(|v| f64::from(*v)).sum::<f64>() * 2.0
        / frame.len() as f64
}

/// Norm after subtracting the mean of each channel.
fn variation(frame: &[f32]) -> f64 {
    let means = [0, 1].map(|channel| mean(frame, channel));
    let square = |(i, v): (usize, &f32)| (f64::from(*v) - means[i % 2]).powi(2);
    frame.iter().enumerate().map(square).sum::<f64>().sqrt()
}

#[test]
fn nearly_equal_fields_are_found_with_their_true_distance() {
    for grid in [&[64][..], &[12, 10], &[4, 6, 8]] {
        let all = shape(grid);
        for (size, words) in
            [(3e-8, "e-8 "), (1.04e-4, "within 1.0e-4"), (5.04e-3, "within 5.0e-3")]
        {
            let faults = found(&all, &all, |frames, random| {
                for frame in frames {
                    let noise: Vec<f32> = (0..frame.len() as u64).map(random).collect();
                    let scale = size * variation(frame) / variation(&noise);
                    for channel in 0..2 {
                        let mean = mean(&noise, channel);
                        for (value, noise) in
                            frame[channel..].iter_mut().zip(&noise[channel..]).step_by(2)
                        {
                            *value =
                                (f64::from(*value) + scale * (f64::from(*noise) - mean)) as f32;
                        }
                    }
                }
            });
            assert_one(&faults, ProblemKind::NearDuplicate, words);
        }
    }
}

#[test]
fn changes_invisible_to_coarse_means_are_found() {
    let all = shape(&[64]);
    let ulp = found(&all, &all, |frames, _| {
        frames.iter_mut().for_each(|frame| frame[40] = f32::from_bits(frame[40].to_bits() + 1));
    });
    assert_one(&ulp, ProblemKind::NearDuplicate, "e-");
    // Swaps two neighbours, which are first made similar, also in the original.
    let seed = fresh_seed();
    let mut train = noise(&all, seed);
    train[3].chunks_exact_mut(all.frame_len()).for_each(|frame| frame[42] = frame[40] + 1e-3);
    let mut test = noise(&all, seed + 1);
    test[7] = train[3].clone();
    test[7].chunks_exact_mut(all.frame_len()).for_each(|frame| frame.swap(40, 42));
    assert_one(&audited((&all, &train), (&all, &test)), ProblemKind::NearDuplicate, "e-4");
}

#[test]
fn the_sign_of_zero_hides_no_copy() {
    let (all, seed) = (shape(&[64]), fresh_seed());
    let mut train = noise(&all, seed);
    train[3].iter_mut().step_by(5).for_each(|value| *value = 0.0);
    let copy: Vec<f32> = train[3].iter().map(|v| if *v == 0.0 { -0.0 } else { *v }).collect();
    let frame = all.frame_len();
    for (kind, from, to) in [
        (ProblemKind::Duplicate, 0..copy.len(), 0),
        (ProblemKind::SameInitialState, 0..frame, 0),
        (ProblemKind::SharedFrame, 2 * frame..3 * frame, frame),
    ] {
        let mut test = noise(&all, seed + 1);
        test[7][to..to + from.len()].copy_from_slice(&copy[from]);
        assert_one(&audited((&all, &train), (&all, &test)), kind, "");
    }
}

#[test]
fn the_offset_of_a_channel_neither_hides_nor_makes_leaks() {
    let (all, seed) = (shape(&[64]), fresh_seed());
    // A velocity, and a pressure that is constant, constant up to rounding, or varies about a mean.
    let pressures: [(f32, f32); 3] = [(101_325.0, 0.0), (101_325.0, 0.015), (4096.0, 1.0)];
    for (mean, variation) in pressures {
        let data = |seed| {
            let mut all = noise(&all, seed);
            let pressures = all.iter_mut().flat_map(|values| values.iter_mut().skip(1).step_by(2));
            pressures.for_each(|pressure| *pressure = mean + variation * *pressure);
            all
        };
        let train = data(seed);
        let planted = |change: &dyn Fn(&mut [f32])| {
            let mut test = data(seed + 1);
            test[7].copy_from_slice(&train[3]);
            test[7].chunks_exact_mut(all.frame_len()).for_each(change);
            audited((&all, &train), (&all, &test))
        };
        assert_eq!(audited((&all, &train), (&all, &data(seed + 1))), []);
        let near = planted(&|frame| frame[40] += 0.01);
        assert_one(&near, ProblemKind::NearDuplicate, "e-3 ");
        // Different mean pressures, which must not affect relative distances.
        let offset =
            planted(&|frame| frame.iter_mut().skip(1).step_by(2).for_each(|p| *p += 512.0));
        assert_one(&offset, ProblemKind::NearDuplicate, "has a first frame within");
    }
}

#[test]
fn copies_within_a_split_do_not_hide_that_both_leak() {
    let (all, seed) = (shape(&[64]), fresh_seed());
    let (mut train, mut test) = (noise(&all, seed), noise(&all, seed + 1));
    train[4] = train[3].clone();
    test[7][..all.frame_len()].copy_from_slice(&train[3][..all.frame_len()]);
    let faults = audited((&all, &train), (&all, &test));
    let kinds: Vec<ProblemKind> = faults.iter().map(|fault| fault.kind).collect();
    assert_eq!(
        kinds,
        [ProblemKind::SameInitialState, ProblemKind::Duplicate, ProblemKind::SameInitialState]
    );
}

/// Initial states of two sines; an eighth of them are a single wave, and such states are always shifts of each other.
#[test]
fn independent_trajectories_raise_no_alarm() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("split.json");
    let shares = [0.8, 0.1, 0.1].map(Share::Fraction);
    for (seed, count) in [(0, 240), (7, 100)] {
        let part = folder.path().join(seed.to_string());
        std::fs::create_dir(&part).unwrap();
        let files = files_of(&part, count, seed);
        divide(&files, shares, 0, &path).unwrap().save(&path).unwrap();
        assert_eq!(audit(std::slice::from_ref(&path), 0.01).unwrap().problems, []);
    }
}

fn files_of(folder: &Path, samples: usize, seed: u64) -> Vec<PathBuf> {
    let make = |&nu: &f64| {
        let all = data::fields::generate::Generation::new(
            data::fields::generate::Equation::Burgers,
            nu,
            samples,
        );
        let all =
            data::fields::generate::Generation { seed, grid: 128, frames: 11, end: 1.0, ..all };
        let path = folder.join(all.file_name());
        all.write(&path, || Ok(())).unwrap();
        path
    };
    [0.001, 0.01, 0.1].iter().map(make).collect()
}
