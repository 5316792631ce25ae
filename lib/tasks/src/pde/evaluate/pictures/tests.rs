use super::*;
use crate::pde::evaluate::batch::{Batch, Space};
use crate::pde::evaluate::protocol::Protocol;
use crate::pde::evaluate::result::RolloutSums;
use crate::pde::evaluate::spectrum::Spectrum;
use data::fields::parameter::Parameter;
use learn::score::Bits;

fn protocol() -> Protocol {
    Protocol {
        on: "test".into(),
        measures: "prediction",
        grid: vec![8],
        frames: 5,
        frame_interval: 0.5,
        stride: 1,
        time_step: 0.5,
        steps: 2,
        start_frames: vec![0],
        trajectories: 1,
        rollouts: 1,
        views: 1,
        members: 1,
        models: vec![("codec", 1)],
    }
}

/// Returns an evaluation whose errors are all NaN, and a rollout of the given states.
fn nothing(states: [Vec<f32>; 3]) -> (Evaluation, DrawnRollout) {
    let unknown = Frames::constant(vec![f32::NAN; 8]);
    let models = [Method::Operator, Method::Persistence, Method::Mean, Method::Codec];
    let models = models.map(|model| (model, unknown.clone())).to_vec();
    let batch =
        Batch { spaces: vec![Space { name: "field", truth: unknown, models }], ..Batch::default() };
    let regime = Regime {
        parameter: Parameter::new("nu", 0.1),
        trajectories: 1,
        by_start: vec![Scores::of(&batch, 0, 2, &Spectrum::new(&[8], 1))],
        spectrum: vec![Bits(f64::NAN); 5],
        spectra: vec![(Method::Operator, vec![Bits(0.0); 5])],
        costs: Vec::new(),
        sums: vec![RolloutSums {
            elements: 16,
            target: Bits(f64::NAN),
            squared: vec![Bits(f64::NAN); 4],
            variance: None,
            rank_correlation: None,
        }],
    };
    let example = DrawnRollout {
        name: "operator",
        grid: vec![8],
        times: vec![0.0, 0.5, 1.0],
        truth: vec![vec![0.0; 8]; 3],
        prediction: states.to_vec(),
        nrmse: f64::NAN,
    };
    (Evaluation { steps: 2, regimes: vec![regime], ..Evaluation::default() }, example)
}

#[test]
fn a_rollout_that_is_lost_is_drawn_all_the_same() {
    let lost = [0.0, f32::NAN, f32::INFINITY].map(|u| vec![u; 8]);
    for states in [lost, [0.0; 3].map(|u| vec![u; 8]), [0.0, 1e30, -3e38].map(|u| vec![u; 8])] {
        let (result, mut example) = nothing(states);
        let drawn = regime::draw(&result, &result.regimes[0], &example, &protocol()).unwrap();
        assert!(drawn.starts_with(b"\x89PNG"));
        example.grid = vec![2, 4];
        let frames = regime::draw(&result, &result.regimes[0], &example, &protocol()).unwrap();
        assert!(frames.starts_with(b"\x89PNG"));
        assert!(summary::draw(&result, &protocol()).unwrap().starts_with(b"\x89PNG"));
    }
}
