//! What files of other programs say about their numbers: packing, missing values, chunks that were never written.

use crate::common::fresh_seed;
use data::fields::check::{ProblemKind, check_files};
use data::fields::field::{Field, ReadOptions};
use data::fields::import::{Format, ImportOptions, import, targets};
use hdf5::types::VarLenUnicode;
use serde_json::json;
use std::fs;
use std::path::Path;
use unix::Exit;

const SHAPE: [usize; 3] = [2, 3, 4];
/// A stored number, and the marker of missing values.
const MARKER: i16 = -32767;

/// Stored numbers with one missing value, and the values: 280 + 0.5 * stored.
fn numbers() -> (Vec<i16>, Vec<f32>) {
    let random = tensor::random::Philox::new(fresh_seed(), tensor::random::Purpose::Test);
    let mut stored: Vec<i16> =
        (0..24).map(|i| (random.uniform(0, i) * 30_000.0) as i16 - 15_000).collect();
    stored[7] = MARKER;
    let value = |n: &i16| if *n == MARKER { f32::NAN } else { 280.0 + 0.5 * f32::from(*n) };
    let values = stored.iter().map(value).collect();
    (stored, values)
}

fn text(text: &str) -> VarLenUnicode {
    text.parse().unwrap()
}

/// A packed HDF5 file as netCDF-4 writes it, with or without chunks.
fn hdf5_file(path: &Path, stored: &[i16], chunked: bool) {
    let file = hdf5::File::create(path).unwrap();
    let builder = file.new_dataset::<i16>().shape(SHAPE);
    let builder = if chunked { builder.chunk((1, 3, 4)).deflate(3) } else { builder };
    let dataset = builder.create("tensor").unwrap();
    dataset.write_raw(stored).unwrap();
    let attribute = |name: &str, value: f64| {
        dataset.new_attr::<f64>().create(name).unwrap().write_scalar(&value).unwrap();
    };
    attribute("scale_factor", 0.5);
    attribute("add_offset", 280.0);
    dataset.new_attr::<i16>().create("_FillValue").unwrap().write_scalar(&MARKER).unwrap();
    dataset.new_attr::<VarLenUnicode>().create("units").unwrap().write_scalar(&text("K")).unwrap();
    file.new_attr::<f64>().create("nu").unwrap().write_scalar(&0.5).unwrap();
}

/// An array of a Zarr group, in one chunk.
fn zarr_array(folder: &Path, shape: &[usize], dtype: &str, fill: f64, bytes: &[u8]) {
    fs::create_dir_all(folder).unwrap();
    let description = json!({
        "zarr_format": 2, "shape": shape, "chunks": shape, "dtype": dtype, "compressor": null,
        "fill_value": fill, "order": "C", "filters": null
    });
    fs::write(folder.join(".zarray"), description.to_string()).unwrap();
    fs::write(folder.join(vec!["0"; shape.len()].join(".")), bytes).unwrap();
}

/// The same as a Zarr group that xarray wrote, with big-endian numbers; the marker is the fill value.
fn zarr_group(path: &Path, stored: &[i16]) {
    let bytes: Vec<u8> = stored.iter().flat_map(|n| n.to_be_bytes()).collect();
    zarr_array(&path.join("tensor"), &SHAPE, ">i2", f64::from(MARKER), &bytes);
    let attributes = json!({"scale_factor": 0.5, "add_offset": 280, "units": "K",
                            "_ARRAY_DIMENSIONS": ["n", "t", "x"]});
    fs::write(path.join("tensor/.zattrs"), attributes.to_string()).unwrap();
    fs::write(path.join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    fs::write(path.join(".zattrs"), r#"{"nu": 0.5}"#).unwrap();
    // Seconds since 1970, beyond the precision of f32.
    let times: Vec<u8> = (0..3).flat_map(|i| (1.7e9 + 6.0 * f64::from(i)).to_le_bytes()).collect();
    zarr_array(&path.join("t-coordinate"), &[3], "<f8", 0.0, &times);
}

/// All values of a field.
fn all(field: &Field) -> Vec<f32> {
    let mut out = vec![0.0; field.trajectories() * field.shape().trajectory_len()];
    let rows = out.chunks_exact_mut(field.shape().trajectory_len());
    rows.enumerate().for_each(|(i, row)| field.read(i, row).unwrap());
    out
}

/// NaN equals NaN.
fn assert_same(found: &[f32], expected: &[f32], what: &str) {
    let same = |(a, b): (&f32, &f32)| a == b || a.is_nan() && b.is_nan();
    assert!(found.iter().zip(expected).all(same), "{what}: {found:?}, not {expected:?}");
}

#[test]
fn packed_numbers_are_unpacked_and_markers_are_missing_in_every_format() {
    let folder = tempfile::tempdir().unwrap();
    let (stored, values) = numbers();
    let paths = ["contiguous.hdf5", "chunked.hdf5", "group.zarr"].map(|n| folder.path().join(n));
    hdf5_file(&paths[0], &stored, false);
    hdf5_file(&paths[1], &stored, true);
    zarr_group(&paths[2], &stored);
    for path in &paths {
        let name = path.file_name().unwrap().to_str().unwrap();
        let field = Field::open(path).unwrap();
        assert_same(&all(&field), &values, name);
        if name == "group.zarr" {
            assert_eq!(field.t(), [1.7e9, 1.7e9 + 6.0, 1.7e9 + 12.0]);
        }
        let found = check_files(std::slice::from_ref(path), 1e9).problems;
        let missing: Vec<_> =
            found.iter().filter(|one| one.kind == ProblemKind::NotFinite).collect();
        assert_eq!(missing.len(), 1, "{found:?}");
        assert_eq!(missing[0].place, crate::faults::place(0, Some(1), Some(3)));
        assert!(missing[0].message.contains("missing"), "{}", missing[0].message);
        // A copy holds values, and does not say that it is packed.
        let plan = ImportOptions::default();
        let made = targets(
            &plan,
            std::slice::from_ref(path),
            &folder.path().join(name.replace('.', "_")),
            Format::Hdf5,
            None,
        );
        let made = made.unwrap().remove(0);
        fs::create_dir_all(made.path.parent().unwrap()).unwrap();
        import(&plan, &made, |_| Ok(())).unwrap();
        let copy = Field::open(&made.path).unwrap();
        assert_same(&all(&copy), &values, "the import");
        let attributes = copy.attributes().unwrap();
        assert_eq!(attributes["units"], "K");
        assert!(!attributes.contains_key("scale_factor") && !attributes.contains_key("_FillValue"));
    }
    // The names of the dimensions say in which order they are.
    let named = json!({"_ARRAY_DIMENSIONS": ["time", "n", "x"]}).to_string();
    let before = fs::read(paths[2].join("tensor/.zattrs")).unwrap();
    fs::write(paths[2].join("tensor/.zattrs"), named).unwrap();
    fs::remove_dir_all(paths[2].join("t-coordinate")).unwrap();
    let shape = Field::open(&paths[2]).unwrap().shape().clone();
    assert_eq!((shape.frames, shape.trajectories), (2, 3));
    fs::write(paths[2].join("tensor/.zattrs"), before).unwrap();
    // The same attribute at the root does not say what it is for; one that cannot be obeyed is named.
    let file = hdf5::File::open_rw(&paths[0]).unwrap();
    file.new_attr::<f64>().create("add_offset").unwrap().write_scalar(&1.0).unwrap();
    drop(file);
    let error = Field::open(&paths[0]).unwrap_err();
    assert!(error.to_string().contains("`add_offset` (1.0) of the root"), "{error}");
    fs::write(paths[2].join("tensor/.zattrs"), r#"{"scale_factor": [1.0, 2.0]}"#).unwrap();
    let error = Field::open(&paths[2]).unwrap_err();
    assert!(error.to_string().contains("`tensor`: attribute `scale_factor`"), "{error}");
}

#[test]
fn integers_beside_a_marker_are_not_rounded_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wide.hdf5");
    let file = hdf5::File::create(&path).unwrap();
    // In f32 all of these are the same number.
    let stored = [i32::MAX, i32::MAX - 1, i32::MAX - 2];
    let dataset = file.new_dataset::<i32>().shape((1, 1, 3)).create("tensor").unwrap();
    dataset.write_raw(&stored).unwrap();
    dataset.new_attr::<i32>().create("missing_value").unwrap().write_scalar(&i32::MAX).unwrap();
    dataset.new_attr::<f64>().create("add_offset").unwrap().write_scalar(&-2147483640.0).unwrap();
    drop((dataset, file));
    assert_same(&all(&Field::open(&path).unwrap()), &[f32::NAN, 6.0, 5.0], "wide.hdf5");
}

#[test]
fn chunks_of_hdf5_that_were_never_written_are_missing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stopped.hdf5");
    let file = hdf5::File::create(&path).unwrap();
    let builder = file.new_dataset::<f32>().shape((2, 7, 3)).chunk((1, 1, 3)).fill_value(9.0f32);
    let dataset = builder.create("tensor").unwrap();
    // The last two frames of both trajectories are missing.
    dataset
        .write_slice(&ndarray::Array3::<f32>::ones((2, 5, 3)), ndarray::s![.., ..5, ..])
        .unwrap();
    file.new_attr::<f64>().create("nu").unwrap().write_scalar(&0.5).unwrap();
    drop((builder, dataset, file));
    let error = Field::open(&path).unwrap_err();
    assert_eq!(error.exit, Exit::Data);
    let words = "4 of its 14 chunks are missing, the first at [0, 5, 0]";
    assert!(error.to_string().contains(words), "{error}");
    assert!(error.to_string().contains("--fill-missing"), "{error}");
    let found = check_files(std::slice::from_ref(&path), 1e9).problems;
    assert!(
        found[0].kind == ProblemKind::Unreadable && found[0].message.contains(words),
        "{found:?}"
    );
    // As the user says, they hold the fill value.
    let reading = ReadOptions { fill_missing: true, ..ReadOptions::default() };
    let values = all(&Field::open_as(&path, &reading).unwrap());
    assert_eq!(values[..15], [1.0; 15]);
    assert_eq!(values[15..21], [9.0; 6]);
    // Coordinates as well.
    let path = folder.path().join("coordinates.hdf5");
    let file = hdf5::File::create(&path).unwrap();
    let values = ndarray::Array3::<f32>::ones((2, 7, 3));
    file.new_dataset_builder().with_data(&values).create("tensor").unwrap();
    let x = file.new_dataset::<f32>().shape(3).chunk(2).create("x-coordinate").unwrap();
    x.write_slice(&[0.5f32, 1.5], 0..2).unwrap();
    drop((x, file));
    let error = Field::open(&path).unwrap_err().to_string();
    assert!(error.contains("`x-coordinate`") && error.contains("1 of its 2 chunks"), "{error}");
}

#[test]
fn names_of_arrays_and_groups_that_cannot_be_used_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tensor.hdf5");
    let file = hdf5::File::create(&path).unwrap();
    let values = ndarray::Array3::from_shape_fn((2, 3, 4), |(n, t, x)| (n * 12 + t * 4 + x) as f32);
    file.new_dataset_builder().with_data(&values).create("tensor").unwrap();
    file.new_attr::<f64>().create("nu").unwrap().write_scalar(&0.5).unwrap();
    file.new_dataset_builder().with_data(&[1.0, 2.0]).create("mask").unwrap();
    // What netCDF-4 stores for a dimension without coordinates is not one.
    let dimension = file.new_dataset_builder().with_data(&[0.0f32; 4]).create("x-coordinate");
    let words = text("This is a netCDF dimension but not a netCDF variable.         4");
    let name = dimension.unwrap().new_attr::<VarLenUnicode>().create("NAME").unwrap();
    name.write_scalar(&words).unwrap();
    drop((name, file));
    let field = Field::open(&path).unwrap();
    assert_eq!(field.unused().as_deref(), Some("`mask` [2]"));
    assert_eq!(field.coordinates(), [Vec::<f64>::new()]);
    field.require_fit().unwrap();
    drop(field);
    let file = hdf5::File::open_rw(&path).unwrap();
    file.new_dataset::<f32>().shape((0, 5)).create("samples").unwrap();
    file.create_group("t-coordinate").unwrap();
    drop(file);
    let messages: Vec<String> = check_files(std::slice::from_ref(&path), 1e9)
        .problems
        .into_iter()
        .map(|one| one.message)
        .collect();
    for words in ["`samples` [0, 5] is empty", "`t-coordinate` is not an array (group)"] {
        assert!(messages.iter().any(|message| message.contains(words)), "{messages:?}");
    }
    let error = Field::open(&path).unwrap().require_fit().unwrap_err();
    assert!(error.exit == Exit::Data && error.to_string().contains("`samples`"), "{error}");

    let path = folder.path().join("groups.h5");
    let file = hdf5::File::create(&path).unwrap();
    for name in ["0000", "0002"] {
        let group = file.create_group(name).unwrap();
        group
            .new_dataset_builder()
            .with_data(&ndarray::Array2::<f32>::ones((3, 4)))
            .create("data")
            .unwrap();
    }
    file.create_group("0001").unwrap();
    drop(file);
    let error = Field::open(&path).unwrap().require_fit().unwrap_err();
    assert!(error.to_string().contains("`0001` has no array `data`"), "{error}");
}
