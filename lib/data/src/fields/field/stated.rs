//! The metadata of a file: attributes of the root, of the dataset and of each trajectory.

use super::coordinates::TIME_UNITS;
use super::formats;
use super::packing::is_of_storage;
use super::source::{self, Source};
use super::{Field, FieldArrays};
use crate::fields::parameter::{Parameter, in_file_name};
use serde_json::{Map, Value};
use unix::Result;

/// Attribute in which imports keep the group attributes of the source, as a JSON list with one object per trajectory.
pub(crate) const TRAJECTORY_ATTRIBUTES: &str = "trajectory_attributes";

impl Field {
    /// Group of each trajectory; empty if there are no groups.
    fn group_names(&self) -> Vec<&str> {
        let names = self.groups().iter();
        names.map(|data| data.rsplit_once('/').map_or("", |(group, _)| group)).collect()
    }

    /// The dataset that holds the states of all trajectories, if there is one.
    fn dataset(&self) -> Option<&str> {
        match &self.components.last()?.place {
            FieldArrays::One(array) => Some(array.name()),
            FieldArrays::Each { .. } => None,
        }
    }

    /// Returns the attributes of the root, plus those of the dataset that the root lacks. Errors: see [`Field::open`].
    pub fn attributes(&self) -> Result<Map<String, Value>> {
        let file = formats::open(&self.path, true)?;
        let mut all = file.attributes(None);
        if let Some(dataset) = self.dataset() {
            add(&mut all, &*file, dataset);
        }
        if let Some((_, unit)) = self.found.units.iter().find(|(name, _)| name == "t") {
            all.insert(TIME_UNITS.into(), unit.clone().into());
        }
        Ok(all)
    }

    /// Returns the group attributes of the trajectories `samples`, in order; empty if none has any. Errors: see
    /// [`Field::open`]; 65 when the list of an imported file is damaged.
    pub fn trajectory_attributes(&self, samples: &[usize]) -> Result<Vec<Map<String, Value>>> {
        let file = formats::open(&self.path, true)?;
        let data_error =
            |what: String| file.invalid(format!("attribute `{TRAJECTORY_ATTRIBUTES}`: {what}"));
        let all: Vec<Map<String, Value>> = if self.groups().is_empty() {
            let Some(text) = file.text(TRAJECTORY_ATTRIBUTES) else { return Ok(Vec::new()) };
            let listed: Vec<Map<String, Value>> =
                serde_json::from_str(&text).map_err(|cause| data_error(cause.to_string()))?;
            let one = |sample: &usize| listed.get(*sample).cloned();
            let count = self.trajectories();
            let missing =
                || data_error(format!("{} entries for {count} trajectories", listed.len()));
            samples.iter().map(one).collect::<Option<_>>().ok_or_else(missing)?
        } else {
            let groups = self.group_names();
            let one = |sample: &usize| {
                let mut all = file.attributes(Some(groups[*sample]));
                add(&mut all, &*file, &self.groups()[*sample]);
                all
            };
            samples.iter().map(one).collect()
        };
        Ok(if all.iter().all(Map::is_empty) { Vec::new() } else { all })
    }

    /// Describes where the file states a different value for a parameter in `given`: in an attribute, a line of
    /// `config`, a list or the file name. Values that differ only by f32 rounding count as equal. Errors: see
    /// [`Field::open`].
    pub fn contradiction(&self, given: &Parameter) -> Result<Option<String>> {
        let file = formats::open(&self.path, true)?;
        let differs = |name: &str, value: f64| {
            let wanted = given.get(name)?;
            let scale = f64::from(f32::EPSILON) * wanted.abs().max(value.abs());
            let same = (value - wanted).abs() <= scale;
            (!same).then(|| format!("{}={value}", name.to_ascii_lowercase()))
        };
        let datasets = self.groups().iter().map(String::as_str).chain(self.dataset());
        let places = self.group_names().into_iter().chain(datasets).map(Some);
        for place in std::iter::once(None).chain(places) {
            let stated = source::stated(&*file, place)?;
            if let Some(found) = stated.iter().find_map(|(name, value)| differs(name, *value)) {
                let of = place.map_or("its attributes".into(), |place| format!("`{place}`"));
                return Ok(Some(format!("{of}: {found}")));
            }
        }
        for (name, values) in &self.lists {
            if let Some(found) = values.iter().find_map(|value| differs(name, *value)) {
                return Ok(Some(format!("dataset `{name}`: {found}")));
            }
        }
        let in_name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let of_name = given.iter().find_map(|(name, _)| {
            let value = in_file_name(&in_name, name)?;
            differs(name, value)
        });
        Ok(of_name.map(|found| format!("its name: {found}")))
    }
}

/// Adds the attributes of `place` whose names are new, except those that describe how it is stored.
fn add(all: &mut Map<String, Value>, file: &dyn Source, place: &str) {
    let kept = |(name, _): &(String, Value)| !is_of_storage(name);
    for (name, value) in file.attributes(Some(place)).into_iter().filter(kept) {
        all.entry(name).or_insert(value);
    }
}
