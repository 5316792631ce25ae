//! Files and data sets whose trajectories differ in points or times.

use crate::common::{divide, fresh_seed};
use data::fields::check::{ProblemKind, check_files, check_split};
use data::fields::field::{Field, FieldLayout, Shape};
use data::fields::import::{Format, ImportOptions, import, targets};
use data::fields::list::frames;
use data::fields::split::SplitName;
use data::fields::split_set::{TrajectorySet, Verify};
use data::fields::write::{Header, write_field};
use data::split::Share;
use hdf5::types::VarLenUnicode;
use std::path::{Path, PathBuf};
use tensor::random::{Philox, Purpose};
use unix::Exit;

const COUNT: usize = 5;

/// A file of noise in `layout`, with spacings `dx` and `dt`.
fn write(path: &Path, layout: FieldLayout, seed: u64, dx: f64, dt: f64) {
    let channels = ["velocity0", "velocity1"].map(String::from).to_vec();
    let shape = Shape { trajectories: COUNT, frames: 4, grid: vec![6, 3], channels: 2 };
    let list = |count: u32, step: f64| (0..count).map(|i| f64::from(i) * step).collect::<Vec<_>>();
    let header = Header {
        layout,
        channels,
        attributes: vec![("nu".into(), (seed as f64).into())],
        ..Header::tensor(shape, vec![list(6, dx), list(3, dx)], list(4, dt))
    };
    let random = Philox::new(seed, Purpose::Test);
    let values = |i| (0..144).map(|at| random.uniform(i, at)).collect::<Vec<f32>>();
    write_field(path, &header, |writer| {
        (0..COUNT).try_for_each(|i| writer.write(i, &values(i as u64)))
    })
    .unwrap();
}

/// Changes one value of a dataset.
fn change(path: &Path, dataset: &str, at: usize, by: impl Fn(f32) -> f32) {
    let file = hdf5::File::open_rw(path).unwrap();
    let dataset = file.dataset(dataset).unwrap();
    let mut values = dataset.read_raw::<f32>().unwrap();
    values[at] = by(values[at]);
    dataset.write_raw(&values).unwrap();
}

#[test]
fn trajectories_of_one_file_share_points_and_times() {
    let folder = tempfile::tempdir().unwrap();
    let at = fresh_seed() as usize % (COUNT - 1) + 1;
    let changes = [
        (FieldLayout::Groups, format!("{at:04}/grid/t"), 3, format!("`{at:04}/grid/t` has 0.25")),
        (FieldLayout::Groups, format!("{at:04}/grid/x"), 1, format!("`{at:04}/grid/x` has 0.35")),
        (FieldLayout::Groups, format!("{at:04}/grid/y"), 2, format!("`{at:04}/grid/y` has 0.6")),
        (
            FieldLayout::Incompressible,
            "t".into(),
            4 * at + 3,
            format!("`t` of trajectory {at} has 0.25"),
        ),
    ];
    for (number, (layout, dataset, place, words)) in changes.into_iter().enumerate() {
        let path = folder.path().join(format!("{number}.hdf5"));
        write(&path, layout, 1, 0.25, 0.05);
        let open = || Field::open(&path).unwrap();
        // A rounding difference is accepted.
        change(&path, &dataset, place, |value| value.next_up());
        assert_eq!(open().coordinate_conflict(), None, "{words}");
        change(&path, &dataset, place, |value| value + 0.1);
        let conflict = open().coordinate_conflict().unwrap().to_string();
        assert!(conflict.contains(&words) && conflict.contains(", not 0."), "{conflict}");

        let faults = check_files(std::slice::from_ref(&path), 1e9).problems;
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert_eq!(faults[0].kind, ProblemKind::Coordinates, "{faults:?}");
        let files = [path.clone()];
        let shares = [3, 1, 1].map(Share::Count);
        let split = divide(&files, shares, 1, &folder.path().join("split.json"));
        let target =
            targets(&ImportOptions::default(), &files, folder.path(), Format::Safetensors, None);
        let imported = import(&ImportOptions::default(), &target.unwrap()[0], |_| Ok(()));
        for error in [split.unwrap_err(), imported.unwrap_err()] {
            assert_eq!(error.exit, Exit::Data, "{error}");
            assert!(error.to_string().contains(&words), "{error}");
        }
    }
    // A group without times.
    let path = folder.path().join("0.hdf5");
    let file = hdf5::File::open_rw(&path).unwrap();
    file.unlink(&format!("{at:04}/grid/t")).unwrap();
    drop(file);
    let conflict = Field::open(&path).unwrap().coordinate_conflict().unwrap().to_string();
    assert!(conflict.contains("0 values, not 4"), "{conflict}");
}

#[test]
fn files_of_one_data_set_share_points_and_times() {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = ["a.hdf5", "b.hdf5"].map(|name| folder.path().join(name)).to_vec();
    let manifest = folder.path().join("split.json");
    let shares = [3, 1, 1].map(Share::Count);
    for (dx, dt, words) in [(0.5, 0.05, "its x has 0.5"), (0.25, 0.1, "its t has 0.1")] {
        for (number, path) in paths.iter().enumerate() {
            let _ = std::fs::remove_file(path);
            write(path, FieldLayout::Tensor, number as u64, 0.25, 0.05);
        }
        divide(&paths, shares, 1, &manifest).unwrap().save(&manifest).unwrap();
        std::fs::remove_file(&paths[1]).unwrap();
        write(&paths[1], FieldLayout::Tensor, 1, dx, dt);
        let error = divide(&paths, shares, 1, &manifest).unwrap_err();
        assert!(error.exit == Exit::Data && error.to_string().contains(words), "{error}");
        // Comparing sizes with the manifest finds it.
        let error = TrajectorySet::open(&manifest, SplitName::Train, Verify::Sizes).unwrap_err();
        assert!(error.exit == Exit::Data && error.to_string().contains(words), "{error}");
        let faults = check_split(&manifest, 1e9).unwrap().problems;
        let kinds: Vec<ProblemKind> = faults.iter().map(|fault| fault.kind).collect();
        assert_eq!(kinds, [ProblemKind::Changed, ProblemKind::Coordinates], "{faults:?}");
    }
}

/// Models have one interval between frames, so everything that makes batches or scores refuses other times.
#[test]
fn uneven_times_are_refused_unless_an_import_keeps_even_ones() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("times.hdf5");
    let manifest = folder.path().join("split.json");
    let shares = [3, 1, 1].map(Share::Count);
    write(&path, FieldLayout::Tensor, 1, 0.25, 0.05);
    divide(std::slice::from_ref(&path), shares, 1, &manifest).unwrap().save(&manifest).unwrap();
    for (value, words) in [
        (1.0, "is uneven: 1 after"),
        (0.1, "is not strictly increasing at index 3: 0.1"),
        (-0.1, "is not strictly increasing at index 3: -0.1"),
        (f32::NAN, "is NaN at 3"),
    ] {
        change(&path, "t-coordinate", 3, |_| value);
        let faults = check_files(std::slice::from_ref(&path), 1e9).problems;
        assert_eq!(faults.len(), 1, "{faults:?}");
        let plan = |crop: &[&str]| {
            let crop = crop.iter().map(|crop| crop.parse().unwrap()).collect();
            ImportOptions { crop, ..ImportOptions::default() }
        };
        let imported = |plan: ImportOptions| {
            let files = std::slice::from_ref(&path);
            let target = targets(&plan, files, folder.path(), Format::Safetensors, None).unwrap();
            import(&plan, &target[0], |_| Ok(()))
        };
        for found in [
            faults[0].message.clone(),
            divide(std::slice::from_ref(&path), shares, 1, &manifest).unwrap_err().to_string(),
            TrajectorySet::open(&manifest, SplitName::Train, Verify::Sizes)
                .unwrap_err()
                .to_string(),
            imported(plan(&[])).unwrap_err().to_string(),
        ] {
            assert!(found.contains(words), "{found} lacks {words}");
        }
        if words.contains("uneven") {
            imported(plan(&["t=0:3"])).unwrap();
        }
    }
}

#[test]
fn files_of_one_data_set_share_units() {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = ["a.hdf5", "b.hdf5"].map(|name| folder.path().join(name)).to_vec();
    for (dataset, of) in [("t-coordinate", "t"), ("tensor", "tensor")] {
        for (number, (path, unit)) in paths.iter().zip(["hours since 1900", "days"]).enumerate() {
            let _ = std::fs::remove_file(path);
            write(path, FieldLayout::Tensor, number as u64, 0.25, 0.05);
            let file = hdf5::File::open_rw(path).unwrap();
            let attribute = file.dataset(dataset).unwrap().new_attr::<VarLenUnicode>();
            let unit: VarLenUnicode = unit.parse().unwrap();
            attribute.create("units").unwrap().write_scalar(&unit).unwrap();
        }
        let manifest = folder.path().join("split.json");
        let error = divide(&paths, [3, 1, 1].map(Share::Count), 1, &manifest).unwrap_err();
        let words = format!("its {of} has the unit days, not hours");
        assert!(error.to_string().contains(&words), "{error}");
    }
}

#[test]
fn each_trajectory_is_shown_with_its_own_times() {
    let folder = tempfile::tempdir().unwrap();
    for (layout, dataset, at) in
        [(FieldLayout::Groups, "0002/grid/t", 3), (FieldLayout::Incompressible, "t", 4 * 2 + 3)]
    {
        let path = folder.path().join("own.h5");
        let _ = std::fs::remove_file(&path);
        write(&path, layout, 1, 0.25, 0.5);
        change(&path, dataset, at, |_| 7.0);
        let field = Field::open(&path).unwrap();
        for (trajectory, last) in [(1, 1.5), (2, 7.0)] {
            let records = frames(&field, trajectory).unwrap();
            let times: Vec<_> = records.iter().map(|record| record.t).collect();
            assert_eq!(times, [0.0, 0.5, 1.0, last].map(Some), "{layout}, {trajectory}");
        }
    }
}

/// The length that any group claims for an axis is checked before memory is allocated.
#[test]
fn a_group_that_claims_a_huge_axis_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("groups.h5");
    write(&path, FieldLayout::Groups, 1, 0.5, 0.5);
    let grid = hdf5::File::open_rw(&path).unwrap().group("0002/grid").unwrap();
    grid.unlink("t").unwrap();
    grid.new_dataset::<f32>().shape([1usize << 33]).create("t").unwrap();
    drop(grid);
    let error = Field::open(&path).unwrap_err();
    assert!(error.exit == Exit::Data && error.to_string().contains("16777216"), "{error}");
}
