//! Recorded work, done again with other values.
#![cfg(feature = "emu")]

use tensor::kernel::{Graph, constant};
use tensor::ops::residual::Residual;
use tensor::{Device, Tape, Tensor};

/// x + c by a kernel, c being a constant of two MiB.
fn work(x: &Tensor) -> unix::Result<Tensor> {
    let c: Vec<f32> = (0..x.len()).map(|i| i as f32).collect();
    let c = constant(&Tensor::of(&c, x.shape()), x.device())?;
    let [x, c] = [x, &c].map(|t| tensor::constant(t.clone()));
    Ok(Tape::without_gradients().apply(Residual::Plain, &[&x, &c])?.value().clone())
}

#[test]
fn a_recording_keeps_the_constants_it_reads_and_moves_no_values() {
    let device = Device::Emu;
    let on_device =
        |value: f32| Tensor::of(&vec![value; 1 << 19], &[1 << 19]).to_device(device).unwrap();
    let x = on_device(1.0);
    let plain = work(&x).unwrap().to_host().unwrap();
    assert_eq!(plain.read::<f32>()[7], 8.0);
    let (graph, out) = Graph::record(device, || work(&x)).unwrap();
    // More constants than are kept: memory of the first is free for others, were it not for the recording.
    let others: Vec<Tensor> =
        (0..300).map(|i| constant(&Tensor::scalar(i as f32 + 0.5), device).unwrap()).collect();
    let _taken = on_device(-1.0);
    for value in [2.5, -3.0] {
        x.overwrite(&on_device(value));
        graph.replay();
        let found = out.to_host().unwrap();
        assert!((0..).zip(found.read::<f32>()).all(|(i, y)| *y == value + i as f32), "{value}");
    }
    assert_eq!(others.len(), 300);
    // A device has one first error for all threads, so this is no test of its own.
    let refused = Graph::record(device, || x.to_host()).unwrap_err().to_string();
    assert!(refused.contains("while a graph is recorded"), "{refused}");
}
