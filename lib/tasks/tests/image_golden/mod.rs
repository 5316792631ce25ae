//! Models of images and text with the values of transformers, and their sequences.

use crate::golden_config::{json_in, read};
use crate::text_golden::Golden;
use learn::forward::Forward;
use learn::params::{Builder, ParamSet};
use learn::recompute::Recompute;
use learn::task::Batch;
use serde_json::Value as Json;
use std::rc::Rc;
use tasks::language::vision::{Grid, Images, VisionConfig};
use tasks::language::{Labelled, Language};
use tensor::{Device, Dtype, Tape};

pub const CASES: [&str; 2] = ["mixed", "untied"];

/// The config.json of a case.
pub fn json_of(case: &str) -> Json {
    json_in("vision_language.json", case)
}

/// A sequence with its images.
#[derive(Clone, Default)]
pub struct Sequence {
    pub ids: Vec<i32>,
    pub counted: Vec<u8>,
    pub grids: Vec<Grid>,
    pub values: Vec<f32>,
}

impl Sequence {
    pub fn images(&self) -> Images<'_> {
        Images { grids: &self.grids, values: &self.values }
    }

    pub fn labelled(&self) -> Labelled<'_> {
        Labelled { ids: &self.ids, counted: &self.counted, images: self.images() }
    }
}

/// The sequences of a case.
pub fn sequences(golden: &Golden, case: &str, config: &VisionConfig) -> Vec<Sequence> {
    let of = |name: &str| golden.integers(&format!("{case}/{name}"));
    let width = golden.words(&format!("{case}/ids")).1[1];
    let patches = golden.read(&format!("{case}/patches")).to_f64();
    let mut patches = patches.into_iter().map(|x| x as f32);
    let grids = of("grids");
    let mut grids = grids
        .as_chunks::<2>()
        .0
        .iter()
        .map(|[rows, columns]| Grid { rows: *rows as usize, columns: *columns as usize });
    let [ids, targets, lengths, images] = ["ids", "targets", "lengths", "images"].map(of);
    let mut all = Vec::new();
    for (row, length) in lengths.into_iter().enumerate() {
        let own = row * width..row * width + length as usize;
        let grids: Vec<Grid> = grids.by_ref().take(images[row] as usize).collect();
        let count: usize = grids.iter().map(|grid| grid.patches()).sum();
        let values = patches.by_ref().take(count * config.patch_values()).collect();
        // A target belongs to the token before the label.
        let counted = |at: usize| u8::from(at > own.start && targets[at - 1] >= 0);
        let counted = own.clone().map(counted).collect();
        all.push(Sequence { ids: ids[own].to_vec(), counted, grids, values });
    }
    all
}

/// A model with the parameters of a case in `dtype` on `device`, and its sequences.
pub struct Model {
    pub language: Language,
    pub params: ParamSet,
    pub sequences: Vec<Sequence>,
    pub dtype: Dtype,
}

impl Model {
    pub fn of(golden: &Golden, case: &str, dtype: Dtype, device: Device) -> Self {
        let config = read(&json_of(case)).unwrap();
        let mut b = Builder::new(1);
        let language = Language::new(&mut b, &config, 0);
        b.check().unwrap();
        let ParamSet { trained, frozen } = golden.assigned(case, b.finish());
        let params = ParamSet { trained: trained.to_dtype(dtype), frozen: frozen.to_dtype(dtype) };
        let params = params.to_device(device).unwrap();
        let sequences = sequences(golden, case, config.vision.as_ref().unwrap());
        Self { language, params, sequences, dtype }
    }

    pub fn batch(&self, which: &[usize]) -> Batch {
        let all: Vec<Labelled> = which.iter().map(|i| self.sequences[*i].labelled()).collect();
        self.language.batch(&all, self.dtype).unwrap()
    }

    /// Loss and gradients of a batch of sequences; None for parameters that it does not depend on.
    pub fn gradients(&self, which: &[usize], budget: f64) -> (f64, Vec<Option<Vec<f64>>>) {
        let tape = Tape::new();
        let recompute = Rc::new(Recompute::new(budget));
        let forward = Forward::training(&tape, &self.params).recomputing(recompute);
        let loss = self.language.loss(&forward, &self.batch(which)).unwrap();
        let variables = forward.variables().to_vec();
        drop(forward);
        let value = loss.value().to_f64()[0];
        let mut gradients = tape.backward(&loss).unwrap();
        let all = variables.iter().map(|own| gradients.take(own).map(|found| found.to_f64()));
        (value, all.collect())
    }
}
