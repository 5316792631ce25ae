//! The latents that the stage reads.

use super::{LatentData, LatentSource};
use data::latents::LatentStore;
use unix::{Error, Result};

/// Opens the latents for training and for validation, with their weights. Errors (65): they are of different
/// codecs, or of different splits of a data set.
pub(super) fn open_all(data: &LatentData) -> Result<[Vec<(LatentStore, f64)>; 2]> {
    let first = LatentSource {
        train: data.train.clone(),
        validation: data.validation.clone(),
        weight: data.weight,
    };
    let [mut training, mut validating]: [Vec<(LatentStore, f64)>; 2] = Default::default();
    for LatentSource { train, validation, weight } in std::iter::once(&first).chain(&data.others) {
        let stores = [LatentStore::open(train, None)?, LatentStore::open(validation, None)?];
        let [a, b] = [0, 1].map(|i| stores[i].key());
        if (&a.codec, &a.normalisation, &a.split) != (&b.codec, &b.normalisation, &b.split) {
            return Err(Error::data(format!(
                "{} and {} were made with different codecs or splits",
                train.display(),
                validation.display()
            )));
        }
        if let Some((first, _)) = training.first() {
            let (one, other) = (first.key(), stores[0].key());
            if (&one.codec, &one.normalisation) != (&other.codec, &other.normalisation) {
                return Err(Error::data(format!(
                    "{} and {} were made with different codecs; only latents of one codec are read together",
                    data.train.display(),
                    train.display()
                )));
            }
        }
        let [train, validation] = stores;
        training.push((train, *weight));
        validating.push((validation, *weight));
    }
    Ok([training, validating])
}
