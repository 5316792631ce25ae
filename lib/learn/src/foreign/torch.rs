//! Locates the tensors in a PyTorch file: a zip archive with a pickle, `NAME/data.pkl`, and the contents of each
//! storage, `NAME/data/KEY`.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read};

use super::pickle::{self, Contents, MAX_PICKLE, Value};
use super::{MAX_TENSORS, TensorEntry, span};
use tensor::safetensors::MAX_NAME;
use unix::text::quote;
use zip::{CompressionMethod, ZipArchive};

/// Maximum nesting depth of containers.
const MAX_DEPTH: usize = 32;
/// Maximum number of values visited; one container may be referenced by many others.
const MAX_VISITS: usize = 1 << 20;
/// Maximum total length of all names in bytes, because nested containers repeat the names of their parents.
const MAX_NAMES: usize = 16 << 20;

/// Byte range of an archive entry in the file; entries are always stored uncompressed.
#[derive(Clone, Copy)]
struct Entry {
    start: u64,
    size: u64,
}

/// Lists the tensors of a PyTorch file. The error describes what is wrong with the file.
pub(super) fn tensors(file: &File) -> Result<Vec<TensorEntry>, String> {
    let damaged = |cause: zip::result::ZipError| format!("its archive is damaged: {cause}");
    let mut archive = ZipArchive::new(BufReader::new(file)).map_err(damaged)?;
    let mut entries: HashMap<String, Entry> = HashMap::new();
    for number in 0..archive.len() {
        let found = archive.by_index_raw(number).map_err(damaged)?;
        let (name, start) = (found.name().to_string(), found.data_start().unwrap_or(u64::MAX));
        // A stored entry cannot be larger than the file.
        if found.compression() != CompressionMethod::Stored || found.encrypted() {
            let name = quote(&name);
            return Err(format!("{name} is compressed or encrypted, which PyTorch never does"));
        }
        entries.insert(name, Entry { start, size: found.size() });
    }
    let pickle = entries.keys().filter(|name| name.ends_with("/data.pkl")).min();
    let pickle = pickle.ok_or("not written by torch.save: the archive contains no data.pkl")?;
    let root = pickle.strip_suffix("data.pkl").unwrap_or_default();
    let mut contents = |name: &str| {
        if let Some(Entry { size, .. }) = entries.get(name).filter(|entry| entry.size > MAX_PICKLE)
        {
            return Err(format!("{} has {size} bytes, more than {MAX_PICKLE}", quote(name)));
        }
        let (mut bytes, damaged) =
            (Vec::new(), |cause| format!("{} is damaged: {cause}", quote(name)));
        let mut found = archive.by_name(name).map_err(|cause| damaged(cause.into()))?;
        found.read_to_end(&mut bytes).map_err(damaged)?;
        Ok(bytes)
    };
    let order = format!("{root}byteorder");
    if entries.contains_key(&order) && contents(&order)? != b"little" {
        return Err("it was written on a big-endian machine".into());
    }
    let (contents, value) = pickle::read(&contents(pickle)?)?;
    let data = format!("{root}data/");
    let storages =
        entries.iter().filter_map(|(name, entry)| Some((name.strip_prefix(&data)?, *entry)));
    let storages: HashMap<&str, Entry> = storages.collect();
    let mut walk = Walk { contents: &contents, storages, visits: 0, names: 0, found: Vec::new() };
    walk.value(&value, "", 0)?;
    Ok(walk.found)
}

struct Walk<'a> {
    contents: &'a Contents,
    storages: HashMap<&'a str, Entry>,
    visits: usize,
    names: usize,
    found: Vec<TensorEntry>,
}

impl Walk<'_> {
    /// Collects the tensors in a value, recursively, and ignores everything else.
    fn value(&mut self, value: &Value, name: &str, depth: usize) -> Result<(), String> {
        self.visits += 1;
        if depth > MAX_DEPTH || self.visits > MAX_VISITS || name.len() > MAX_NAME {
            return Err("its containers are too deep or too many".into());
        }
        let join = |part: &str| {
            if name.is_empty() { part.to_string() } else { format!("{name}.{part}") }
        };
        let contents = self.contents;
        match value {
            Value::Tensor(view) => {
                self.names += name.len();
                if self.found.len() == MAX_TENSORS || self.names > MAX_NAMES {
                    return Err(format!(
                        "more than {MAX_TENSORS} tensors, or their names are too long"
                    ));
                }
                let stored = self.stored(*view, name)?;
                self.found.push(stored);
                Ok(())
            }
            Value::List(at) | Value::Tuple(at) => {
                let mut items = contents.containers[*at].iter().enumerate();
                items.try_for_each(|(i, v)| self.value(v, &join(&i.to_string()), depth + 1))
            }
            Value::Dict(at) => contents.containers[*at].chunks_exact(2).try_for_each(|pair| {
                let key = match pair[0] {
                    Value::Text(at) if contents.texts[at].len() <= MAX_NAME => {
                        contents.texts[at].clone()
                    }
                    Value::Int(number) => number.to_string(),
                    _ => {
                        return Err(format!(
                            "a key in {name:?} is neither a short string nor an integer"
                        ));
                    }
                };
                self.value(&pair[1], &join(&key), depth + 1)
            }),
            _ => Ok(()),
        }
    }

    fn stored(&self, view: usize, name: &str) -> Result<TensorEntry, String> {
        let view = &self.contents.views[view];
        let storage = &self.contents.storages[view.storage];
        let key = self.contents.texts[storage.key].as_str();
        let Some(entry) = self.storages.get(key) else {
            return Err(format!("tensor {}: storage {} is missing", quote(name), quote(key)));
        };
        let width = storage.dtype.bytes() as u64;
        if storage.count.checked_mul(width) != Some(entry.size) {
            return Err(format!(
                "tensor {name}: its storage has {} bytes, expected {} {}",
                entry.size, storage.count, storage.dtype
            ));
        }
        // Index of the last element, in u128 so that it cannot overflow; an empty tensor has no last element.
        let end = span(&view.shape, &view.strides)
            .map_or(u128::MAX, |span| span.saturating_add(u128::from(view.offset)));
        let empty = view.shape.contains(&0);
        if view.shape.len() != view.strides.len() || (!empty && end > u128::from(storage.count)) {
            return Err(format!(
                "tensor {name} {:?} with strides {:?} from offset {} exceeds its storage of {} elements",
                view.shape, view.strides, view.offset, storage.count
            ));
        }
        let start =
            if empty { entry.start } else { entry.start.saturating_add(view.offset * width) };
        Ok(TensorEntry {
            name: name.into(),
            dtype: storage.dtype,
            shape: view.shape.clone(),
            strides: view.strides.clone(),
            start,
            part: 0,
            quantised: None,
        })
    }
}
