//! Parameters and attributes of imported files.

use crate::common::divide;
use crate::golden::golden;
use crate::leaks::{noise, write};
use data::fields::check::{check_files, check_split};
use data::fields::field::Field;
use data::fields::import::{Format, ImportOptions, import, targets};
use data::fields::list::describe;
use data::split::Share;
use hdf5::types::VarLenUnicode;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use unix::{Exit, Result};

fn plan(parameter: &str, override_parameter: bool) -> ImportOptions {
    ImportOptions {
        parameter: Some(parameter.parse().unwrap()),
        override_parameter,
        ..ImportOptions::default()
    }
}

fn bring(
    source: &Path,
    folder: &Path,
    plan: &ImportOptions,
    format: Format,
) -> Result<Vec<PathBuf>> {
    let targets = targets(plan, &[source.to_path_buf()], folder, format, None)?;
    let made = targets.into_iter().map(|target| {
        import(plan, &target, |_| Ok(()))?;
        Ok(target.path)
    });
    made.collect()
}

fn attributes(path: &Path) -> Value {
    describe(path).unwrap()["attributes"].clone()
}

/// A copy of a golden file that can be modified.
fn copy(folder: &Path, name: &str) -> (PathBuf, hdf5::File) {
    let path = folder.join(name);
    std::fs::copy(golden(name), &path).unwrap();
    let file = hdf5::File::open_rw(&path).unwrap();
    (path, file)
}

#[test]
fn a_parameter_of_any_name_goes_through_the_whole_chain() {
    let folder = tempfile::tempdir().unwrap();
    for format in [Format::Hdf5, Format::Safetensors] {
        let to = folder.path().join(format.to_string());
        std::fs::create_dir(&to).unwrap();
        let plan = plan("dam_radius=0.25,Wall height=-1e-30", false);
        let error = bring(&golden("2D_rdb_NA_NA.h5"), &to, &plan, format).unwrap_err();
        let text = error.to_string();
        assert!(error.exit == Exit::Usage && text.contains("dam_radius=0.5"), "{text}");
        assert!(text.contains("`0000`") && text.contains("--override"), "{text}");

        let source = folder.path().join(format!("{format}.h5"));
        write(&source, 0.1, noise(1));
        hdf5::File::open_rw(&source).unwrap().delete_attr("Nu").unwrap();
        let made = bring(&source, &to, &plan, format).unwrap().remove(0);
        let told = "dam_radius=0.25,wall height=-0.000000000000000000000000000001";
        assert_eq!(describe(&made).unwrap()["parameter"], told);
        let manifest = to.join("split.json");
        let split = divide(std::slice::from_ref(&made), [1; 3].map(Share::Count), 1, &manifest);
        let split = split.unwrap();
        split.save(&manifest).unwrap();
        assert_eq!(Some(&split.list.files[0].parameter), plan.parameter.as_ref());
        assert_eq!(check_split(&manifest, 1e9).unwrap().problems, []);
        // Also through a second import.
        let again = to.join("again");
        std::fs::create_dir(&again).unwrap();
        let again =
            bring(&made, &again, &ImportOptions::default(), Format::Hdf5).unwrap().remove(0);
        assert_eq!(Field::open(&again).unwrap().parameter(), plan.parameter.as_ref());
    }
}

#[test]
fn a_value_that_contradicts_the_file_needs_override() {
    let folder = tempfile::tempdir().unwrap();
    let to = |number: usize| {
        let to = folder.path().join(number.to_string());
        std::fs::create_dir_all(&to).unwrap();
        to
    };
    let cases = [
        ("tensor2d.hdf5", "nu=0.02", "its attributes: nu=0.01"),
        ("ReacDiff_Nu0.5_Rho1.0.hdf5", "rho=2", "its name: rho=1"),
        ("2D_diff-react_differing.h5", "Du=0.001", "`0001`: du=0.002"),
        ("listed.hdf5", "nu=0.1", "dataset `nu`: nu=0.2"),
        ("stored.npz", "nu=1", "its attributes: nu=0.5"),
        ("table.csv", "nu=1", "its attributes: nu=0.2"),
        ("zstd.zarr", "nu=1", "its attributes: nu=0.5"),
    ];
    for (number, (name, given, words)) in cases.into_iter().enumerate() {
        let to = to(number);
        let error = bring(&golden(name), &to, &plan(given, false), Format::Hdf5).unwrap_err();
        assert_eq!(error.exit, Exit::Usage, "{error}");
        assert!(error.to_string().contains(words), "{error}");
        let made = bring(&golden(name), &to, &plan(given, true), Format::Hdf5).unwrap();
        assert_eq!(made.len(), 1, "{name}");
        let given: data::fields::parameter::Parameter = given.parse().unwrap();
        let made = Field::open(&made[0]).unwrap();
        let whole = Field::open(&golden(name)).unwrap();
        assert_eq!(made.parameter(), Some(&given.with(whole.parameter())), "{name}");
    }
    // A value that agrees up to a rounding of f32 is no contradiction; a new parameter is added.
    let agreeing = plan("nu=0.010000000001,seed=7", false);
    let made = bring(&golden("tensor2d.hdf5"), &to(9), &agreeing, Format::Hdf5).unwrap();
    let told = describe(&made[0]).unwrap()["parameter"].clone();
    assert_eq!(told, "nu=0.010000000001,seed=7");
    // The name of one of our attributes.
    let error = bring(&golden("tensor2d.hdf5"), &to(9), &plan("source=1", false), Format::Hdf5);
    assert_eq!(error.unwrap_err().exit, Exit::Usage);
}

#[test]
fn attributes_of_the_file_and_of_its_groups_survive_every_import() {
    let folder = tempfile::tempdir().unwrap();
    let (source, file) = copy(folder.path(), "2D_rdb_NA_NA.h5");
    let text = |text: &str| text.parse::<VarLenUnicode>().unwrap();
    file.new_attr::<VarLenUnicode>()
        .create("equation")
        .unwrap()
        .write_scalar(&text("h_t"))
        .unwrap();
    // A name that others use as well.
    let own = text("{\"depth\": 2}");
    file.new_attr::<VarLenUnicode>().create("parameters").unwrap().write_scalar(&own).unwrap();
    file.new_attr::<i64>().create("offset").unwrap().write_scalar(&-3).unwrap();
    file.new_attr::<u64>().create("seed").unwrap().write_scalar(&u64::MAX).unwrap();
    file.new_attr::<f64>()
        .shape(3)
        .create("weights")
        .unwrap()
        .write_raw(&[0.5, 1.5, -2.0])
        .unwrap();
    let last = file.group("0002").unwrap();
    last.new_attr::<f64>().create("dam").unwrap().write_scalar(&0.75).unwrap();
    // Larger than HDF5 allows for a regular attribute.
    let long = "x".repeat(100_000);
    last.new_attr::<VarLenUnicode>().create("note").unwrap().write_scalar(&text(&long)).unwrap();
    drop((last, file));

    let config = "sim:\n  T_end: 1.0\n  dam_radius: 0.5\n";
    let groups = json!([
        {"config": config}, {"config": config}, {"config": config, "dam": 0.75, "note": long}
    ]);
    let of_groups = |path: &Path| -> Value {
        serde_json::from_str(attributes(path)["trajectory_attributes"].as_str().unwrap()).unwrap()
    };
    let mut before = source.clone();
    let chain = [Format::Hdf5, Format::Safetensors, Format::Hdf5];
    for (step, format) in chain.into_iter().enumerate() {
        let to = folder.path().join(step.to_string());
        std::fs::create_dir(&to).unwrap();
        let asked = ImportOptions { stride: Some(1), ..plan("g=1", false) };
        let made = bring(&before, &to, &asked, format).unwrap().remove(0);
        let told = attributes(&made);
        assert_eq!(told["equation"], "h_t");
        assert_eq!(told["parameters"], "{\"depth\": 2}");
        if format == Format::Hdf5 && step == 0 {
            assert_eq!((&told["offset"], &told["seed"]), (&json!(-3), &json!(u64::MAX)));
            assert_eq!(told["weights"], json!([0.5, 1.5, -2.0]));
        } else if step == 1 {
            assert_eq!(
                (&told["offset"], &told["weights"]),
                (&json!("-3"), &json!("[0.5,1.5,-2.0]"))
            );
        }
        assert_eq!(of_groups(&made), groups, "step {step}");
        let request: Value = serde_json::from_str(told["import"].as_str().unwrap()).unwrap();
        assert_eq!(request["trajectories"], json!([[0, 3]]));
        assert_eq!((&request["parameter"], &request["stride"]), (&json!("g=1"), &json!(1)));
        let name = before.file_name().unwrap().to_str().unwrap();
        assert_eq!((&told["source"], request.get("crop")), (&json!(name), None));
        // How the source was made.
        let nested = (0..step).fold(&request, |told, _| &told["previous"]["import"]);
        assert_eq!(nested["trajectories"], json!([[0, 3]]), "step {step}: {request}");
        before = made;
    }
    // A subset of the trajectories keeps the corresponding attributes.
    let to = folder.path().join("part");
    std::fs::create_dir(&to).unwrap();
    let shards =
        targets(&ImportOptions::default(), &[before], &to, Format::Safetensors, Some(2)).unwrap();
    import(&ImportOptions::default(), &shards[1], |_| Ok(())).unwrap();
    assert_eq!(of_groups(&shards[1].path), json!([groups[2]]));
}

#[test]
fn several_values_of_a_parameter_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let open = |path: &Path, words: &[&str]| {
        let error = Field::open(path).unwrap_err();
        assert_eq!(error.exit, Exit::Data, "{error}");
        for word in words {
            assert!(error.to_string().contains(word), "{error} lacks {word}");
        }
        assert_eq!(check_files(&[path.to_path_buf()], 1e9).problems.len(), 1);
    };
    for (name, count) in [("array.hdf5", 3), ("two.hdf5", 2)] {
        let path = folder.path().join(name);
        write(&path, 0.1, noise(1));
        let file = hdf5::File::open_rw(&path).unwrap();
        file.delete_attr("Nu").unwrap();
        let values: Vec<f64> = (0..count).map(|i| 0.1 + i as f64).collect();
        file.new_attr::<f64>().shape(count).create("Nu").unwrap().write_raw(&values).unwrap();
        drop(file);
        open(&path, &[name, "`Nu` of the root", &format!("{count} values")]);
    }
    // A dataset with neither a single value nor one for each of the 20 trajectories.
    let path = folder.path().join("dataset.hdf5");
    write(&path, 0.1, noise(1));
    let file = hdf5::File::open_rw(&path).unwrap();
    file.new_dataset_builder().with_data(&[0.1, 0.2]).create("Nu").unwrap();
    drop(file);
    open(&path, &["dataset.hdf5", "`Nu` has shape [2]", "20 trajectories"]);
    // A list with a single value counts as one value.
    let path = folder.path().join("one.hdf5");
    write(&path, 0.1, noise(1));
    let file = hdf5::File::open_rw(&path).unwrap();
    file.delete_attr("Nu").unwrap();
    file.new_attr::<f64>().shape(1).create("Nu").unwrap().write_raw(&[0.7]).unwrap();
    drop(file);
    assert_eq!(Field::open(&path).unwrap().only_regime().unwrap().to_string(), "nu=0.7");
}
