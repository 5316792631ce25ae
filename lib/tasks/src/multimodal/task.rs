//! The task: samples, loss and validation.

use super::batch::{Drawing, L2T, Preparation, T2L};
use super::config::{CycleVaeConfig, CycleVaeData, CycleVaeLoss, CycleVaeModel, violations};
use super::cycle::{L2T2L, T2L2T};
use super::measure::Measure;
use super::model::{Inputs, Network};
use super::sample::Runner;
use super::sets::{PairSets, Record, sizes};
use data::inputs::InputFile;
use data::text::TokenSet;
use learn::forward::Forward;
use learn::params::{Builder, ParamSet};
use learn::score::{Direction, Scores};
use learn::task::{Batch, Buffers, ConfigOf, Define, Loss, Predictions, Spec, Task};
use std::collections::BTreeMap;
use tensor::Var;
use tensor::ops::cross_entropy::CrossEntropy;
use unix::Result;
use unix::config::Violations;

/// The task that trains the network.
pub struct CycleVaeTask {
    network: Network,
    sets: PairSets,
    drawing: Drawing,
    /// Whether texts have the vectors of others (`data.shuffled`).
    shuffled: bool,
}

/// The vector of the record half a set away: that of another text, which is not its neighbour.
fn other_vector(set: &TokenSet, i: usize) -> Option<&[f32]> {
    let n = set.len();
    set.vector((i + n.div_ceil(2)) % n)
}

impl Define for CycleVaeTask {
    const SPEC: Spec =
        Spec::new("cycle-vae", "nelbo", Direction::Minimize, include_str!("cycle-vae.yaml"));
    type Data = CycleVaeData;
    type Model = CycleVaeModel;
    type Loss = CycleVaeLoss;

    fn violations(config: &CycleVaeConfig) -> Violations {
        violations(config)
    }

    fn open(config: &ConfigOf<Self>) -> Result<(Self, ParamSet)> {
        let sets = PairSets::open(&config.data)?;
        let sizes = sizes(sets.info(), &config.data.tokens)?;
        let mut builder = Builder::of(config);
        let network = Network::new(&mut builder, &config.model, sizes);
        builder.check()?;
        let drawing = Drawing {
            seed: config.seed,
            batch_size: config.training.batch_size,
            accumulation: config.training.accumulation,
            log_every: config.training.log_every,
            has_unpaired: sets.has_unpaired(),
            loss: config.loss.resolved(),
            preparation: Preparation {
                length: sizes.length,
                padding: sets.info().special.padding,
                normalisation: sets.normalisation.clone(),
            },
        };
        Ok((Self { network, sets, drawing, shuffled: config.data.shuffled }, builder.finish()))
    }
}

impl Task for CycleVaeTask {
    fn sources(&self) -> Vec<(u64, f64)> {
        self.sets.train.shares()
    }

    fn data_hash(&self) -> String {
        self.sets.hash()
    }

    fn input_files(&self) -> Vec<InputFile> {
        self.sets.input_files()
    }

    fn batch(&self, micro_batch: u64, first: u64, samples: &[u64]) -> Result<Batch> {
        let of = |sample: &u64| {
            let (set, i) = self.sets.train.find(*sample);
            let record = Record::of(set, i as usize)?;
            match record.vector {
                Some(_) if self.shuffled => {
                    Ok(Record { vector: other_vector(set, i as usize), ..record })
                }
                _ => Ok(record),
            }
        };
        let records = samples.iter().map(of).collect::<Result<Vec<_>>>()?;
        Ok(self.drawing.batch(&self.network, micro_batch, first, &records))
    }

    fn loss(&self, forward: &Forward, batch: &Batch) -> Result<Loss> {
        let input = |name: &str| batch.input(forward, name);
        let inputs = Inputs::of(forward, batch, "")?;
        let [text, latent] = self.network.forward(forward, &inputs)?;
        let logits = self.network.logits(forward, &text)?;
        let [targets, weights] = [input("targets")?, input("weights")?];
        let text = forward.apply(CrossEntropy::default(), &[&logits, &targets, &weights])?;
        let found = self.network.latents(forward, &latent)?;
        let [targets, weights] = [input("latent_targets")?, input("latent_weights")?];
        let latent = self.drawing.latent_error(forward, &found, &targets, &weights)?;
        let mut parts = vec![(L2T, text), (T2L, latent)];
        let [has_text_cycle, has_latent_cycle] = Drawing::cycles_of(batch);
        if has_text_cycle {
            parts.push((T2L2T, self.drawing.text_cycle(&self.network, forward, batch)?));
        }
        if has_latent_cycle {
            parts.push((L2T2L, self.drawing.latent_cycle(&self.network, forward, batch)?));
        }
        let sums: Vec<(&str, &Var)> = parts.iter().map(|(name, sum)| (*name, sum)).collect();
        let mut loss = Loss::of_parts(forward, batch, &sums)?;
        let found = (&inputs, &found);
        loss.terms.extend(self.drawing.observations(&self.network, forward, batch, found)?);
        Ok(loss)
    }

    fn terms(&self) -> Vec<String> {
        self.drawing.terms()
    }

    fn frozen(&self, update: u64) -> &'static [&'static str] {
        self.drawing.mode(update).frozen()
    }

    fn warning(&self, terms: &BTreeMap<String, f64>) -> Option<String> {
        self.drawing.warning(terms)
    }

    fn validation_samples(&self) -> u64 {
        self.sets.validation.len() as u64
    }

    /// `nelbo`: the bound of the negative log likelihood of a text given its vector, in nats; `cosine`: the cosine of
    /// the vector that a text is mapped to with its own.
    fn evaluate(&self, forward: &Forward, samples: &[u64], scores: &mut Scores) -> Result<()> {
        let set = &self.sets.validation;
        let records =
            samples.iter().map(|i| Record::of(set, *i as usize)).collect::<Result<Vec<_>>>()?;
        let loss = &self.drawing.loss;
        let runner = Runner { network: &self.network, forward, loss };
        let measure = Measure { runner, preparation: &self.drawing.preparation };
        for bound in measure.bounds(&records, samples)? {
            scores.mean("nelbo", bound, 1.0);
        }
        let latents = measure.latents(&records, samples)?;
        for cosine in measure.cosines(&records, &latents) {
            scores.mean("cosine", cosine, 1.0);
        }
        Ok(())
    }

    /// Predicts `vectors`, the latents of the texts of a batch in units of their deviations, [D].
    fn predict(&self, forward: &Forward, batch: &Batch) -> Result<Predictions> {
        let inputs = Inputs::of(forward, batch, "")?;
        let [_, latent] = self.network.forward(forward, &inputs)?;
        let found = self.network.latents(forward, &latent)?.value().to_host()?;
        let width = self.network.sizes().vector;
        Ok(Predictions::default().with("vectors", width, found.read::<f32>().to_vec()))
    }

    fn buffers(&self) -> Buffers {
        self.drawing.preparation.normalisation.buffers("vector")
    }

    fn dependencies(&self) -> learn::dependency::Dependencies {
        self.sets.dependencies()
    }
}
