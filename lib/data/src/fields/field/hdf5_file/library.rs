//! The only code that calls the HDF5 library. Regardless of its contents, a file never causes another file to be
//! opened.

use super::super::element::to_f32;
use super::super::packing::Packing;
use super::message::{Ask, Dataset, HelperRequest, Object, Reply, Unwritten};
use hdf5::datatype::ByteOrder;
use hdf5::plist::dataset_create::{FillValue, Layout};
use hdf5::types::{FixedAscii, FixedUnicode, TypeDescriptor, VarLenAscii, VarLenUnicode};
use hdf5::{Hyperslab, LinkType, SliceOrIndex};
use hdf5_sys::h5::HADDR_UNDEF;
use hdf5_sys::h5d::H5Dget_chunk_info_by_coord;
use hdf5_sys::h5l::{H5L_type_t, H5Lunregister};
use ndarray::IxDyn;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::ffi::OsString;
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use tensor::FileDtype;

/// Size in bytes of an open dataset's chunk cache, so that chunks shared by neighbouring trajectories are decompressed
/// only once, and its number of hash slots, a prime.
const CACHE: usize = 32 << 20;
const SLOTS: usize = 10_007;
/// Maximum number of datasets that are kept open, each with its chunk cache.
const OPEN_DATASETS: usize = 16;
/// Kind of a dataset that netCDF-4 stores for a dimension without coordinates: its zeros must be ignored.
pub(in super::super) const ONLY_DIMENSION: &str = "netCDF dimension without coordinates";
/// Prefix of the attribute `NAME` of a dataset for a dimension without coordinates.
const DIMENSION_NAME: &str = "This is a netCDF dimension but not a netCDF variable";
/// Maximum number of chunks that are looked up to find the first missing chunk.
const MAX_SEARCHED: usize = 1 << 14;
/// Maximum number of values in an attribute.
const MAX_ATTRIBUTE: usize = 65_536;

/// The open files and datasets.
#[derive(Debug, Default)]
pub(super) struct Library {
    files: HashMap<u64, hdf5::File>,
    /// The most recently read datasets, latest last.
    datasets: Vec<(u64, String, hdf5::Dataset)>,
}

impl Library {
    /// Answers one request; the second value holds the numbers of the answer as bytes.
    pub fn answer(&mut self, request: HelperRequest) -> (Reply, Vec<u8>) {
        let HelperRequest { file: number, path, ask } = request;
        if let Ask::Close = ask {
            self.datasets.retain(|(file, ..)| *file != number);
            self.files.remove(&number);
            return (Ok(Value::Null), Vec::new());
        }
        let failed = |cause: hdf5::Error| (Err(cause.to_string()), Vec::new());
        let file = match self.files.get(&number) {
            Some(file) => file.clone(),
            None => match open(path) {
                Ok(file) => self.files.entry(number).insert_entry(file).get().clone(),
                Err(cause) => return failed(cause),
            },
        };
        match self.look(number, &file, ask) {
            Ok((value, numbers)) => (Ok(value), numbers),
            Err(cause) => failed(cause),
        }
    }

    fn look(&mut self, number: u64, file: &hdf5::File, ask: Ask) -> hdf5::Result<(Value, Vec<u8>)> {
        let value = match ask {
            Ask::Open | Ask::Close => Value::Null,
            Ask::Names => json!(names(file)),
            Ask::Kind(name) => json!(kind(file, &name)),
            Ask::Shape(name) => {
                let found = dataset(file, &name).ok().filter(|found| !is_only_dimension(found));
                json!(found.map(|found| found.shape()))
            }
            Ask::Numbers(name, packing) => {
                let mut values = dataset(file, &name)?.read_raw::<f64>()?;
                values.iter_mut().for_each(|value| *value = packing.unpack(*value));
                return Ok((Value::Null, bytemuck::cast_slice(&values).to_vec()));
            }
            Ask::Dataset(name) => json!(describe(file, &dataset(file, &name)?)?),
            Ask::Part(name, ranges, packing) => {
                let dataset = self.dataset(number, file, name)?;
                let (values, beyond) = part(&dataset, ranges, &packing)?;
                return Ok((json!(beyond), bytemuck::cast_slice(&values).to_vec()));
            }
            Ask::Attributes(place) => Value::Object(attributes(file, place)),
            Ask::Groups => json!(groups(file)),
        };
        Ok((value, Vec::new()))
    }

    /// Opens a dataset for reading and keeps it open.
    fn dataset(
        &mut self,
        number: u64,
        file: &hdf5::File,
        name: String,
    ) -> hdf5::Result<hdf5::Dataset> {
        let same = |(file, other, _): &(u64, String, _)| *file == number && *other == name;
        let found = match self.datasets.iter().position(same) {
            Some(at) => self.datasets.remove(at).2,
            None => dataset(file, &name)?,
        };
        if self.datasets.len() == OPEN_DATASETS {
            self.datasets.remove(0);
        }
        self.datasets.push((number, name, found.clone()));
        Ok(found)
    }
}

/// Opens a file. Locking is off: many ranks read the same file, and network file systems often do not support locks.
fn open(path: Vec<u8>) -> hdf5::Result<hdf5::File> {
    refuse_external_links();
    hdf5::File::with_options()
        .with_fapl(|access| access.file_locking(false).chunk_cache(SLOTS, CACHE, 0.75))
        .open(OsString::from_vec(path))
}

/// Makes external links unresolvable from now on: opening their target might never return.
fn refuse_external_links() {
    hdf5::sync::sync(|| {
        // SAFETY: the library's lock is held. A second call fails without any effect.
        unsafe { H5Lunregister(H5L_type_t::H5L_TYPE_EXTERNAL) };
    });
}

/// Opens a dataset whose values are stored in the file itself.
fn dataset(file: &hdf5::File, name: &str) -> hdf5::Result<hdf5::Dataset> {
    let dataset = file.dataset(name)?;
    if is_elsewhere(&dataset)? {
        return Err(hdf5::Error::from(format!("`{name}` stores its values in other files")));
    }
    Ok(dataset)
}

/// Whether the values are stored in other files. Makes no call that would open those files.
fn is_elsewhere(dataset: &hdf5::Dataset) -> hdf5::Result<bool> {
    let creation = dataset.dcpl()?;
    Ok(creation.get_layout()? == Layout::Virtual || !creation.get_external()?.is_empty())
}

fn is_only_dimension(dataset: &hdf5::Dataset) -> bool {
    let name = dataset.attr("NAME").and_then(|attribute| value_of(&attribute));
    name.is_ok_and(|name| name.as_str().is_some_and(|name| name.starts_with(DIMENSION_NAME)))
}

fn names(file: &hdf5::File) -> Vec<String> {
    let mut names = file.member_names().unwrap_or_default();
    names.sort();
    names
}

fn kind(file: &hdf5::File, name: &str) -> &'static str {
    let external = |other: &str, info: hdf5::LinkInfo| {
        Ok((other == name).then_some(info.link_type == LinkType::External))
    };
    let order = (Default::default(), Default::default());
    if file.find_link(order.0, order.1, external).ok().flatten() == Some(true) {
        "external link, which is not followed"
    } else if file.dataset(name).is_ok_and(|dataset| is_elsewhere(&dataset).unwrap_or(false)) {
        "dataset in other files, which are not read"
    } else if file.dataset(name).is_ok_and(|dataset| is_only_dimension(&dataset)) {
        ONLY_DIMENSION
    } else {
        "group"
    }
}

fn describe(file: &hdf5::File, dataset: &hdf5::Dataset) -> hdf5::Result<Dataset> {
    let dtype = dataset.dtype()?;
    if !dtype.is::<f32>() && dtype.conv_to::<f32>().is_none() {
        return Err(hdf5::Error::from("it is not numeric"));
    }
    let known = [
        (dtype.is::<f32>(), FileDtype::F32),
        (dtype.is::<f64>(), FileDtype::F64),
        (dtype.is::<half::f16>(), FileDtype::F16),
    ];
    let number = known.into_iter().find(|(is_it, _)| *is_it).map(|(_, number)| number);
    let creation = dataset.dcpl()?;
    let chosen = creation.fill_value_defined() == FillValue::UserDefined;
    let kind = dtype.to_descriptor();
    let little = dtype.byte_order() == ByteOrder::LittleEndian && file.userblock() == 0;
    Ok(Dataset {
        shape: dataset.shape(),
        mapped: dataset.offset().zip(number).filter(|_| little),
        size: dtype.size(),
        stored: dataset.storage_size(),
        chunk: dataset.chunk(),
        is_compressed: !creation.get_filters()?.is_empty(),
        unwritten: unwritten(dataset),
        attributes: all_attributes(dataset),
        fill: creation.get_fill_value_as::<f64>().ok().flatten().filter(|_| chosen),
        is_integer: matches!(kind, Ok(TypeDescriptor::Integer(_) | TypeDescriptor::Unsigned(_))),
    })
}

/// Counts the chunks of a dataset that are not stored, and locates the first of them.
fn unwritten(dataset: &hdf5::Dataset) -> Option<Unwritten> {
    let (shape, chunk) = (dataset.shape(), dataset.chunk()?);
    let counts: Vec<usize> = shape.iter().zip(&chunk).map(|(n, size)| n.div_ceil(*size)).collect();
    let of = counts.iter().try_fold(1usize, |all, count| all.checked_mul(*count))?;
    let missing = of.checked_sub(dataset.num_chunks()?).filter(|missing| *missing > 0)?;
    // The index of the first value of chunk number `number`, in C order.
    let index = |mut number: usize| {
        let mut index = vec![0; counts.len()];
        for (place, (count, size)) in index.iter_mut().zip(counts.iter().zip(&chunk)).rev() {
            *place = number % count * size;
            number /= count;
        }
        index
    };
    let first = (0..of.min(MAX_SEARCHED)).map(index).find(|index| !is_stored(dataset, index));
    Some(Unwritten { missing, of, first })
}

/// Whether the chunk that begins at `index` is stored.
fn is_stored(dataset: &hdf5::Dataset, index: &[usize]) -> bool {
    let offset: Vec<u64> = index.iter().map(|place| *place as u64).collect();
    let (mut mask, mut address, mut size) = (0, HADDR_UNDEF, 0);
    let status = hdf5::sync::sync(|| {
        // SAFETY: the library's lock is held, the dataset is open, and `offset` has one number for each dimension.
        unsafe {
            H5Dget_chunk_info_by_coord(
                dataset.id(),
                offset.as_ptr(),
                &mut mask,
                &mut address,
                &mut size,
            )
        }
    });
    status >= 0 && address != HADDR_UNDEF
}

/// Reads the values at `ranges` in C order; the second value holds the bits, as f64, of a value that is too large for
/// f32.
fn part(
    dataset: &hdf5::Dataset,
    ranges: Vec<Range<usize>>,
    packing: &Packing,
) -> hdf5::Result<(Vec<f32>, Option<u64>)> {
    let selection: Vec<SliceOrIndex> = ranges.into_iter().map(Into::into).collect();
    let selection = Hyperslab::from(selection);
    if !packing.is_trivial() {
        // Reads in f64, because integers rounded to f32 might not equal the markers of missing values.
        let mut beyond = None;
        let stored = dataset.read_slice::<f64, _, IxDyn>(selection)?;
        let unpack = |stored: &f64| to_f32(packing.unpack(*stored), &mut beyond);
        let values = stored.iter().map(unpack).collect();
        return Ok((values, beyond.map(f64::to_bits)));
    }
    let values = dataset.read_slice::<f32, _, IxDyn>(selection.clone())?;
    let mut beyond = None;
    if dataset.dtype()?.size() > 4 && values.iter().any(|value| value.is_infinite()) {
        let exact = dataset.read_slice::<f64, _, IxDyn>(selection)?;
        let too_large = |value: &&f64| value.is_finite() && (**value as f32).is_infinite();
        beyond = exact.iter().find(too_large).map(|value| value.to_bits());
    }
    Ok((values.into_raw_vec_and_offset().0, beyond))
}

/// Calls `look` with the root, or with the group or dataset `place`.
fn at<T>(file: &hdf5::File, place: Object, look: impl FnOnce(&hdf5::Location) -> T) -> Option<T> {
    let Some(place) = place else { return Some(look(file)) };
    match file.group(&place) {
        Ok(group) => Some(look(&group)),
        Err(_) => file.dataset(&place).ok().map(|dataset| look(&dataset)),
    }
}

/// Reads all attributes. An unsupported type is represented by a list that describes it, because plain text would look
/// like the value.
fn attributes(file: &hdf5::File, place: Object) -> Map<String, Value> {
    at(file, place, all_attributes).unwrap_or_default()
}

fn all_attributes(place: &hdf5::Location) -> Map<String, Value> {
    let value = |name: String| {
        let attribute = place.attr(&name).ok()?;
        let unreadable = |_| json!(["(not readable)"]);
        Some((name, value_of(&attribute).unwrap_or_else(unreadable)))
    };
    place.attr_names().unwrap_or_default().into_iter().filter_map(value).collect()
}

fn groups(file: &hdf5::File) -> Vec<String> {
    // Checking the links is enough, and fast with thousands of groups.
    let has_data = |name: &String| file.group(name).is_ok_and(|g| g.link_exists("data"));
    let mut groups: Vec<String> = names(file).into_iter().filter(has_data).collect();
    // PDEBench's four-digit names sort correctly as text only up to 9999.
    groups.sort_by_cached_key(|name| name.parse::<u64>().ok());
    groups
}

/// Reads an attribute as a single value, or as the list of all values.
fn value_of(attribute: &hdf5::Attribute) -> hdf5::Result<Value> {
    fn list<T: Into<Value>>(values: Vec<T>) -> Value {
        let mut all: Vec<Value> = values.into_iter().map(Into::into).collect();
        if all.len() == 1 { all.remove(0) } else { all.into() }
    }
    let kind = attribute.dtype()?.to_descriptor()?;
    let described = || json!([format!("{kind} {:?}", attribute.shape())]);
    Ok(match &kind {
        _ if attribute.size() > MAX_ATTRIBUTE => described(),
        TypeDescriptor::Float(_) => list(attribute.read_raw::<f64>()?),
        TypeDescriptor::Integer(_) => list(attribute.read_raw::<i64>()?),
        TypeDescriptor::Unsigned(_) => list(attribute.read_raw::<u64>()?),
        TypeDescriptor::Boolean => list(attribute.read_raw::<bool>()?),
        kind if attribute.size() == 1 => {
            text_of(attribute, kind).map_or_else(described, Value::String)
        }
        _ => described(),
    })
}

/// Reads the value of a text attribute.
fn text_of(attribute: &hdf5::Attribute, kind: &TypeDescriptor) -> Option<String> {
    fn first<T: ToString>(values: hdf5::Result<Vec<T>>) -> Option<String> {
        values.ok()?.first().map(ToString::to_string)
    }
    match kind {
        TypeDescriptor::VarLenUnicode => first(attribute.read_raw::<VarLenUnicode>()),
        TypeDescriptor::VarLenAscii => first(attribute.read_raw::<VarLenAscii>()),
        // HDF5 converts shorter strings to longer ones.
        TypeDescriptor::FixedUnicode(..=1024) => first(attribute.read_raw::<FixedUnicode<1024>>()),
        TypeDescriptor::FixedAscii(..=1024) => first(attribute.read_raw::<FixedAscii<1024>>()),
        _ => None,
    }
}
