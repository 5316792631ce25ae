//! Reads files written by h5py, checks the files that we write, and checks the errors of refused files. tests/golden/
//! is made by golden_fields.py.

use data::fields::field::{Field, Shape};
use data::fields::generate::{Equation, Generation};
use data::fields::parameter::Parameter;
use data::fields::write::{Header, write_field};
use std::path::{Path, PathBuf};
use unix::Exit;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn small(equation: Equation, parameter: f64) -> Generation {
    let all = Generation::new(equation, parameter, 7);
    Generation { seed: 9, grid: 33, frames: 6, end: 0.5, ..all }
}

fn read_all(path: &Path) -> Vec<f32> {
    let field = Field::open(path).unwrap();
    let length = field.shape().trajectory_len();
    let mut out = vec![0.0; field.trajectories() * length];
    for (i, out) in out.chunks_mut(length).enumerate() {
        field.read(i, out).unwrap();
    }
    out
}

#[test]
fn files_of_h5py_are_read_whatever_their_storage() {
    for (name, parameter, direct, times) in [
        ("contiguous.hdf5", Parameter::new("nu", 0.01), true, 6),
        ("gzip_f64.hdf5", Parameter::new("beta", 0.4), false, 5),
        ("big_endian.hdf5", Parameter::new("nu", 0.5), false, 5),
    ] {
        let field = Field::open(&golden(name)).unwrap();
        let shape = Shape { trajectories: 3, frames: 5, grid: vec![16], channels: 1 };
        assert_eq!(*field.shape(), shape, "{name}");
        assert_eq!(field.parameter(), Some(&parameter), "{name}");
        assert_eq!(field.is_direct(), direct, "{name}");
        assert_eq!(
            (field.coordinates()[0][0], field.coordinates()[0].len(), field.t().len()),
            (0.03125, 16, times)
        );
        for i in 0..3 {
            let mut out = [0.0; 2 * 16];
            field.read_frames(i, 2..4, &mut out).unwrap();
            for (at, value) in out.iter().enumerate() {
                let (j, k) = (2 + at / 16, at % 16);
                let expected = i as f32 + j as f32 / 64.0 + k as f32 / 4096.0;
                assert_eq!(*value, expected, "{name}: trajectory {i}, frame {j}, point {k}");
            }
        }
        let mut out = [0.0; 16];
        assert_eq!(field.read_frames(3, 0..1, &mut out).unwrap_err().exit, Exit::Bug);
        assert_eq!(field.read_frames(0, 4..6, &mut [0.0; 32]).unwrap_err().exit, Exit::Bug);
        assert_eq!(field.read_frames(0, 0..2, &mut out).unwrap_err().exit, Exit::Bug);
    }
}

#[test]
fn unknown_layouts_are_refused_with_what_was_found() {
    let fails = |name: &str, exit: Exit, words: &[&str]| {
        let error = Field::open(&golden(name)).unwrap_err();
        assert_eq!(error.exit, exit, "{error}");
        for word in words {
            assert!(error.to_string().contains(word), "{error} lacks {word}");
        }
    };
    fails("grouped.hdf5", Exit::Data, &["grouped.hdf5", "--layout", "density [2, 3, 4]", "0000"]);
    fails("rank_four.hdf5", Exit::Data, &["[2, 3, 4, 4]", "--axes"]);
    fails("absent.hdf5", Exit::NoInput, &["absent.hdf5"]);
    fails("../golden_fields.py", Exit::Data, &["golden_fields.py", "HDF5"]);
}

#[test]
fn a_truncated_file_is_bad_data() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.hdf5");
    small(Equation::Burgers, 0.1).write(&path, || Ok(())).unwrap();
    let length = std::fs::metadata(&path).unwrap().len();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(length - 100).unwrap();
    let error = Field::open(&path).unwrap_err();
    assert_eq!(error.exit, Exit::Data);
    assert!(error.to_string().contains("trunc"), "{error}");
}

#[test]
fn a_file_that_is_cut_while_it_is_open_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.hdf5", "a.safetensors"] {
        let path = folder.path().join(name);
        let shape = Shape { trajectories: 3, frames: 5, grid: vec![16], channels: 1 };
        let header = Header::tensor(shape, vec![Vec::new()], Vec::new());
        write_field(&path, &header, |writer| {
            (0..3).try_for_each(|i| writer.write(i, &[0.5; 5 * 16]))
        })
        .unwrap();
        let field = Field::open(&path).unwrap();
        let mut frame = vec![0.0; field.shape().frame_len()];
        // Read once, and so often that the file is read through its map.
        for reads in [1, 10_000] {
            if reads > 1 {
                field.read_often();
            }
            (0..reads).for_each(|_| field.read_frames(2, 4..5, &mut frame).unwrap());
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            let size = file.metadata().unwrap().len();
            file.set_len(0).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(20));
            let error = field.read_frames(2, 4..5, &mut frame).unwrap_err();
            assert_eq!(error.exit, Exit::Io);
            assert!(error.to_string().contains(name), "{error}");
            file.set_len(size).unwrap();
        }
    }
}

#[test]
fn written_files_have_layout_and_provenance() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(small(Equation::Burgers, 0.01).file_name());
    assert!(path.ends_with("1D_Burgers_Sols_Nu0.01.hdf5"));
    small(Equation::Burgers, 0.01).write(&path, || Ok(())).unwrap();
    let field = Field::open(&path).unwrap();
    assert!(field.is_direct());
    assert_eq!(field.parameter(), Some(&Parameter::new("nu", 0.01)));
    assert_eq!((field.t()[0], field.t()[5], field.t().len()), (0.0, 0.5, 6));

    let ours = read_all(&path);
    let file = hdf5::File::open(&path).unwrap();
    assert_eq!(file.dataset("tensor").unwrap().shape(), [7, 6, 33]);
    assert_eq!(file.dataset("x-coordinate").unwrap().shape(), [33]);
    assert_eq!(file.attr("Nu").unwrap().read_scalar::<f64>().unwrap(), 0.01);
    assert_eq!(file.attr("seed").unwrap().read_scalar::<u64>().unwrap(), 9);
    let text = file.attr("generator").unwrap().read_scalar::<hdf5::types::VarLenUnicode>().unwrap();
    assert!(text.starts_with("longhaul "), "{text}");
    // Through the library, the values are the same as with positional reads.
    assert_eq!(file.dataset("tensor").unwrap().read_raw::<f32>().unwrap(), ours);
}

#[test]
fn numbers_depend_on_seed_index_and_parameter_alone() {
    let folder = tempfile::tempdir().unwrap();
    for equation in [Equation::Burgers, Equation::Advection] {
        let whole = small(equation, 0.02);
        let mut made = Vec::new();
        for threads in [1, 2, 5] {
            let path = folder.path().join(format!("{equation:?}-{threads}"));
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| whole.write(&path, || Ok(()))).unwrap();
            made.push(std::fs::read(&path).unwrap());
        }
        assert!(made[0] == made[1] && made[0] == made[2], "{equation:?}: threads change the file");

        let part = Generation { samples: 3, first: 4, ..whole.clone() };
        let path = folder.path().join(format!("{equation:?}-part"));
        part.write(&path, || Ok(())).unwrap();
        let all = read_all(&folder.path().join(format!("{equation:?}-1")));
        assert_eq!(read_all(&path), all[4 * 6 * 33..]);

        let other = folder.path().join(format!("{equation:?}-seed"));
        Generation { seed: 10, ..whole.clone() }.write(&other, || Ok(())).unwrap();
        assert_ne!(read_all(&other), all);
    }
}

#[test]
fn nothing_is_overwritten_and_nothing_is_left_of_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.hdf5");
    std::fs::write(&path, "precious").unwrap();
    let error = small(Equation::Burgers, 0.1).write(&path, || Ok(())).unwrap_err();
    assert_eq!(error.exit, Exit::CannotCreate);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");

    let bad = Generation { grid: 2, ..small(Equation::Burgers, 0.1) };
    assert_eq!(bad.write(&folder.path().join("b.hdf5"), || Ok(())).unwrap_err().exit, Exit::Usage);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}
