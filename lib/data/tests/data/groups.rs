//! Trajectories that must share a split, and requests that they make impossible.

use crate::common::{divide, divide_by, fresh_seed};
use crate::leaks::{noise, write};
use data::fields::check::{ProblemKind, check_split};
use data::fields::split::{By, GroupBy, SourceSamples, Split};
use data::split::Share;
use std::path::{Path, PathBuf};
use unix::{Exit, Result};

const PERCENT: [Share; 3] = [Share::Fraction(0.8), Share::Fraction(0.1), Share::Fraction(0.1)];
const STATE: usize = 16;

/// Splits files in `folder` whose trajectories have the values of `change(file, sample, noise)`.
fn divided(
    folder: &Path,
    viscosities: &[f64],
    shares: [Share; 3],
    group_by: GroupBy,
    change: impl Fn(usize, usize, Vec<f32>) -> Vec<f32>,
) -> Result<Split> {
    let random = noise(7);
    let make = |(number, nu): (usize, &f64)| {
        let path = folder.join(format!("{number}.hdf5"));
        // Left by an earlier call.
        let _ = std::fs::remove_file(&path);
        write(&path, *nu, |sample| change(number, sample, random(20 * number + sample)));
        path
    };
    let files: Vec<PathBuf> = viscosities.iter().enumerate().map(make).collect();
    let manifest = folder.join("split.json");
    let split = divide_by(By::Trajectory, group_by, &files, shares, fresh_seed(), &manifest)?;
    split.save(&manifest)?;
    Ok(split)
}

fn counts(split: &Split) -> [usize; 3] {
    let count = |parts: &[SourceSamples]| parts.iter().map(|part| part.samples.len()).sum();
    [count(&split.train), count(&split.validation), count(&split.test)]
}

/// The split of a sample of the first file.
fn split_of(split: &Split, sample: usize) -> usize {
    let has = |parts: &&Vec<SourceSamples>| parts[0].samples.contains(&sample);
    [&split.train, &split.validation, &split.test].iter().position(has).unwrap()
}

#[test]
fn a_share_that_one_initial_state_leaves_empty_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let one_state = |_, _, mut values: Vec<f32>| {
        (0..STATE).for_each(|i| values[i] = i as f32);
        values
    };
    for viscosities in [&[0.1][..], &[0.1, 0.2]] {
        for shares in [PERCENT, [16, 2, 2].map(Share::Count)] {
            let result = divided(folder.path(), viscosities, shares, GroupBy::State, one_state);
            let error = result.unwrap_err();
            assert_eq!(error.exit, Exit::Data, "{error}");
            let text = error.to_string();
            for word in ["0.hdf5", "all 20 trajectories of nu=0.1", "one initial state"] {
                assert!(text.contains(word), "{text}");
            }
            assert!(text.contains("--group-by content"), "{text}");
            assert!(!folder.path().join("split.json").exists());
        }
    }
    let split = divided(folder.path(), &[0.1, 0.2], PERCENT, GroupBy::Content, one_state).unwrap();
    assert_eq!(counts(&split), [32, 4, 4]);
    // The user's decision is recorded in the manifest, so it is no violation.
    assert_eq!(check_split(&folder.path().join("split.json"), 1e9).unwrap().problems, []);
    // Exact copies stay together whatever the options.
    let copies = |_, _, values: Vec<f32>| (0..values.len()).map(|i| i as f32).collect();
    let error = divided(folder.path(), &[0.1], PERCENT, GroupBy::Content, copies).unwrap_err();
    assert!(error.exit == Exit::Data && error.to_string().contains("remove the copies"), "{error}");
}

#[test]
fn first_frames_without_information_do_not_group_trajectories() {
    let folder = tempfile::tempdir().unwrap();
    for value in [f32::NAN, f32::INFINITY, 0.0] {
        let split = divided(folder.path(), &[0.1], PERCENT, GroupBy::State, |_, sample, values| {
            // Samples 3 and 11 are copies.
            let values = if sample == 11 { noise(7)(3) } else { values };
            [&[value; STATE][..], &values[STATE..]].concat()
        })
        .unwrap();
        assert_eq!(counts(&split), [16, 2, 2], "{value}");
        assert_eq!(split_of(&split, 3), split_of(&split, 11), "{value}");
    }
    // With a mask of NaN, the rest of the frame identifies the trajectory.
    let masked = |_, sample, mut values: Vec<f32>| {
        if sample == 11 {
            values[..STATE].copy_from_slice(&noise(7)(3)[..STATE]);
        }
        values[..4].fill(f32::NAN);
        values
    };
    let split = divided(folder.path(), &[0.1], PERCENT, GroupBy::State, masked).unwrap();
    assert_eq!(split_of(&split, 3), split_of(&split, 11));
}

#[test]
fn counts_are_trajectories_whatever_the_groups() {
    let folder = tempfile::tempdir().unwrap();
    let pairs = |_, sample: usize, mut values: Vec<f32>| {
        values[..STATE].copy_from_slice(&noise(7)(sample / 2)[..STATE]);
        values
    };
    let with = |shares: [usize; 3]| {
        divided(folder.path(), &[0.1], shares.map(Share::Count), GroupBy::State, pairs)
    };
    let split = with([10, 4, 2]).unwrap();
    assert_eq!(counts(&split), [10, 4, 2]);
    for parts in [&split.train, &split.validation, &split.test] {
        assert!(parts[0].samples.chunks(2).all(|pair| pair[0] + 1 == pair[1]), "{parts:?}");
    }
    let error = with([10, 3, 2]).unwrap_err();
    assert_eq!(error.exit, Exit::Data);
    let text = error.to_string();
    assert!(text.contains("form 10 groups") && text.contains("validation gets 2 of 3"), "{text}");
    let error = with([19, 1, 1]).unwrap_err();
    assert_eq!(error.exit, Exit::Usage);
    assert!(error.to_string().contains("0.hdf5: 20 trajectories of nu=0.1, 21"), "{error}");
}

#[test]
fn regimes_that_share_some_states_are_divided_in_the_same_proportion() {
    let folder = tempfile::tempdir().unwrap();
    // The second file has the states of samples 10 to 19 of the first.
    let shared = |file, sample, mut values: Vec<f32>| {
        if file == 1 && sample < 10 {
            values[..STATE].copy_from_slice(&noise(7)(sample + 10)[..STATE]);
        }
        values
    };
    let split = divided(folder.path(), &[0.1, 0.2], PERCENT, GroupBy::State, shared).unwrap();
    assert_eq!(counts(&split), [32, 4, 4]);
    for parts in [&split.train, &split.validation, &split.test] {
        let states = |part: &SourceSamples| -> Vec<usize> {
            let first = if part.file == 0 { 10..20 } else { 0..10 };
            let own = part.samples.iter().filter(|sample| first.contains(*sample));
            own.map(|sample| sample % 10).collect()
        };
        assert_eq!(states(&parts[0]), states(&parts[1]), "{parts:?}");
    }
    // Of a small regime that is shared entirely, every split gets a part.
    let small = folder.path().join("small.hdf5");
    let values = noise(7);
    data::fields::write::write_field(&small, &header(6), |writer| {
        (0..6).try_for_each(|i| {
            let mut own = values(100 + i);
            own[..STATE].copy_from_slice(&values(i)[..STATE]);
            writer.write(i, &own)
        })
    })
    .unwrap();
    let shares = [0.5, 0.25, 0.25].map(Share::Fraction);
    for seed in 0..20 {
        let files = [folder.path().join("0.hdf5"), small.clone()];
        let split = divide(&files, shares, seed, &folder.path().join("split.json")).unwrap();
        assert_eq!(counts(&split), [13, 7, 6]);
        assert!([&split.train, &split.validation, &split.test].iter().all(|p| p.len() == 2));
    }
}

/// Sizes of the groups of 20 trajectories, shares in percent, and the number of trajectories that each split gets.
type GroupCase = (&'static [usize], [f64; 3], Option<[usize; 3]>);

#[test]
fn every_share_gets_a_group_while_there_are_groups() {
    let folder = tempfile::tempdir().unwrap();
    let cases: [GroupCase; 9] = [
        (&[4, 4, 4, 4, 4], [80.0, 10.0, 10.0], Some([12, 4, 4])),
        (&[4, 4, 4, 4, 4], [60.0, 10.0, 10.0], Some([12, 4, 4])),
        (&[4, 4, 4, 4, 4], [20.0, 20.0, 60.0], Some([4, 4, 12])),
        (&[4, 4, 4, 4, 4], [80.0, 20.0, 0.0], Some([16, 4, 0])),
        (&[1, 16, 3], [80.0, 10.0, 10.0], Some([16, 3, 1])),
        (&[18, 1, 1], [34.0, 33.0, 33.0], Some([18, 1, 1])),
        (&[7, 6, 5, 2], [80.0, 10.0, 10.0], Some([13, 5, 2])),
        (&[10, 10], [80.0, 10.0, 10.0], None),
        (&[19, 1], [80.0, 10.0, 10.0], None),
    ];
    for (sizes, percent, expected) in cases {
        let group = |sample: usize| {
            let ends = sizes.iter().scan(0, |end, size| {
                *end += size;
                Some(*end)
            });
            ends.take_while(|end| *end <= sample).count()
        };
        let grouped = |_, sample, mut values: Vec<f32>| {
            values[..STATE].copy_from_slice(&noise(7)(100 + group(sample))[..STATE]);
            values
        };
        let shares = percent.map(|percent| Share::Fraction(percent / 100.0));
        let split = divided(folder.path(), &[0.1], shares, GroupBy::State, grouped);
        match expected {
            Some(expected) => {
                let split = split.unwrap();
                assert_eq!(counts(&split), expected, "{sizes:?} {percent:?}");
                let manifest = folder.path().join("split.json");
                assert_eq!(check_split(&manifest, 1e9).unwrap().problems, [], "nothing leaks");
            }
            None => {
                let error = split.unwrap_err();
                assert_eq!(error.exit, Exit::Data, "{error}");
                assert!(error.to_string().contains("form 2 groups"), "{error}");
                assert!(error.to_string().contains("gets 0 of"), "{error}");
            }
        }
    }
}

fn header(trajectories: usize) -> data::fields::write::Header {
    let shape = data::fields::field::Shape { trajectories, frames: 5, grid: vec![16], channels: 1 };
    let [x, t] = [16, 5].map(|n| (0..n).map(f64::from).collect());
    let nu = ("nu".to_string(), 0.7.into());
    data::fields::write::Header {
        attributes: vec![nu],
        ..data::fields::write::Header::tensor(shape, vec![x], t)
    }
}

#[test]
fn a_shared_state_across_splits_is_found_again_by_check() {
    let folder = tempfile::tempdir().unwrap();
    let copy = |_, sample, values: Vec<f32>| if sample == 11 { noise(7)(3) } else { values };
    let mut split = divided(folder.path(), &[0.1], PERCENT, GroupBy::Content, copy).unwrap();
    // By hand: move sample 11 to another split than sample 3.
    let all = [&mut split.train, &mut split.validation, &mut split.test];
    all.into_iter().for_each(|parts| parts[0].samples.retain(|sample| *sample != 11));
    let to = if split_of(&split, 3) == 0 { &mut split.test } else { &mut split.train };
    to[0].samples.push(11);
    let manifest = folder.path().join("split.json");
    split.save(&manifest).unwrap();
    let faults = check_split(&manifest, 1e9).unwrap().problems;
    let kinds: Vec<ProblemKind> = faults.iter().map(|fault| fault.kind).collect();
    assert_eq!(kinds, [ProblemKind::Duplicate], "{faults:?}");
}
