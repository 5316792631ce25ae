//! Imports: every golden file with its values; crops and resampled grids; refused options.

use crate::golden::{assert_values, golden, value};
use data::fields::field::{Field, ReadOptions};
use data::fields::generate::{Equation, Generation};
use data::fields::import::{Format, ImportOptions, ImportOutcome, import, targets};
use data::fields::parameter::Parameter;
use std::fs;
use std::path::Path;
use tensor::Dtype;
use unix::{Exit, Result};

/// Imports one file and opens the result.
fn bring(source: &Path, folder: &Path, plan: &ImportOptions, format: Format) -> Result<Field> {
    let targets = targets(plan, &[source.to_path_buf()], folder, format, None)?;
    assert_eq!(import(plan, &targets[0], |_| Ok(()))?, ImportOutcome::New);
    Field::open(&targets[0].path)
}

#[test]
fn every_layout_is_imported_with_the_same_values() {
    for (number, entry) in fs::read_dir(golden("")).unwrap().enumerate() {
        let source = entry.unwrap().path();
        let name = source.file_name().unwrap().to_str().unwrap().to_string();
        let axes = match name.as_str() {
            "transposed.hdf5" | "fortran.npy" => Some("nctyx"),
            "1D_transposed_Nu0.1.hdf5" => Some("nxt"),
            _ => None,
        };
        // One parameter for all trajectories, where they have their own.
        let parameter = match name.as_str() {
            "2D_diff-react_differing.h5" => "du=100",
            "listed.hdf5" => "nu=100",
            _ => "re=100",
        };
        let parameter: Parameter = parameter.parse().unwrap();
        let plan = ImportOptions {
            reading: ReadOptions {
                axes: axes.map(|a| a.parse().unwrap()),
                ..ReadOptions::default()
            },
            parameter: Some(parameter.clone()),
            override_parameter: true,
            ..ImportOptions::default()
        };
        for format in [Format::Hdf5, Format::Safetensors] {
            let folder = tempfile::tempdir().unwrap();
            let field = bring(&source, folder.path(), &plan, format)
                .unwrap_or_else(|error| panic!("{number} {name}: {error}"));
            let whole = Field::open_as(&source, &plan.reading).unwrap();
            assert_eq!((field.shape(), field.channels()), (whole.shape(), whole.channels()));
            assert_eq!(field.inputs(), whole.inputs(), "{name}");
            // HDF5 files store them as f32, as PDEBench's do.
            let pairs =
                field.coordinates().iter().flatten().zip(whole.coordinates().iter().flatten());
            assert!(pairs.into_iter().all(|(a, b)| (a - b).abs() < 1e-6), "{name}");
            assert_eq!(field.parameter(), Some(&parameter.with(whole.parameter())), "{name}");
            assert!(field.is_direct(), "{name}");
            assert_values(&field, &name);
        }
    }
}

#[test]
fn crops_strides_and_grids_are_as_requested() {
    let folder = tempfile::tempdir().unwrap();
    let source = golden("tensor2d_channels.hdf5");
    let plan = ImportOptions {
        samples: Some(2),
        stride: Some(2),
        crop: ["t=1:5", "x=1:7", "y=2:3"].map(|crop| crop.parse().unwrap()).to_vec(),
        grid: Some(vec![3, 1]),
        channels: vec!["a".into(), "b".into()],
        ..ImportOptions::default()
    };
    let field = bring(&source, folder.path(), &plan, Format::Hdf5).unwrap();
    assert_eq!((field.trajectories(), field.shape().frames), (2, 2));
    assert_eq!(
        (field.shape().grid.as_slice(), field.channels().join("")),
        (&[3, 1][..], "ab".into())
    );
    assert_eq!(field.t(), [0.25, 0.75]);
    assert_eq!(field.parameter(), Some(&"nu=0.01".parse().unwrap()), "kept");
    let mut frame = vec![0.0; 6];
    field.read_frames(1, 1..2, &mut frame).unwrap();
    for (at, found) in frame.iter().enumerate() {
        let (x, c) = (1 + at / 2 * 2, at % 2);
        let mean = (value(1, 3, &[x, 2], c) + value(1, 3, &[x + 1, 2], c)) / 2.0;
        assert_eq!(*found, mean);
    }
    for (wrong, exit) in [
        (
            ImportOptions { crop: vec!["x=0:8".parse().unwrap()], ..ImportOptions::default() },
            Exit::Usage,
        ),
        (ImportOptions { grid: Some(vec![4]), ..ImportOptions::default() }, Exit::Usage),
        (ImportOptions { stride: Some(0), ..ImportOptions::default() }, Exit::Usage),
        (ImportOptions { channels: vec!["a".into()], ..ImportOptions::default() }, Exit::Usage),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let error = bring(&source, folder.path(), &wrong, Format::Hdf5).unwrap_err();
        assert_eq!(error.exit, exit, "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "something is left");
    }
    let unknown =
        bring(&golden("2D_rdb_NA_NA.h5"), folder.path(), &ImportOptions::default(), Format::Hdf5);
    assert!(unknown.unwrap_err().to_string().contains("--parameter"));
    let transposed = golden("1D_transposed_Nu0.1.hdf5");
    let error =
        bring(&transposed, folder.path(), &ImportOptions::default(), Format::Hdf5).unwrap_err();
    assert!(error.exit == Exit::Data && error.to_string().contains("--axes nxt"), "{error}");
}

#[test]
fn an_import_resumes_and_keeps_identical_files() {
    let folder = tempfile::tempdir().unwrap();
    let plan = ImportOptions::default();
    let sources = [golden("tensor2d.hdf5")];
    let two = targets(&plan, &sources, folder.path(), Format::Safetensors, Some(2)).unwrap();
    let names: Vec<_> = two.iter().map(|t| t.path.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["tensor2d-00000.safetensors", "tensor2d-00001.safetensors"]);
    for target in &two {
        assert_eq!(import(&plan, target, |_| Ok(())).unwrap(), ImportOutcome::New);
        assert_eq!(import(&plan, target, |_| Ok(())).unwrap(), ImportOutcome::Kept);
    }
    let second = Field::open(&two[1].path).unwrap();
    let mut frame = vec![0.0; 42];
    second.read_frames(0, 0..1, &mut frame).unwrap();
    assert_eq!((second.trajectories(), frame[0]), (1, value(2, 0, &[0, 0], 0)));

    let other = ImportOptions { stride: Some(2), ..ImportOptions::default() };
    let error = import(&other, &two[0], |_| Ok(())).unwrap_err();
    assert_eq!(error.exit, Exit::CannotCreate, "{error}");
    // When interrupted, nothing is published, and the next call completes the file.
    let one = targets(&other, &sources, folder.path(), Format::Hdf5, None).unwrap();
    let stop = |_| Err(unix::Error::new(Exit::Again, "stopped"));
    assert_eq!(import(&other, &one[0], stop).unwrap_err().exit, Exit::Again);
    assert!(!one[0].path.exists());
    assert_eq!(import(&other, &one[0], |_| Ok(())).unwrap(), ImportOutcome::New);
    let twice = [sources[0].clone(), sources[0].clone()];
    let error = targets(&plan, &twice, folder.path(), Format::Hdf5, None).unwrap_err();
    assert_eq!(error.exit, Exit::Usage);
}

#[test]
fn values_are_stored_in_the_requested_dtype() {
    let source = golden("2D_DarcyFlow_beta10.0_Train.hdf5");
    let whole = Field::open(&source).unwrap();
    for (format, dtype) in [
        (Format::Hdf5, Dtype::F16),
        (Format::Safetensors, Dtype::F16),
        (Format::Safetensors, Dtype::Bf16),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let plan = ImportOptions { dtype: Some(dtype), ..ImportOptions::default() };
        let field = bring(&source, folder.path(), &plan, format).unwrap();
        assert_eq!((field.shape(), field.inputs()), (whole.shape(), 1));
        let [mut a, mut b] = [0, 1].map(|_| vec![0.0; whole.shape().trajectory_len()]);
        for n in 0..whole.trajectories() {
            field.read(n, &mut a).unwrap();
            whole.read(n, &mut b).unwrap();
            for (a, b) in a.iter().zip(&b) {
                assert!(
                    f64::from((a - b).abs()) <= dtype.roundoff() * f64::from(b.abs()),
                    "{a} {b}"
                );
            }
            assert_ne!(a, b, "rounded");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let wrong = ImportOptions { dtype: Some(Dtype::Bf16), ..ImportOptions::default() };
    let error = bring(&source, folder.path(), &wrong, Format::Hdf5).unwrap_err();
    assert!(error.exit == Exit::Usage && error.to_string().contains("safetensors"), "{error}");
}

/// A NumPy file, f64, [2, 3, 4], with one changed value.
fn doubles(path: &Path, at: usize, value: f64) {
    let mut header = "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3, 4), }".to_string();
    header.push_str(&" ".repeat(117 - header.len()));
    let values = (0..24).map(|i| if i == at { value } else { f64::from(i as u32) });
    let values: Vec<u8> = values.flat_map(f64::to_le_bytes).collect();
    let bytes = [b"\x93NUMPY\x01\x00\x76\x00", header.as_bytes(), b"\n", &values].concat();
    fs::write(path, bytes).unwrap();
}

#[test]
fn values_too_large_for_a_dtype_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("a_nu0.1.npy");
    let refused = |source: &Path, dtype: Option<Dtype>, words: &[&str]| {
        let made = tempfile::tempdir().unwrap();
        let plan = ImportOptions { dtype, ..ImportOptions::default() };
        let error = bring(source, made.path(), &plan, Format::Hdf5).unwrap_err();
        assert_eq!(error.exit, Exit::Data, "{error}");
        for word in words {
            assert!(error.to_string().contains(word), "{error} lacks {word}");
        }
        assert_eq!(fs::read_dir(made.path()).unwrap().count(), 0, "something is left");
    };
    doubles(&source, 17, -7e4);
    let place = ["-7e4", "frame 1 of trajectory 1", "channel u", "f16"];
    refused(&source, Some(Dtype::F16), &place);
    assert!(bring(&source, folder.path(), &ImportOptions::default(), Format::Hdf5).is_ok());
    doubles(&source, 5, 1e39);
    refused(&source, None, &["a_nu0.1.npy", "1e39", "trajectory 0", "f32"]);
    // The same through the HDF5 library, which would make it infinite.
    let packed = folder.path().join("b_nu0.1.hdf5");
    let file = hdf5::File::create(&packed).unwrap();
    let values =
        ndarray::Array3::from_shape_fn((2, 3, 4), |at| if at == (1, 0, 2) { 1e39 } else { 0.5 });
    let builder = file.new_dataset_builder().chunk([1, 3, 4]).deflate(1);
    builder.with_data(&values).create("tensor").unwrap();
    drop(file);
    refused(&packed, None, &["b_nu0.1.hdf5", "`tensor`", "1e39", "trajectory 1", "f32"]);
}

#[test]
fn finer_grids_wrap_around_periodic_axes() {
    let folder = tempfile::tempdir().unwrap();
    let all = Generation::new(Equation::Advection, 0.4, 2);
    let all = Generation { grid: 32, frames: 2, ..all };
    let source = folder.path().join(all.file_name());
    all.write(&source, || Ok(())).unwrap();
    // The file name says nothing: the attribute decides, or the user.
    let other = folder.path().join("wave.hdf5");
    fs::rename(&source, &other).unwrap();
    let ends = |name: &str, periodic: Option<&str>, crop: &[&str]| {
        let plan = ImportOptions {
            parameter: Some("beta=0.4".parse().unwrap()),
            grid: Some(vec![48]),
            periodic: periodic.map(String::from),
            crop: crop.iter().map(|crop| crop.parse().unwrap()).collect(),
            ..ImportOptions::default()
        };
        fs::create_dir(folder.path().join(name)).unwrap();
        let field = bring(&other, &folder.path().join(name), &plan, Format::Hdf5).unwrap();
        let mut values = vec![0.0; 2 * 48];
        field.read(1, &mut values).unwrap();
        (values[0], values[47], field.coordinates()[0][0], field.periodic()[0])
    };
    let whole = Field::open(&other).unwrap();
    let mut u = vec![0.0; 2 * 32];
    whole.read(1, &mut u).unwrap();
    // With three new points for two cells, the first new point lies a sixth of a cell before the first old one.
    let near = |a: f32, b: f32| assert!((a - b).abs() < 1e-6, "{a} for {b}");
    let mixed = |a: f32, b: f32| a * 5.0 / 6.0 + b / 6.0;
    let (first, last, x, periodic) = ends("a", None, &[]);
    near(first, mixed(u[0], u[31]));
    near(last, mixed(u[31], u[0]));
    assert!((x - 0.5 / 48.0).abs() < 1e-6 && periodic, "{x}");
    for (name, given, crop) in [("b", Some(""), &[][..]), ("c", None, &["x=1:32"])] {
        let (first, last, _, periodic) = ends(name, given, crop);
        let begin = if crop.is_empty() { u[0] } else { u[1] };
        near(first, begin);
        near(last, u[31]);
        assert!(!periodic);
    }
}
