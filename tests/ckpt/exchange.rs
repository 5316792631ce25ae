//! Exchange of weights with other programs: `export`, `import`.

use std::collections::BTreeMap;

use learn::checkpoint::{load, write};
use learn::foreign;
use serde::Deserialize;
use tensor::Dtype;

use super::*;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/torch")
}

#[derive(Deserialize)]
struct Expected {
    shape: Vec<usize>,
    values: Vec<f64>,
}

/// Compares with the values that PyTorch itself read: every dtype, views and shared storage, nested containers.
#[test]
fn pytorch_files_are_read_as_by_pytorch() {
    let text = fs::read_to_string(golden().join("values.json")).unwrap();
    let files: BTreeMap<String, BTreeMap<String, Expected>> = serde_json::from_str(&text).unwrap();
    assert_eq!(files.len(), 5);
    for (name, tensors) in &files {
        let file = foreign::open(&golden().join(format!("{name}.pt"))).unwrap();
        assert_eq!(file.tensors().len(), tensors.len(), "{name}");
        for stored in file.tensors() {
            let expected = &tensors[&stored.name];
            assert_eq!(stored.shape, expected.shape, "{name}: {}", stored.name);
            let wide = file.read(stored, Dtype::F64).unwrap();
            assert_eq!(wide.to_f64(), expected.values, "{name}: {}", stored.name);
            let narrow: Vec<f32> = expected.values.iter().map(|x| *x as f32).collect();
            assert_eq!(file.read(stored, Dtype::F32).unwrap().read::<f32>(), narrow);
        }
    }
}

/// A pickle that refers to anything but tensors is refused, naming what it refers to, and its code is not executed.
#[test]
fn pickles_are_never_executed() {
    let (_folder, run) = run();
    let cases = [
        ("system", "posix.system"),
        ("popen", ".Popen"),
        ("eval", "__builtin__.eval"),
        ("getattr", "__builtin__.getattr"),
        ("module", "torch.nn.modules.linear.Linear"),
        ("set", "__builtin__.set"),
        ("legacy", "before 1.6"),
    ];
    for (name, words) in cases {
        let here = tempfile::tempdir().unwrap();
        let file = golden().join(format!("refused-{name}.pt"));
        let output = command(&["import", "-o", "out", "--like"], &[&run, &file])
            .current_dir(here.path())
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(65), "{name}: {stderr}");
        assert!(stderr.contains(words), "{name}: {stderr}");
        assert_eq!(fs::read_dir(here.path()).unwrap().count(), 0, "{name} left something behind");
    }
}

/// A model with the tensors of the golden state_dict.
fn like(folder: &Path) -> PathBuf {
    let f32s = |shape: &[usize]| Tensor::zeros(shape, Dtype::F32);
    let model = vec![
        ("fc.weight".to_string(), f32s(&[2, 3])),
        ("fc.bias".to_string(), f32s(&[2])),
        ("norm.weight".to_string(), f32s(&[2])),
        ("norm.bias".to_string(), Tensor::zeros(&[2], Dtype::F64)),
    ];
    let buffers = vec![("field.mean".to_string(), Tensor::from_slice(&[0.5_f64], &[1]))];
    let tensors = [("model".to_string(), model), ("buffers".into(), buffers)].into();
    write(folder, &State { tensors, ..state(9) }, 1).unwrap()
}

const MAPPED: [&str; 6] =
    ["--map", "0.*=fc.*", "--map", "1.*=norm.*", "--ignore", "1.*num_batches*"];

#[test]
fn import_makes_a_checkpoint_like_the_given_one() {
    let folder = tempfile::tempdir().unwrap();
    let (like, out) = (like(folder.path()), folder.path().join("out"));
    let file = golden().join("state_dict.pt");
    let mut words = vec!["import", "--json"];
    words.extend(MAPPED);
    words.extend(["--ignore", "*running*", "-o", out.to_str().unwrap(), "--like"]);
    let output = ckpt(&words, &[&like, &file]);
    assert_eq!((output.status, output.stderr.as_str()), (Some(0), ""));
    assert_eq!(output.json()[0]["tensors"], 4);
    let made = load(&out).unwrap();
    let source = foreign::open(&file).unwrap();
    let weight = source.tensors().iter().find(|t| t.name == "0.weight").unwrap();
    let weight = source.read(weight, Dtype::F32).unwrap();
    let tensors = made.tensors("model").unwrap();
    assert_eq!((&*tensors[0].0, tensors[0].1.to_f64()), ("fc.weight", weight.to_f64()));
    assert_eq!((tensors[3].1.dtype(), tensors[3].1.to_f64()), (Dtype::F64, vec![0.0, 0.0]));
    assert_eq!(made.tensors("buffers").unwrap()[0].1.to_f64(), [0.5]);
    let manifest = &made.manifest;
    assert_eq!((manifest.task.as_str(), manifest.config_hash.as_str()), ("codec", "c0ffee"));
    assert_eq!(manifest.progress["imported"]["blake3"].as_str().unwrap().len(), 64);
    assert_eq!(ckpt(&["verify"], &[&out]).status, Some(0));
}

#[test]
fn import_of_another_model_lists_all_differences() {
    let folder = tempfile::tempdir().unwrap();
    let (like, file) = (like(folder.path()), golden().join("state_dict.pt"));
    let out = folder.path().join("out");
    let mut words = vec!["import", "--map", "0.bias=fc.weight", "--map", "1.bias=fc.weight"];
    words.extend(["-o", out.to_str().unwrap(), "--like"]);
    let output = ckpt(&words, &[&like, &file]);
    assert_eq!(output.status, Some(65));
    for words in [
        "missing: fc.bias [2]",
        "shape: fc.weight is [2] in the file, [2, 3]",
        "unexpected: 0.weight [2, 3]",
        "unexpected: 1.num_batches_tracked []",
        "duplicate: fc.weight, the second from 1.bias",
    ] {
        assert!(output.stderr.contains(words), "{words}: {}", output.stderr);
    }
    assert!(!out.exists());
}

#[test]
fn export_and_import_preserve_all_bits() {
    let (folder, run) = run();
    let (file, out) = (folder.path().join("w.safetensors"), folder.path().join("out"));
    let output = ckpt(&["export", "--json", "-o", file.to_str().unwrap()], &[&run]);
    assert_eq!((output.status, output.stderr.as_str()), (Some(0), ""));
    assert_eq!(
        fs::read(&file).unwrap(),
        fs::read(run.join("ckpt/latest/model.safetensors")).unwrap()
    );
    let output = ckpt(&["import", "-o", out.to_str().unwrap(), "--like"], &[&run, &file]);
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    let output = ckpt(&["diff", "--json"], &[&run, &out]);
    let changed = output.json().into_iter().filter(|row| row["file"] == "model").count();
    assert_eq!(changed, 0, "{}", output.stdout);

    let again = ckpt(&["export", "-o", file.to_str().unwrap()], &[&run]);
    assert_eq!(again.status, Some(73), "{}", again.stderr);
    let other = folder.path().join("x");
    let output = ckpt(&["export", "--what", "ema", "-o", other.to_str().unwrap()], &[&run]);
    assert_eq!(output.status, Some(66));
    assert!(output.stderr.contains("it has model, optim-0-of-1"), "{}", output.stderr);
    flip(&run.join("ckpt/step-00000030/model.safetensors"), 3);
    let output = ckpt(&["export", "-o", other.to_str().unwrap()], &[&run]);
    assert_eq!(output.status, Some(65), "{}", output.stderr);
    assert!(!other.exists());
}
