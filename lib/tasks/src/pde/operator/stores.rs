//! Opens the latent stores of task `operator`.

use super::{LatentData, LatentSource};
use crate::common::sources::{refuse_overlap, source_key};
use data::fields::latents::LatentStore;
use data::fields::split::SplitName;
use std::path::Path;
use unix::{Error, Result};

/// Opens the latents for training and validation, with their weights.
///
/// Errors: 65 when they were made with different codecs or manifests; 78 when a key names latents of the wrong split,
/// or validation latents contain a training trajectory.
pub(super) fn open_all(data: &LatentData) -> Result<[Vec<(LatentStore, f64)>; 2]> {
    let first = LatentSource {
        train: data.train.clone(),
        validation: data.validation.clone(),
        weight: data.weight,
    };
    let [mut training, mut validating]: [Vec<(LatentStore, f64)>; 2] = Default::default();
    for LatentSource { train, validation, weight } in
        std::iter::once(&first).chain(&data.additional)
    {
        let number = training.len();
        let stores = [
            open_split(train, SplitName::Train, &source_key(number, "train"))?,
            open_split(validation, SplitName::Validation, &source_key(number, "validation"))?,
        ];
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
                    "{} and {} were made with different codecs; all latents must be made with the same codec",
                    data.train.display(),
                    train.display()
                )));
            }
        }
        let [train, validation] = stores;
        training.push((train, *weight));
        validating.push((validation, *weight));
    }
    refuse_overlap([&training, &validating], |store, number| {
        let key = source_key(number, &store.key().split_name.to_string());
        (format!("{key} ({})", store.folder().display()), store.provenance().to_vec())
    })?;
    Ok([training, validating])
}

/// Opens the latents named by `key`. Errors: those of [`LatentStore::open`]; 78 when they belong to a different split.
pub(in crate::pde) fn open_split(
    folder: &Path,
    expected: SplitName,
    key: &str,
) -> Result<LatentStore> {
    let store = LatentStore::open(folder, None)?;
    let found = store.key().split_name;
    if found == expected {
        return Ok(store);
    }
    Err(Error::config(format!(
        "{key}: {} contains latents of the {found} split, not of the {expected} split; name the folder that \
         `latent-cache make` wrote for it",
        folder.display()
    )))
}
