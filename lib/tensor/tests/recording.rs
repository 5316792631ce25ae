//! Captured graphs, replayed with other values.
#![cfg(feature = "emu")]

use tensor::kernel::{Graph, constant};
use tensor::ops::binary::Binary;
use tensor::{Device, Dtype, Tape, Tensor};

/// x + c by a kernel, where c is a constant of two MiB.
fn work(x: &Tensor) -> unix::Result<Tensor> {
    let c: Vec<f32> = (0..x.len()).map(|i| i as f32).collect();
    let c = constant(&Tensor::from_slice(&c, x.shape()), x.device())?;
    let [x, c] = [x, &c].map(|t| tensor::constant(t.clone()));
    Ok(Tape::without_gradients().apply(Binary::Add, &[&x, &c])?.value().clone())
}

#[test]
fn a_recording_keeps_the_constants_it_reads_and_moves_no_values() {
    let device = Device::Emu;
    let on_device = |value: f32| {
        Tensor::from_slice(&vec![value; 1 << 19], &[1 << 19]).to_device(device).unwrap()
    };
    let x = on_device(1.0);
    let plain = work(&x).unwrap().to_host().unwrap();
    assert_eq!(plain.read::<f32>()[7], 8.0);
    let mut graph = Graph::record(device, vec![x.clone()], |segments| {
        let y = work(&x)?;
        segments.cut()?;
        Ok(vec![y, x.reshape(&[2, 1 << 18])])
    })
    .unwrap();
    // More constants than are cached: the memory of the first would be reused, if the graph did not keep it.
    let large = |i: usize| Tensor::full(&[1 << 19], i as f64 + 0.5, Dtype::F32);
    let others: Vec<Tensor> = (0..40).map(|i| constant(&large(i), device).unwrap()).collect();
    let _taken = on_device(-1.0);
    // A tensor that shares the memory of an input would see it change.
    let error = graph.replay([&on_device(0.0)], |_| Ok(())).unwrap_err().to_string();
    assert!(error.contains("is shared"), "{error}");
    assert_eq!(x.to_host().unwrap().read::<f32>()[7], 1.0);
    drop(x);
    for value in [2.5, -3.0] {
        let mut segments = Vec::new();
        graph
            .replay([&on_device(value)], |segment| {
                segments.push(segment);
                Ok(())
            })
            .unwrap();
        assert_eq!(segments, [0, 1]);
        let [y, x] = graph.outputs() else { panic!("two outputs") };
        let y = y.to_host().unwrap();
        assert!((0..).zip(y.read::<f32>()).all(|(i, y)| *y == value + i as f32), "{value}");
        assert_eq!(x.to_host().unwrap().read::<f32>()[9], value);
    }
    let short = Tensor::scalar(1.0_f32).to_device(device).unwrap();
    for wrong in [&[][..], &[&short]] {
        let error = graph.replay(wrong.iter().copied(), |_| Ok(())).unwrap_err().to_string();
        assert!(error.contains("is missing"), "{error}");
    }
    assert_eq!(others.len(), 40);
    // A pass may have many constants.
    let x = on_device(1.0);
    let many = || {
        let terms = (0..1000).map(|i| constant(&Tensor::scalar(i as f32 + 0.25), device));
        terms.collect::<unix::Result<Vec<_>>>()
    };
    drop(many().unwrap());
    assert!(Graph::record(device, vec![], |_| many()).is_ok());
    // Not a separate test, because a device has one first error for all threads.
    let refused =
        Graph::record(device, vec![], |_| Ok(vec![x.to_host()?])).unwrap_err().to_string();
    assert!(refused.contains("while a graph is recorded"), "{refused}");
}
