//! Files of every equation: the same on any number of threads, with PDEBench's layout and with provenance.

use crate::common::fresh_seed;
use clap::ValueEnum;
use data::fields::generate::{Equation, Generation};
use std::path::Path;
use unix::Exit;

/// A small file of an equation.
fn small(equation: Equation, seed: u64) -> Generation {
    let all = Generation::new(equation, 0.02, 4);
    let (frames, end) = if equation.is_steady() { (1, 0.0) } else { (3, 0.5) };
    Generation { seed, grid: 14, frames, end, ..all }
}

fn numbers(path: &Path, name: &str) -> (Vec<usize>, Vec<f32>) {
    let dataset = hdf5::File::open(path).unwrap().dataset(name).unwrap();
    (dataset.shape(), dataset.read_raw().unwrap())
}

#[test]
fn numbers_depend_on_seed_index_and_parameter_alone() {
    let (folder, seed) = (tempfile::tempdir().unwrap(), fresh_seed());
    for &equation in Equation::value_variants() {
        let whole = small(equation, seed);
        let mut made = Vec::new();
        for threads in [1, 2, 5] {
            let path = folder.path().join(format!("{equation:?}-{threads}"));
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| whole.write(&path, || Ok(()))).unwrap();
            made.push(std::fs::read(&path).unwrap());
        }
        assert!(made[0] == made[1] && made[0] == made[2], "{equation:?}: threads change the file");

        let grouped = whole.file_name().ends_with(".h5");
        let names = if grouped { ["0002/data", "0000/data"] } else { ["tensor"; 2] };
        let part = Generation { samples: 2, first: 2, ..whole.clone() };
        let path = folder.path().join(format!("{equation:?}-part"));
        part.write(&path, || Ok(())).unwrap();
        let (_, all) = numbers(&folder.path().join(format!("{equation:?}-1")), names[0]);
        let (_, own) = numbers(&path, names[1]);
        assert!(own.iter().all(|u| u.is_finite()) && own.iter().any(|u| *u != own[0]));
        assert_eq!(own, all[all.len() - own.len()..], "{equation:?}");
    }
}

#[test]
fn files_are_laid_out_as_pdebench_does() {
    let (folder, seed) = (tempfile::tempdir().unwrap(), fresh_seed());
    for (equation, name, shapes) in [
        (
            Equation::DiffusionReaction,
            "ReacDiff_Nu0.02_Rho1.0.hdf5",
            &[("tensor", &[4, 3, 14][..])][..],
        ),
        (
            Equation::FitzHughNagumo,
            "2D_diff-react_Du0.02.h5",
            &[
                ("0000/data", &[3, 14, 14, 2]),
                ("0003/data", &[3, 14, 14, 2]),
                ("0001/grid/t", &[3]),
            ],
        ),
        (
            Equation::Darcy,
            "2D_DarcyFlow_beta0.02.hdf5",
            &[("nu", &[4, 14, 14]), ("tensor", &[4, 1, 14, 14]), ("y-coordinate", &[14])],
        ),
        (
            Equation::NavierStokes,
            "2D_NavierStokes_Nu0.02.h5",
            &[("0000/data", &[3, 14, 14, 1]), ("0003/grid/y", &[14]), ("0003/grid/t", &[3])],
        ),
    ] {
        let all = small(equation, seed);
        assert_eq!(all.file_name(), name);
        let path = folder.path().join(name);
        all.write(&path, || Ok(())).unwrap();
        for (name, shape) in shapes {
            assert_eq!(numbers(&path, name).0, *shape, "{equation:?}: {name}");
        }
        let file = hdf5::File::open(&path).unwrap();
        let value = |name: &str| file.attr(name).unwrap().read_scalar::<f64>().unwrap();
        assert_eq!(value(equation.attribute()), 0.02);
        for constant in equation.constants() {
            assert_eq!(value(constant.name), constant.default);
        }
        assert_eq!(file.attr("seed").unwrap().read_scalar::<u64>().unwrap(), seed);
        // What PDEBench's FNODatasetSingle and FNODatasetMult expect: in .h5 files only groups, with data [t, x, y, v]
        // and x, y and t; in other files one dataset.
        let groups = file.groups().unwrap();
        assert_eq!(groups.len(), if name.ends_with(".h5") { 4 } else { 0 });
        let others = file.member_names().unwrap().len() - groups.len();
        assert_eq!(others == 0, name.ends_with(".h5"), "{name}");
        for group in groups {
            let names = ["data", "grid/t", "grid/x", "grid/y"];
            assert!(names.iter().all(|n| group.dataset(n).unwrap().dtype().unwrap().is::<f32>()));
        }
        assert!(file.attr("scheme").is_ok() && file.attr("initial_state").is_ok());
    }
}

/// The same permeability for every β; u is proportional to β.
#[test]
fn the_permeability_is_the_same_for_every_source() {
    let (folder, seed) = (tempfile::tempdir().unwrap(), fresh_seed());
    let [a, b] = [1.0, -2.0].map(|beta| {
        let path = folder.path().join(format!("{beta}"));
        Generation { parameter: beta, ..small(Equation::Darcy, seed) }
            .write(&path, || Ok(()))
            .unwrap();
        path
    });
    assert_eq!(numbers(&a, "nu"), numbers(&b, "nu"));
    assert!(numbers(&a, "nu").1.iter().all(|a| [0.1, 1.0].contains(a)));
    let ratio = numbers(&a, "tensor").1.into_iter().zip(numbers(&b, "tensor").1);
    assert!(ratio.into_iter().all(|(a, b)| (b + 2.0 * a).abs() < 1e-6));
}

#[test]
fn unsolvable_requests_are_refused() {
    let refused = |g: Generation| {
        let error = g.validate().unwrap_err();
        assert_eq!(error.exit, Exit::Usage, "{error}");
        error.to_string()
    };
    let flow = || small(Equation::NavierStokes, 0);
    assert!(refused(Generation { parameter: -0.1, ..flow() }).contains("Nu = -0.1"));
    assert!(refused(Generation { end: 0.0, ..flow() }).contains("end time"));
    assert!(refused(Generation { grid: 1 << 20, ..flow() }).contains("4 TiB"));
    let constants = vec![("force".to_string(), 1.0)];
    assert!(refused(Generation { constants, ..flow() }).contains("forcing, scale"));
    let constants = vec![("low".to_string(), 0.0)];
    assert!(refused(Generation { constants, ..small(Equation::Darcy, 0) }).contains("low = 0"));
    assert!(refused(Generation { frames: 2, ..small(Equation::Darcy, 0) }).contains("steady"));
}
