//! `evaluate predict`: the fields agree with those of the model.

use std::fs;

use super::world;
use crate::common::{Captured, shell};
use data::fields::field::Field;

pub fn read(file: &str, trajectory: usize) -> Vec<f32> {
    let field = Field::open(&world().join(file)).unwrap();
    let mut values = vec![0.0; field.shape().trajectory_len()];
    field.read(trajectory, &mut values).unwrap();
    values
}

pub fn done(script: &str) -> Captured {
    let output = shell(world(), script);
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    output
}

#[test]
fn a_rollout_starts_from_the_first_frame_and_a_reconstruction_is_near_its_frame() {
    done(
        "ds-prep gen burgers --parameter 0.1 --samples 3 --grid 72 --frames 5 --seed 7 -o initial",
    );
    let file = fs::read_dir(world().join("initial")).unwrap().next().unwrap().unwrap().path();
    let file = file.strip_prefix(world()).unwrap().to_str().unwrap().to_string();
    done(&format!("evaluate predict codec --inputs {file} -o reconstructed.hdf5"));
    done(&format!("evaluate predict operator --inputs {file} --steps 6 -o rollouts.hdf5"));
    let rollouts = Field::open(&world().join("rollouts.hdf5")).unwrap();
    let reconstructed = Field::open(&world().join("reconstructed.hdf5")).unwrap();
    let frames = |field: &Field| (field.shape().trajectories, field.shape().frames);
    assert_eq!((frames(&rollouts), frames(&reconstructed)), ((3, 7), (3, 5)));
    assert_eq!(rollouts.parameter().unwrap().value, 0.1);
    for trajectory in 0..3 {
        let [truth, codec] =
            [file.as_str(), "reconstructed.hdf5"].map(|file| read(file, trajectory));
        let squares = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x * x)).sum::<f64>();
        let error = squares(&mut truth.iter().zip(&codec).map(|(a, b)| a - b));
        assert!(error < 0.25 * squares(&mut truth.iter().copied()), "{error}");
        // An operator that is still the identity stays at the first frame, as reconstructed by the codec.
        let rollout = read("rollouts.hdf5", trajectory);
        for frame in rollout.chunks_exact(72) {
            let far =
                frame.iter().zip(&codec[..72]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(far < 1e-4, "{far}");
        }
    }
    let again = format!("evaluate predict operator --inputs {file} --steps 2 -o rollouts.hdf5");
    let refused = shell(world(), &again);
    assert_eq!(refused.status, Some(73), "{}", refused.stderr);
    assert!(refused.stderr.contains("--force"), "{}", refused.stderr);
    done(&format!("{again} --force"));
    assert_eq!(Field::open(&world().join("rollouts.hdf5")).unwrap().shape().frames, 3);
}
