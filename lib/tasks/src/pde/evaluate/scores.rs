//! The errors of every model at every step, in the field and in the latents.

use super::batch::{Batch, Models};
use super::errors::{Errors, FieldErrors, Sums};
use super::spectrum::Spectrum;
use crate::pde::latents::LatentScale;

/// What is compared with the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// The operator's rollout, decoded.
    Operator,
    /// The start, which stays as it is.
    Persistence,
    /// The mean of the training data.
    Mean,
    /// The truth through the codec: what no operator on its latents can do better than.
    Codec,
}

impl Model {
    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Persistence => "persistence",
            Self::Mean => "mean",
            Self::Codec => "codec",
        }
    }
}

/// Errors of some models, by model and step.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores<S> {
    models: Vec<Model>,
    /// [models][steps + 1].
    sums: Vec<Vec<S>>,
}

impl<S: Sums> Scores<S> {
    /// No samples yet.
    pub fn new(models: &[Model], steps: usize) -> Self {
        Self { models: models.to_vec(), sums: vec![vec![S::default(); steps + 1]; models.len()] }
    }

    /// The models.
    pub fn models(&self) -> &[Model] {
        &self.models
    }

    /// Steps of the rollouts.
    pub fn steps(&self) -> usize {
        self.sums.first().map_or(0, |sums| sums.len() - 1)
    }

    /// The errors at one step; none when the model was not judged.
    pub fn at(&self, model: Model, step: usize) -> Option<&S> {
        let place = self.models.iter().position(|m| *m == model)?;
        self.sums[place].get(step)
    }

    /// The errors at all steps from 1 on together.
    pub fn rollout(&self, model: Model) -> Option<S> {
        let place = self.models.iter().position(|m| *m == model)?;
        let mut all = S::default();
        self.sums[place].iter().skip(1).for_each(|sums| all.merge(sums));
        Some(all)
    }

    /// Adds those of other samples, of the same models and steps.
    pub fn merge(&mut self, other: &Self) {
        for (mine, others) in self.sums.iter_mut().zip(&other.sums) {
            mine.iter_mut().zip(others).for_each(|(mine, other)| mine.merge(other));
        }
    }

    fn each(&mut self, mut add: impl FnMut(Model, usize, &mut S)) {
        for (model, sums) in self.models.iter().zip(&mut self.sums) {
            sums.iter_mut().enumerate().for_each(|(step, sums)| add(*model, step, sums));
        }
    }
}

/// The errors in every space.
#[derive(Clone, Debug, PartialEq)]
pub struct AllScores {
    /// Of the fields, in physical units.
    pub field: Scores<FieldErrors>,
    /// Of the latents as the codec gives them.
    pub latent: Scores<Errors>,
    /// Of the latents normalised by channel, each channel weighted as in the operator's loss.
    pub latent_weighted: Scores<Errors>,
}

impl AllScores {
    /// No samples yet. Latents are judged only with an operator.
    pub fn new(steps: usize, with_operator: bool) -> Self {
        use Model::{Codec, Mean, Operator, Persistence};
        let (field, latent): (&[Model], &[Model]) = match with_operator {
            true => (&[Operator, Persistence, Mean, Codec], &[Operator, Persistence, Mean]),
            false => (&[Persistence, Mean, Codec], &[]),
        };
        Self {
            field: Scores::new(field, steps),
            latent: Scores::new(latent, steps),
            latent_weighted: Scores::new(latent, steps),
        }
    }

    /// Adds those of other samples.
    pub fn merge(&mut self, other: &Self) {
        self.field.merge(&other.field);
        self.latent.merge(&other.latent);
        self.latent_weighted.merge(&other.latent_weighted);
    }

    /// Adds one rollout of a batch.
    pub fn add(&mut self, batch: &Batch, rollout: usize, means: &Means, spectrum: &Spectrum) {
        self.field.each(|model, step, sums| {
            let prediction = match model {
                Model::Operator => batch.forecast(rollout, step),
                Model::Persistence => batch.truth(rollout, 0),
                Model::Mean => &means.field,
                Model::Codec => batch.reconstruction(rollout, step),
            };
            sums.add(prediction, batch.truth(rollout, step), spectrum);
        });
        let Some(means) = &means.latent else { return };
        let prediction = |model: Model, step: usize| match model {
            Model::Operator => batch.latent_forecast(rollout, step),
            Model::Persistence => batch.latent(rollout, 0),
            Model::Mean => &means.state,
            Model::Codec => batch.latent(rollout, step),
        };
        self.latent.each(|model, step, sums| {
            sums.add(prediction(model, step), batch.latent(rollout, step));
        });
        self.latent_weighted.each(|model, step, sums| {
            let target = means.weighted(batch.latent(rollout, step));
            sums.add(&means.weighted(prediction(model, step)), &target);
        });
    }
}

/// What the mean of the training data predicts.
#[derive(Clone, Debug)]
pub struct Means {
    field: Vec<f32>,
    /// Where latents are judged.
    latent: Option<LatentMeans>,
}

#[derive(Clone, Debug)]
struct LatentMeans {
    state: Vec<f32>,
    scale: LatentScale,
    /// Root of each channel's weight in the operator's loss.
    weights: Vec<f32>,
}

impl Means {
    /// Those of the data that the models were trained on.
    pub fn of(models: Models) -> Self {
        let Models { codec, operator } = models;
        let latent = operator.map(|operator| {
            let scale = operator.scale().clone();
            let zeros = vec![0.0; codec.tokens() * codec.dim()];
            let mut state = zeros.clone();
            scale.restore(&zeros, &mut state);
            let weights = scale.weights().read::<f32>().iter().map(|w| w.sqrt()).collect();
            LatentMeans { state, scale, weights }
        });
        let of_channel = codec.normalisation().mean.iter().map(|mean| *mean as f32);
        let field = of_channel.cycle().take(codec.field_len()).collect();
        Self { field, latent }
    }
}

impl LatentMeans {
    fn weighted(&self, latent: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; latent.len()];
        self.scale.normalise(latent, &mut out);
        let weights = self.weights.iter().cycle();
        out.iter_mut().zip(weights).for_each(|(z, weight)| *z *= weight);
        out
    }
}
