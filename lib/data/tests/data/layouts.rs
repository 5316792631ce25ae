//! Every layout of PDEBench, as written by h5py, is read correctly: values, parameters, axes, inputs; and fields that
//! we write are read back. tests/golden/layouts/ is made by golden_layouts.py.

use crate::common::{divide, fresh_seed};
use crate::golden::{GRID, N, T, assert_values, golden};
use data::fields::check::{ProblemKind, check_files};
use data::fields::field::{Field, FieldLayout, ReadOptions, Shape};
use data::fields::import::{Format, ImportOptions, import, targets};
use data::fields::parameter::Parameter;
use data::fields::write::{Header, write_field};
use data::split::Share;
use unix::Exit;

#[test]
fn more_than_ten_thousand_groups_are_read_in_the_order_of_their_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("many.h5");
    let shape = Shape { trajectories: 10_003, frames: 1, grid: vec![2], channels: 1 };
    let header = Header {
        layout: FieldLayout::Groups,
        attributes: vec![("nu".into(), 0.5.into())],
        ..Header::tensor(shape, vec![Vec::new()], Vec::new())
    };
    write_field(&path, &header, |writer| {
        (0..10_003).try_for_each(|n| writer.write(n, &[n as f32, 1.0]))
    })
    .unwrap();
    // We pad numbers to as many digits as the last one has, PDEBench to four: sorted as text, 10000 follows 1000;
    // sorted as numbers, it follows 9999.
    let file = hdf5::File::open_rw(&path).unwrap();
    (0..10_000).for_each(|n| file.relink(&format!("{n:05}"), &format!("{n:04}")).unwrap());
    file.close().unwrap();
    let field = Field::open(&path).unwrap();
    assert_eq!(field.trajectories(), 10_003);
    for n in [0, 999, 1000, 1001, 9999, 10_000, 10_002] {
        let mut values = [0.0; 2];
        field.read(n, &mut values).unwrap();
        assert_eq!(values, [n as f32, 1.0]);
    }
}

#[test]
fn every_layout_of_h5py_is_read() {
    let cfd = ["density", "pressure", "Vx", "Vy", "Vz"];
    let flow = ["force0", "force1", "velocity0", "velocity1", "particles"];
    type Case<'a> = (&'a str, FieldLayout, usize, &'a [&'a str], usize, Option<&'a str>, bool);
    let cases: [Case; 12] = [
        (
            "ReacDiff_Nu0.5_Rho1.0.hdf5",
            FieldLayout::Tensor,
            1,
            &["u"],
            0,
            Some("nu=0.5,rho=1"),
            true,
        ),
        ("tensor2d.hdf5", FieldLayout::Tensor, 2, &["u"], 0, Some("nu=0.01"), true),
        ("tensor2d_channels.hdf5", FieldLayout::Tensor, 2, &["u0", "u1"], 0, Some("nu=0.01"), true),
        (
            "2D_diff-react_NA_NA.h5",
            FieldLayout::Groups,
            2,
            &["u0", "u1"],
            0,
            Some("du=0.001,dv=0.005,k=0.005"),
            false,
        ),
        ("2D_rdb_NA_NA.h5", FieldLayout::Groups, 2, &["u"], 0, None, false),
        ("1D_diff-sorp_NA_NA.h5", FieldLayout::Groups, 1, &["u"], 0, Some("d=0.0005"), true),
        (
            "1D_CFD_Rand_Eta0.1_Zeta0.1_periodic_Train.hdf5",
            FieldLayout::Variables,
            1,
            &cfd[..3],
            0,
            Some("eta=0.1,zeta=0.1"),
            true,
        ),
        (
            "2D_CFD_Rand_M0.1_Eta0.01_Zeta0.01_periodic_128_Train.hdf5",
            FieldLayout::Variables,
            2,
            &cfd[..4],
            0,
            Some("m=0.1,eta=0.01,zeta=0.01"),
            true,
        ),
        (
            "3D_CFD_Rand_M1.0_Eta1e-08_Zeta1e-08_periodic_Train.hdf5",
            FieldLayout::Variables,
            3,
            &cfd,
            0,
            Some("m=1,eta=1e-8,zeta=1e-8"),
            true,
        ),
        (
            "merged.hdf5",
            FieldLayout::Variables,
            2,
            &cfd[..4],
            0,
            Some("m=0.1,eta=0.01,zeta=0.02"),
            true,
        ),
        (
            "2D_DarcyFlow_beta10.0_Train.hdf5",
            FieldLayout::Steady,
            2,
            &["nu", "u"],
            1,
            Some("beta=10"),
            true,
        ),
        (
            "ns_incom_inhom_2d_512-0.h5",
            FieldLayout::Incompressible,
            2,
            &flow,
            2,
            Some("nu=0.01"),
            true,
        ),
    ];
    for (name, layout, space, channels, inputs, parameter, direct) in cases {
        let field = Field::open(&golden(name)).unwrap_or_else(|error| panic!("{error}"));
        let frames = if layout == FieldLayout::Steady { 1 } else { T };
        let grid = GRID[..space].to_vec();
        let shape = Shape { trajectories: N, frames, grid, channels: channels.len() };
        assert_eq!(*field.shape(), shape, "{name}");
        assert_eq!((field.layout(), field.inputs()), (layout, inputs), "{name}");
        assert_eq!(field.channels(), channels, "{name}");
        assert_eq!(field.parameter().cloned(), parameter.map(|p| p.parse().unwrap()), "{name}");
        assert_eq!((field.is_direct(), field.suspected_axes().len()), (direct, 0), "{name}");
        if layout != FieldLayout::Incompressible {
            let points: Vec<usize> = field.coordinates().iter().map(Vec::len).collect();
            assert_eq!(points, shape.grid, "{name}");
            assert_eq!(field.coordinates()[0][1], f64::from(1.5_f32 / 7.0), "{name}");
        }
        assert_eq!(field.t()[..frames.min(2)], [0.0, 0.25][..frames.min(2)], "{name}");
        assert_values(&field, name);
    }
}

#[test]
fn another_order_of_axes_is_found_named_and_put_right_by_the_flag() {
    for (name, fits) in [("transposed.hdf5", "nctyx"), ("1D_transposed_Nu0.1.hdf5", "nxt")] {
        let faults = check_files(&[golden(name)], 1e9).problems;
        assert_eq!(faults[0].kind, ProblemKind::AxisOrder, "{faults:?}");
        assert!(faults[0].message.contains(&format!("--axes {fits}")), "{}", faults[0].message);
        let reading = ReadOptions { axes: Some(fits.parse().unwrap()), ..ReadOptions::default() };
        let field = Field::open_as(&golden(name), &reading).unwrap();
        assert_eq!((field.shape().frames, field.shape().trajectories), (T, N));
        assert_values(&field, name);
    }
    // Written by a map over one device: two orders fit, and they make different things.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("1D_Advection_Sols_beta0.1.hdf5");
    let file = hdf5::File::create(&path).unwrap();
    file.new_dataset::<f32>().shape((1, 10, 4, 6)).create("tensor").unwrap();
    for (name, count) in [("x-coordinate", 6), ("t-coordinate", 5)] {
        let values: Vec<f32> = (0..count).map(|i| i as f32).collect();
        file.new_dataset_builder().with_data(&values).create(name).unwrap();
    }
    let write = |dataset: hdf5::Dataset| dataset.write_raw(&[1.0f32; 240]).unwrap();
    write(file.dataset("tensor").unwrap());
    drop(file);
    let message = check_files(&[path], 1e9).problems.remove(0).message;
    for words in [
        "--axes nctx (1 trajectories of 4 frames on 6 points with 10 channels)",
        "--axes cntx (10 trajectories of 4 frames on 6 points with 1 channels)",
    ] {
        assert!(message.contains(words), "{message}");
    }
    let reading = ReadOptions { axes: Some("nxyt".parse().unwrap()), ..ReadOptions::default() };
    let error = Field::open_as(&golden("transposed.hdf5"), &reading).unwrap_err();
    assert!(error.exit == Exit::Data && error.to_string().contains("--axes"), "{error}");
}

#[test]
fn every_written_layout_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let seed = fresh_seed();
    let cases: [(FieldLayout, usize, &[&str], usize); 5] = [
        (FieldLayout::Tensor, 2, &["vorticity"], 0),
        (FieldLayout::Tensor, 3, &["a", "b"], 0),
        (FieldLayout::Groups, 2, &["u", "v"], 0),
        (FieldLayout::Steady, 2, &["nu", "u"], 1),
        (FieldLayout::Incompressible, 2, &["force0", "force1", "velocity0", "velocity1"], 2),
    ];
    for (number, (layout, space, channels, inputs)) in cases.into_iter().enumerate() {
        let size = |i: u32| 2 + (seed.rotate_right(8 * i) % 5) as usize;
        let frames = if layout == FieldLayout::Steady { 1 } else { size(0) };
        let grid: Vec<usize> = (1..=space as u32).map(size).collect();
        let shape = Shape { trajectories: size(7), frames, grid, channels: channels.len() };
        let coordinates = shape.grid.iter().map(|n| (0..*n).map(|i| i as f64).collect()).collect();
        let header = Header {
            layout,
            channels: channels.iter().map(ToString::to_string).collect(),
            inputs,
            attributes: vec![("nu".into(), 0.5.into())],
            ..Header::tensor(shape.clone(), coordinates, (0..frames).map(|t| t as f64).collect())
        };
        let number_at = |n: usize, t: usize, point: usize, c: usize| {
            let t = if c < inputs { 0 } else { t };
            (((n * 10 + t) * 1000 + point) * 10 + c) as f32
        };
        let trajectory = |n: usize| {
            let place = |at: usize| {
                let (rest, c) = (at / shape.channels, at % shape.channels);
                number_at(n, rest / shape.points(), rest % shape.points(), c)
            };
            (0..shape.trajectory_len()).map(place).collect::<Vec<f32>>()
        };
        let path = folder.path().join(format!("{number}.hdf5"));
        write_field(&path, &header, |writer| {
            (0..shape.trajectories).try_for_each(|n| {
                let (all, frame_len) = (trajectory(n), shape.frame_len());
                // In two parts, the later one first.
                writer.write_frames(n, 1..frames, &all[frame_len..])?;
                writer.write_frames(n, 0..1, &all[..frame_len])
            })
        })
        .unwrap();
        let field = Field::open(&path).unwrap();
        assert_eq!((field.layout(), field.shape(), field.inputs()), (layout, &shape, inputs));
        assert!(field.is_direct());
        assert_eq!(field.channels(), channels);
        for n in 0..shape.trajectories {
            let mut out = vec![0.0; shape.trajectory_len()];
            field.read(n, &mut out).unwrap();
            assert_eq!(out, trajectory(n), "{layout}");
        }
    }
}

#[test]
fn each_trajectory_may_have_parameters_of_its_own() {
    let cases = [
        (
            "2D_diff-react_differing.h5",
            ["du=0.001,dv=0.005,k=0.005", "du=0.002,dv=0.005,k=0.005"],
            ["_du0.001", "_du0.002"],
        ),
        ("listed.hdf5", ["nu=0.1,rho=2", "nu=0.2,rho=2"], ["_nu0.1", "_nu0.2"]),
    ];
    for (name, parameters, suffixes) in cases {
        let source = golden(name);
        let field = Field::open(&source).unwrap();
        let parameters = parameters.map(|text| Some(text.parse::<Parameter>().unwrap()));
        assert_eq!(field.parameter(), parameters[0].as_ref(), "of the first trajectory");
        let found = field.regimes().unwrap();
        let told: Vec<_> = found.iter().map(|r| (&r.parameter, r.samples.as_slice())).collect();
        assert_eq!(told, [(&parameters[0], &[0, 2][..]), (&parameters[1], &[1])], "{name}");
        // A split of the unchanged file would treat it as one regime.
        let faults = check_files(std::slice::from_ref(&source), 1e9).problems;
        assert_eq!(faults[0].kind, ProblemKind::Parameter, "{faults:?}");
        assert!(faults[0].message.contains("ds-prep import"), "{}", faults[0].message);
        let folder = tempfile::tempdir().unwrap();
        let manifest = folder.path().join("split.json");
        let shares = [2, 1, 0].map(Share::Count);
        let error = divide(std::slice::from_ref(&source), shares, 1, &manifest).unwrap_err();
        assert!(error.exit == Exit::Data && error.to_string().contains("different"), "{error}");

        let plan = ImportOptions::default();
        let made = targets(&plan, &[source], folder.path(), Format::Hdf5, None).unwrap();
        for ((target, suffix), (parameter, samples)) in made.iter().zip(suffixes).zip(told) {
            import(&plan, target, |_| Ok(())).unwrap();
            let stem = target.path.file_stem().unwrap().to_str().unwrap();
            assert!(stem.ends_with(suffix), "{stem}");
            let one = Field::open(&target.path).unwrap();
            assert_eq!(one.only_regime().ok(), *parameter);
            let mut values = [0, 1].map(|_| vec![0.0; field.shape().trajectory_len()]);
            for (i, sample) in samples.iter().enumerate() {
                one.read(i, &mut values[0]).unwrap();
                field.read(*sample, &mut values[1]).unwrap();
                assert_eq!(values[0], values[1], "{name}: trajectory {sample}");
            }
        }
        assert_eq!(made.len(), 2);
        // The user can override this.
        let given = if name == "listed.hdf5" { "nu=3" } else { "du=3" };
        let plan = ImportOptions { parameter: Some(given.parse().unwrap()), ..plan };
        let made = |plan: &ImportOptions| {
            targets(plan, &[golden(name)], folder.path(), Format::Hdf5, None)
        };
        let error = made(&plan).unwrap_err();
        assert_eq!(error.exit, Exit::Usage);
        let text = error.to_string();
        assert!(text.contains("--override") && text.contains(&given.replace('3', "0.")), "{text}");
        let made = made(&ImportOptions { override_parameter: true, ..plan.clone() }).unwrap();
        assert_eq!((made.len(), made[0].samples.as_slice()), (1, &[0, 1, 2][..]));
    }
}
