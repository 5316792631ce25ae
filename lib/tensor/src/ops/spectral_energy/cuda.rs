//! How the kernels are launched.

use crate::args;
use crate::dtype::Dtype;
use crate::kernel::{Grid, ONLY_F32, Source, flat};
use crate::op::{GradBuffer, Grads, Launch, Saved};
use crate::tensor::Tensor;

/// The kernels.
pub static SOURCE: Source = Source {
    name: "spectral_energy",
    text: include_str!("spectral_energy.cu"),
    elements: ONLY_F32,
};

use super::{EPSILON, SpectralEnergy, terms};

impl Launch for SpectralEnergy {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let [p, t] = [inputs[0], inputs[1]];
        let [energy, ends_p, ends_t] = forward([p, t], out);
        vec![p.clone(), t.clone(), energy, ends_p, ends_t]
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        for (i, target) in [(0, false), (1, true)] {
            if let Some(grad) = grads.buffer(i) {
                backward([&saved[i], &saved[3 + i], &saved[2]], &dy, target, grad);
            }
        }
    }
}

/// Gives the energies, f32 [samples, 2], and of both inputs X_0 and X_{T/2} of every sample and channel, f32
/// [samples, 2, channels].
fn forward(inputs: [&Tensor; 2], out: &mut Tensor) -> [Tensor; 3] {
    let shape = inputs[0].shape();
    let (samples, tokens, channels) = (shape[0], shape[1], shape[2]);
    let device = inputs[0].device();
    let blocks = samples * channels.div_ceil(32);
    let grid = |blocks| Grid::new(blocks, flat::THREADS);
    let [(ends_p, p), (ends_t, t)] = inputs.map(|x| {
        let mut ends = Tensor::arbitrary_on(device, &[samples, 2, channels], Dtype::F32);
        let mut energies = Tensor::arbitrary_on(device, &[blocks], Dtype::F32);
        let args = args![x, &mut ends, &mut energies, tokens, channels];
        SOURCE.launch(Dtype::F32, "spectral_energy_partials", grid(blocks), args);
        (ends, energies)
    });
    let mut energy = Tensor::arbitrary_on(device, &[samples, 2], Dtype::F32);
    let tiles = channels.div_ceil(32);
    let args = args![&p, &t, &mut energy, out, samples, tiles, terms(shape) as f32, EPSILON as f32];
    SOURCE.launch(Dtype::F32, "spectral_energy_total", grid(1), args);
    [energy, ends_p, ends_t]
}

/// Gradient of the prediction or of the target `x`.
fn backward([x, ends, energy]: [&Tensor; 3], dy: &Tensor, target: bool, grad: &mut GradBuffer) {
    let shape = x.shape();
    let (samples, tokens, channels) = (shape[0], shape[1], shape[2]);
    let (chunk, chunks) = flat::chunks(tokens * channels);
    SOURCE.launch(
        Dtype::F32,
        "spectral_energy_backward",
        Grid::new(samples * chunks, flat::THREADS),
        args![
            x,
            ends,
            energy,
            dy,
            &mut grad.tensor,
            grad.accumulate,
            target,
            tokens,
            channels,
            chunk,
            chunks,
            (samples as f64 * terms(shape)) as f32,
            EPSILON as f32,
        ],
    );
}
