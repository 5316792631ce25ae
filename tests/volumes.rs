//! Records on grids of three axes through the whole pipeline.

use crate::common::shell;
use crate::records::{done, metrics, npy, refused, values_of};
use data::fields::field::Axes;
use data::fields::write::{Header, write_field};
use data::records::InputArray;
use std::fs;

/// Points along each axis of a volume.
const VOLUME: [usize; 3] = [4, 6, 4];

/// Periodic functions u of three axes, and the targets u², du/dx, du/dy and du/dz: a field and a vector.
fn volumes(records: usize) -> (Vec<f32>, Vec<f32>) {
    let (mut inputs, mut targets) = (Vec::new(), Vec::new());
    let [nx, ny, nz] = VOLUME;
    for record in 0..records {
        let phase = |k: usize| ((record * 7919 + k * 104_729) % 1000) as f64 / 1000.0;
        let u = |x: usize, y: usize, z: usize| {
            let wave = |at: usize, n: usize, k: usize| {
                (2.0 * std::f64::consts::PI * (at as f64 / n as f64 + phase(k))).sin()
            };
            wave(x, nx, 1) * (1.0 + phase(4)) + wave(y, ny, 2) * wave(z, nz, 3) + phase(5)
        };
        for at in 0..nx * ny * nz {
            let (x, y, z) = (at / nz / ny, at / nz % ny, at % nz);
            let along_x = u((x + 1) % nx, y, z) - u((x + nx - 1) % nx, y, z);
            let along_y = u(x, (y + 1) % ny, z) - u(x, (y + ny - 1) % ny, z);
            let along_z = u(x, y, (z + 1) % nz) - u(x, y, (z + nz - 1) % nz);
            inputs.push(u(x, y, z) as f32);
            let all = [u(x, y, z).powi(2), along_x, along_y, along_z];
            targets.extend(all.map(|value| value as f32));
        }
    }
    (inputs, targets)
}

const VOLUME_CONFIG: &str = "seed: 3
data:
  split: split.json
  stats: stats.json
  augmentation: {flips: true, rotations: true, vectors: {target: [[1, 2, 3]]}}
loss: {kind: mse}
training: {updates: 60, batch_size: 16, validate_every: 20, log_every: 1}
optimizer: {method: {kind: adamw}, learning_rate: 4e-3}
checkpoint: {every: 20}
";

#[test]
fn volumes_are_learned_resumed_scored_and_predicted() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    let (inputs, targets) = volumes(160);
    let [nx, ny, nz] = VOLUME;
    npy(&folder.join("u.npy"), &[160, nx, ny, nz], &inputs);
    npy(&folder.join("v.npy"), &[160, nx, ny, nz, 4], &targets);
    let run_of = |model: &str| {
        let config = format!("model: {{padding_mode: circular, {model}}}\n{VOLUME_CONFIG}");
        fs::write(folder.join("config.yaml"), config).unwrap();
        "train-stage regression -c config.yaml"
    };
    done(
        folder,
        "ds-prep import u.npy --axes nxyz --target v.npy --target-axes nxyzc -o pairs
         ds-prep split pairs --train 100 --validation 20 --test 40 -o split.json
         ds-prep stats split.json
         ds-prep check pairs split.json",
    );
    let listed = done(folder, "ds-prep ls pairs").stdout;
    assert!(listed.contains("4 x 6 x 4 points, 4 channels"), "{listed}");
    let unet = "kind: unet, hidden: 8, levels: 1, norm: group, activation: gelu";
    let run = run_of(&format!("backbone: {{{unet}}}"));
    done(folder, &format!("{run} --run whole"));
    let killed = shell(folder, &format!("FAIL=log.write:50=kill {run} --run killed"));
    assert_eq!(killed.status, Some(137), "{}", killed.stderr);
    done(folder, &format!("{run} --run killed"));
    let weights = |run: &str| {
        fs::read(folder.join(run).join("ckpt/step-00000060/model.safetensors")).unwrap()
    };
    assert!(weights("whole") == weights("killed"));

    done(folder, "evaluate score whole --data split.json -o report");
    let report = metrics(folder, "report");
    let nrmse = |method: &str| report["methods"][method]["nrmse"]["value"].as_f64().unwrap();
    assert!(nrmse("regression") < 0.6 * nrmse("mean"), "{report}");
    assert!(nrmse("linear 3x3x3") < 0.9 * nrmse("linear 1x1x1"), "{report}");
    assert!(folder.join("report/pictures/records.png").is_file());
    done(folder, "evaluate predict whole --inputs u.npy --axes nxyz -o predicted.npy");
    let header = fs::read(folder.join("predicted.npy")).unwrap();
    assert!(String::from_utf8_lossy(&header[..128]).contains("(160, 4, 6, 4, 4, )"));
    assert_eq!(values_of(&folder.join("predicted.npy")).len(), targets.len());
    // With the coordinates of the inputs, which differ by axis.
    let coordinates = VOLUME.map(|n| (0..n).map(|at| 0.25 * at as f64 + n as f64).collect());
    let header = Header::records(160, &VOLUME, 1, coordinates.to_vec());
    write_field(&folder.join("u.h5"), &header, |writer| {
        inputs.chunks_exact(nx * ny * nz).enumerate().try_for_each(|(i, u)| writer.write(i, u))
    })
    .unwrap();
    done(folder, "evaluate predict whole --inputs u.h5:target --axes nxyzc -o predicted.h5");
    let path = folder.join("predicted.h5:target");
    let array = InputArray::open(&path, &Some(Axes::parse("nxyzc").unwrap())).unwrap();
    assert_eq!(array.coordinates().unwrap(), coordinates);

    // The other backbones, patches, and those that have no third axis.
    let short = "-s training.updates=2 -s training.validate_every=2 -s checkpoint.every=2";
    for (name, model) in [
        ("resnet", "patch: 2, backbone: {kind: resnet, hidden: 8, blocks: 1}"),
        ("autoencoder", "backbone: {kind: autoencoder, layers: [8], latent_dim: 4}"),
        (
            "attention",
            "patch: 2, backbone: {kind: pdet_stack, hidden: 8, depth: 1, positions: true, \
             attention: {kind: multi_head, heads: 2}}",
        ),
    ] {
        done(folder, &format!("{} {short} --run {name}", run_of(model)));
        done(folder, &format!("evaluate score {name} --data split.json -o {name}-report"));
    }
    let fno = run_of("backbone: {kind: fno, hidden: 8, modes: 4}");
    refused(folder, &format!("{fno} --run fno"), 78, "kind: fno supports one or two axes");
    assert_eq!(fs::read_dir(folder.join("fno/ckpt")).unwrap().count(), 0);
}
