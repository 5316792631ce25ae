//! Manifests that divide the records of stores into training, validation and test.

use super::{Content, RecordStore};
use crate::split::{
    By, Divider, Part, Share, SplitName, folder_of, grouped, missed_shares, quotas, shuffled,
};
use crate::torch_order::randperm;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use unix::relative::relative;
use unix::{Error, Result};

/// A manifest of records; all its stores have the same content `C`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound = "C: Content")]
pub struct StoreSplit<C: Content> {
    /// Seed of the random assignment.
    #[serde(with = "unix::decimal")]
    pub seed: u64,
    /// What was divided.
    pub by: By,
    /// The requested shares of train, validation and test.
    pub shares: [Share; 3],
    /// What all stores have in common.
    #[serde(flatten)]
    pub content: C,
    /// The stores; parts refer to them by index.
    pub stores: Vec<StoreEntry>,
    /// Records for training, ascending within each store.
    pub train: Vec<Part>,
    /// Records for validation.
    pub validation: Vec<Part>,
    /// Records for the test.
    pub test: Vec<Part>,
}

/// A store of a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreEntry {
    /// Its folder, relative to that of the manifest if possible.
    pub path: PathBuf,
    /// BLAKE3 hash of its index, which identifies its content.
    pub blake3: String,
    /// Number of its records, used or not.
    pub records: usize,
}

/// What [`divide`] is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Records at random ([`By::Trajectory`]), in their order ([`By::Index`]) or in that of torch ([`By::Torch`]), or whole stores ([`By::File`]).
    pub by: By,
    /// Shares of train, validation and test of the records that are not `fixed`.
    pub shares: [Share; 3],
    /// Stores all of whose records are in one split.
    pub fixed: &'a [(PathBuf, SplitName)],
    /// Seed of the random assignment.
    pub seed: u64,
    /// Groups of texts with a smaller distance also stay together.
    pub near: Option<f64>,
}

/// Groups that are to be one: each has another one that stands for it, or stands for itself.
#[derive(Clone, Debug, Default)]
pub struct SameGroup(HashMap<blake3::Hash, blake3::Hash>);

impl SameGroup {
    /// The group that stands for `group`.
    fn of(&self, mut group: blake3::Hash) -> blake3::Hash {
        while let Some(other) = self.0.get(&group) {
            group = *other;
        }
        group
    }

    /// Makes two groups one.
    pub fn join(&mut self, a: blake3::Hash, b: blake3::Hash) {
        let roots = [a, b].map(|group| self.of(group));
        if roots[0] != roots[1] {
            self.0.insert(roots[0], roots[1]);
        }
        // Short ways for later calls.
        for group in [a, b].into_iter().filter(|group| *group != roots[1]) {
            self.0.insert(group, roots[1]);
        }
    }
}

/// Records by number: store and record.
type Entries = Vec<(usize, usize)>;

/// Divides the records of the stores in `folders`, and of those in `request.fixed`, for a manifest at `manifest`.
///
/// Errors: 66, 65 for the stores; 65 when the contents of stores differ or a store is named twice; 2 for shares that cannot be
/// provided.
pub fn divide<C: Content>(
    request: &Request,
    folders: &[PathBuf],
    manifest: &Path,
) -> Result<StoreSplit<C>> {
    let Request { by, shares, fixed, seed, near } = *request;
    if near.is_some() && by != By::Trajectory {
        return Err(Error::usage(format!("--near: no effect on --by {by}, which ignores groups")));
    }
    let all = folders.iter().chain(fixed.iter().map(|(folder, _)| folder));
    let stores = all.map(|folder| C::Store::open(folder)).collect::<Result<Vec<_>>>()?;
    let Some(first) = stores.first() else { return Err(Error::usage("no stores to split")) };
    for (number, store) in stores.iter().enumerate() {
        let wrong = |what: String| {
            let error = Error::data(format!("{}: {what}", store.folder().display()));
            Err(error)
        };
        let [own, expected] = [store, first].map(RecordStore::content);
        if own != expected {
            let name = first.folder().display();
            return wrong(own.difference(&expected, &name.to_string()));
        }
        if let Some(same) = stores[..number].iter().find(|other| other.hash() == store.hash()) {
            return wrong(format!("has the content of {}; name it once", same.folder().display()));
        }
    }
    let free = &stores[..folders.len()];
    let mut chosen: [Entries; 3] = match by {
        By::Trajectory => {
            let same = near.map(|distance| C::near_groups(free, distance)).transpose()?;
            at_random(free, &same.unwrap_or_default(), shares, seed)?
        }
        By::Index => in_order(free, shares, None)?,
        By::Torch => in_order(free, shares, Some(seed))?,
        By::File => by_store(free, shares, seed)?,
        By::Parameter => {
            return Err(Error::usage(
                "--by parameter: records have no parameter; use another unit",
            ));
        }
    };
    for (number, (_, split)) in (folders.len()..).zip(fixed) {
        chosen[*split as usize].extend((0..stores[number].len()).map(|record| (number, record)));
    }
    let entry = |store: &C::Store| -> Result<StoreEntry> {
        Ok(StoreEntry {
            path: relative(store.folder(), folder_of(manifest))?,
            blake3: store.hash().into(),
            records: store.len(),
        })
    };
    let [train, validation, test] = chosen.map(parts);
    Ok(StoreSplit {
        seed,
        by,
        shares,
        content: first.content(),
        stores: stores.iter().map(entry).collect::<Result<_>>()?,
        train,
        validation,
        test,
    })
}

fn not_provided(what: &str, total: usize) -> impl Fn(String) -> Error {
    move |why| Error::usage(format!("{total} {what}: {why}"))
}

fn entries<R: RecordStore>(stores: &[R]) -> impl Iterator<Item = (usize, usize)> {
    let of_store = |(number, store): (usize, &R)| (0..store.len()).map(move |i| (number, i));
    stores.iter().enumerate().flat_map(of_store)
}

/// At random; records of a group stay together. Every stratum is divided in the same proportions, as far as groups and
/// the size of the stratum permit. The smallest one is divided first, because larger ones have more freedom to compensate.
fn at_random<R: RecordStore>(
    stores: &[R],
    same: &SameGroup,
    shares: [Share; 3],
    seed: u64,
) -> Result<[Entries; 3]> {
    let group = |(s, i): (usize, usize)| same.of(stores[s].group(i));
    let total = stores.iter().map(RecordStore::len).sum();
    let mut wanted = quotas(shares, total).map_err(not_provided("records", total))?;
    let mut strata = grouped(entries(stores).map(|(s, i)| ((s, i), stores[s].stratum(i))));
    strata.sort_by_key(|stratum| stratum.records.len());
    let mut divider = Divider::new(shares, seed);
    let mut rest = total;
    let mut placed = [0; 3];
    for stratum in strata {
        let size = stratum.records.len();
        let groups = grouped(stratum.records.into_iter().map(|entry| (entry, group(entry))));
        let own = divider.stratum(&groups, proportional(wanted, size, rest));
        rest -= size;
        for ((wanted, placed), own) in wanted.iter_mut().zip(&mut placed).zip(own) {
            *wanted = wanted.saturating_sub(own);
            *placed += own;
        }
    }
    let names = SplitName::ALL.into_iter().zip(placed).zip(shares);
    for ((name, placed), share) in names {
        if placed == 0 && !share.is_zero() {
            let groups = grouped(entries(stores).map(|entry| ((), group(entry)))).len();
            return Err(Error::data(format!(
                "{total} records in {groups} groups that stay together leave {name} empty"
            )));
        }
    }
    Ok(divider.chosen)
}

/// The quotas of a stratum with `size` of the `rest` records of which `wanted` are still to be placed. Cumulative
/// proportions are rounded.
fn proportional(wanted: [usize; 3], size: usize, rest: usize) -> [usize; 3] {
    let (mut sum, mut rounded) = (0, 0);
    wanted.map(|wanted| {
        sum += wanted;
        let end = (sum as f64 * size as f64 / rest as f64).round() as usize;
        let own = end - rounded;
        rounded = end;
        own
    })
}

/// The first records for training, the last ones for the test.
fn in_order<R: RecordStore>(
    stores: &[R],
    shares: [Share; 3],
    torch_seed: Option<u64>,
) -> Result<[Entries; 3]> {
    let mut all: Entries = entries(stores).collect();
    if let Some(seed) = torch_seed {
        all = randperm(all.len(), seed).into_iter().map(|i| all[i]).collect();
    }
    let wanted = quotas(shares, all.len()).map_err(not_provided("records", all.len()))?;
    let mut rest = &all[..];
    Ok(wanted.map(|count| {
        let (own, others) = rest.split_at(count);
        rest = others;
        own.to_vec()
    }))
}

/// Whole stores at random.
fn by_store<R: RecordStore>(stores: &[R], shares: [Share; 3], seed: u64) -> Result<[Entries; 3]> {
    let wanted = quotas(shares, stores.len()).map_err(not_provided("stores", stores.len()))?;
    let (random, mut place) = (shuffled(seed, stores.len()), 0);
    Ok(wanted.map(|count| {
        let own = (place..place + count).map(&random);
        place += count;
        own.flat_map(|s| (0..stores[s].len()).map(move |i| (s, i))).collect()
    }))
}

/// Entries as sorted parts.
fn parts(mut entries: Entries) -> Vec<Part> {
    entries.sort_unstable();
    let part = |own: &[(usize, usize)]| Part {
        file: own[0].0,
        samples: own.iter().map(|(_, record)| *record).collect(),
    };
    entries.chunk_by(|a, b| a.0 == b.0).map(part).collect()
}

impl<C: Content> StoreSplit<C> {
    /// Whether the file at `path` says that it is a manifest of such records.
    pub fn is_manifest(path: &Path) -> bool {
        C::MANIFEST.is_format_of(path)
    }

    /// Reads a manifest; the second value is the BLAKE3 hash of its bytes, which identifies it.
    ///
    /// Errors: 66 when it cannot be read; 65 when it is not a manifest, was edited or is inconsistent.
    pub fn load(path: &Path) -> Result<(Self, String)> {
        let (split, hash) = C::MANIFEST.read::<Self>(path)?;
        let exists = |part: &Part| {
            let records = split.stores.get(part.file).map_or(0, |store| store.records);
            part.samples.iter().all(|record| *record < records)
        };
        let parts = || SplitName::ALL.iter().map(|name| split.parts(*name));
        let ascends = |parts: &[Part]| {
            parts.is_sorted_by(|a, b| a.file < b.file)
                && parts.iter().all(|part| part.samples.is_sorted_by(|a, b| a < b))
        };
        let why = match (parts().flatten().all(exists), parts().all(ascends)) {
            (true, true) => return Ok((split, hash)),
            (false, _) => "lists records that its stores do not have; split again",
            (_, false) => "lists records twice or not in ascending order; split again",
        };
        Err(Error::data(why).context(path.display()))
    }

    /// Opens store `number`, for a manifest at `manifest`. Errors: 66 when it is missing; 65 when it is damaged, or not
    /// the store that was divided.
    pub fn open_store(&self, number: usize, manifest: &Path) -> Result<C::Store> {
        let (store, entry) =
            (C::Store::open(&self.store_path(number, manifest))?, &self.stores[number]);
        if (store.hash(), store.len()) != (&*entry.blake3, entry.records)
            || store.content() != self.content
        {
            return Err(Error::data(format!(
                "{}: its content is not that which {} divides; run `ds-prep split` again",
                store.folder().display(),
                manifest.display()
            )));
        }
        Ok(store)
    }

    /// Which splits miss their share by far, see [`missed_shares`].
    pub fn missed_shares(&self) -> Vec<String> {
        if self.by != By::Trajectory {
            return Vec::new();
        }
        let placed =
            SplitName::ALL.map(|name| self.parts(name).iter().map(|p| p.samples.len()).sum());
        let stores: usize = self.stores.iter().map(|store| store.records).sum();
        // Splits without a share have stores of their own.
        let own = placed.iter().zip(self.shares).filter(|(_, share)| share.is_zero());
        let fixed: usize = own.map(|(count, _)| count).sum();
        let Ok(wanted) = quotas(self.shares, stores - fixed) else { return Vec::new() };
        let wanted =
            std::array::from_fn(|split| (!self.shares[split].is_zero()).then_some(wanted[split]));
        let because = "records of a group stay together, and some groups are large";
        missed_shares(placed, wanted, "records", because)
    }

    /// Writes the manifest atomically.
    pub fn save(&self, path: &Path) -> Result<()> {
        C::MANIFEST.write(path, self)
    }

    /// The content of the manifest file, including its seal.
    pub fn text(&self) -> Result<String> {
        C::MANIFEST.text(self)
    }

    /// The records of one split.
    pub fn parts(&self, name: SplitName) -> &[Part] {
        match name {
            SplitName::Train => &self.train,
            SplitName::Validation => &self.validation,
            SplitName::Test => &self.test,
        }
    }

    /// The folder of store `number`, for a manifest at `manifest`.
    pub fn store_path(&self, number: usize, manifest: &Path) -> PathBuf {
        folder_of(manifest).join(&self.stores[number].path)
    }

    /// One row for each split and store, for a manifest at `manifest`.
    pub fn rows(&self, manifest: &Path) -> Vec<PartRow> {
        let row = |name: SplitName, part: &Part| PartRow {
            split: name.to_string(),
            records: part.samples.len(),
            store: self.store_path(part.file, manifest),
        };
        let of_split = |name: SplitName| self.parts(name).iter().map(move |part| row(name, part));
        SplitName::ALL.into_iter().flat_map(of_split).collect()
    }
}

/// The records of a split in one store, for a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PartRow {
    /// The split.
    pub split: String,
    /// Number of records.
    pub records: usize,
    /// The store.
    pub store: PathBuf,
}
