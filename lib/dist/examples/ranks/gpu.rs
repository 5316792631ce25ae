//! Checks NCCL's collectives on a GPU. The numbers are small integers, whose sums are exact in any order and in bf16.

use dist::{Bucket, Collective, Reducer};
use std::time::Instant;
use tensor::kernel::Graph;
use tensor::kernel::cuda::Gpu;
use tensor::random::{Philox, Purpose};
use tensor::{Device, Dtype, Tensor};
use unix::{Error, Result};

/// The lengths of the tensors of each bucket: odd, of several alignments, none at all.
const BUCKETS: [&[usize]; 5] = [&[70_001, 3], &[5, 17, 64], &[], &[33_333], &[1, 1]];

/// Tensors of a rank, on the host.
fn tensors(seed: u64, round: usize, rank: usize, lengths: &[usize]) -> Vec<Tensor> {
    let philox = Philox::new(seed, Purpose::Test).at_update(round as u64);
    let of = |(tensor, len): (usize, &usize)| {
        let number = |i| (philox.uniform((rank * 100 + tensor) as u64, i) * 60.0).floor() - 30.0;
        let values: Vec<f32> = (0..*len as u64).map(number).collect();
        Tensor::from_slice(&values, &[*len])
    };
    lengths.iter().enumerate().map(of).collect()
}

/// The GPU of this rank. Errors: there is none.
fn gpu(ranks: &dyn Collective) -> Result<Device> {
    let count = Gpu::count()?.max(1);
    Ok(Device::Cuda(ranks.local_rank() as u32 % count))
}

fn expect(holds: bool, what: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::bug(what())) }
}

/// The sums over all ranks.
fn sums(seed: u64, round: usize, ranks: usize, lengths: &[usize]) -> Vec<Tensor> {
    let mut sums = tensors(seed, round, 0, lengths);
    for rank in 1..ranks {
        for (sum, other) in sums.iter_mut().zip(tensors(seed, round, rank, lengths)) {
            sum.write::<f32>().iter_mut().zip(other.read::<f32>()).for_each(|(s, x)| *s += x);
        }
    }
    sums
}

/// Runs all checks, with sums in this type. Errors: the first that fails.
pub fn all(ranks: &dyn Collective, seed: u64, dtype: Dtype) -> Result<()> {
    let (rank, size, gpu) = (ranks.rank(), ranks.size(), gpu(ranks)?);
    // The bucket without tensors has an owner too.
    let owners = [None, Some(size - 1), Some(0), None, Some(0)];
    let buckets: Vec<Bucket> = BUCKETS
        .iter()
        .zip(owners)
        .map(|(lengths, owner)| Bucket { elements: lengths.iter().sum(), owner, dtype })
        .collect();
    let mut reducer = ranks.reducer(gpu, &buckets)?;
    for round in 0..6 {
        for (number, lengths) in BUCKETS.iter().enumerate() {
            let own = tensors(seed, 10 * round + number, rank, lengths);
            let own: Result<Vec<Tensor>> = own.iter().map(|t| t.to_device(gpu)).collect();
            let mut own = own?;
            // In some rounds, some of the tensors are computed where they are summed.
            if round % 3 > 0 {
                let shapes: Vec<Vec<usize>> = lengths.iter().map(|n| vec![*n]).collect();
                let buffers = reducer.buffers(number, &shapes)?.unwrap_or_default();
                for (index, mut buffer) in buffers.into_iter().enumerate() {
                    if index % 2 == 0 || round % 3 == 2 {
                        buffer.assign(&own[index]);
                        own[index] = buffer;
                    }
                }
            }
            reducer.submit(number, own)?;
        }
        for number in [3, 0, 1, 4, 2] {
            let found = reducer.wait(number)?;
            let owner = buckets[number].owner.is_none_or(|owner| owner == rank);
            let expected = sums(seed, 10 * round + number, size, BUCKETS[number]);
            for (found, expected) in found.iter().zip(&expected).filter(|_| owner) {
                expect(found.to_host()?.read::<f32>() == expected.read::<f32>(), || {
                    format!("round {round}, bucket {number}: a wrong sum")
                })?;
            }
        }
    }
    let times = reducer.take_times();
    expect(times.busy.as_nanos() > 0, || format!("{times:?}"))?;
    refusals(&mut *reducer, gpu, seed, rank)?;
    small(ranks)?;
    segments(ranks, seed, dtype)
}

/// What the training loop must not do is an error.
fn refusals(reducer: &mut dyn Reducer, gpu: Device, seed: u64, rank: usize) -> Result<()> {
    let own = || -> Result<Vec<Tensor>> {
        tensors(seed, 1, rank, BUCKETS[1]).iter().map(|t| t.to_device(gpu)).collect()
    };
    let shapes: Vec<Vec<usize>> = BUCKETS[1].iter().map(|n| vec![*n]).collect();
    let refused = |result: Result<()>, words: &str| {
        let message = result.err().map(|error| error.to_string()).unwrap_or_default();
        expect(message.contains(words), || format!("no {words:?} in {message:?}"))
    };
    let buffers = reducer.buffers(1, &shapes)?.unwrap_or_default();
    refused(reducer.submit(1, own()?), "is still held")?;
    drop(buffers);
    refused(reducer.submit(1, vec![Tensor::zeros_on(gpu, &[86], Dtype::F32)]), "was given")?;
    refused(reducer.submit(1, tensors(seed, 1, rank, BUCKETS[1])), "only f32 on cuda:")?;
    refused(reducer.wait(1).map(drop), "was not submitted")?;
    reducer.submit(1, own()?)?;
    refused(reducer.submit(1, own()?), "before its sum was taken")?;
    let sums = reducer.wait(1)?;
    refused(reducer.buffers(1, &shapes).map(drop), "is still held")?;
    drop(sums);
    Ok(())
}

/// All-gather and all-reduce.
fn small(ranks: &dyn Collective) -> Result<()> {
    let (rank, size, gpu) = (ranks.rank(), ranks.size(), gpu(ranks)?);
    let of = |rank: usize, i: usize| -> Tensor {
        let values: Vec<f32> = (0..1000 * i + 1).map(|x| (x * 7 + rank) as f32).collect();
        Tensor::from_slice(&values, &[values.len()]).to_dtype(if i == 1 {
            Dtype::Bf16
        } else {
            Dtype::F32
        })
    };
    let own: Result<Vec<Tensor>> = (0..2 * size + 1).map(|i| of(rank, i).to_device(gpu)).collect();
    let mut own = own?;
    let before: Vec<usize> = own.iter().map(Tensor::storage_id).collect();
    let mut owned: Vec<(usize, &mut Tensor)> =
        own.iter_mut().enumerate().map(|(i, tensor)| (i % size, tensor)).collect();
    ranks.all_gather(&mut owned)?;
    for (i, tensor) in own.iter().enumerate() {
        let same = tensor.to_host()?.as_bytes() == of(i % size, i).as_bytes();
        expect(same && tensor.storage_id() == before[i], || format!("share of tensor {i}"))?;
    }
    let mut number = Tensor::scalar(0.5 + rank as f64).to_device(gpu)?;
    ranks.all_reduce(&mut number)?;
    let expected: f64 = (0..size).map(|rank| 0.5 + rank as f64).sum();
    expect(number.to_host()?.item() == expected, || format!("all-reduce: {number:?}"))
}

/// A sum over ranks starts, and can end, before the rest of a recorded graph is submitted.
fn segments(ranks: &dyn Collective, seed: u64, dtype: Dtype) -> Result<()> {
    let gpu = gpu(ranks)?;
    let mut reducer = ranks.reducer(gpu, &[Bucket { dtype, ..1000.into() }, 7.into()])?;
    let shapes = [vec![vec![1000]], vec![vec![7]]];
    let inputs = |round| -> Result<Vec<Tensor>> {
        let host = tensors(seed, round, ranks.rank(), &[1000, 7]);
        host.iter().map(|t| t.to_device(gpu)).collect()
    };
    let mut buffers = Vec::new();
    for (number, shapes) in shapes.iter().enumerate() {
        buffers.extend(reducer.buffers(number, shapes)?.unwrap_or_default());
    }
    let given = inputs(0)?;
    let mut graph = Graph::record(gpu, given.clone(), |segments| {
        for (buffer, x) in buffers.iter_mut().zip(&given) {
            buffer.assign(x);
            segments.cut()?;
        }
        Ok(Vec::new())
    })?;
    drop((buffers, given));
    for round in 1..4 {
        let expected = sums(seed, round, ranks.size(), &[1000, 7]);
        graph.replay(&inputs(round)?, |segment| {
            let Some(shapes) = shapes.get(segment) else { return Ok(()) };
            let gradients = reducer.buffers(segment, shapes)?.unwrap_or_default();
            reducer.submit(segment, gradients)?;
            // The sum is read before the next segment is submitted.
            let sum = reducer.wait(segment)?.remove(0).to_host()?;
            expect(sum.read::<f32>() == expected[segment].read::<f32>(), || {
                format!("round {round}, segment {segment}: a wrong sum")
            })
        })?;
    }
    Ok(())
}

/// Sums repeatedly, to be interfered with.
pub fn sum_for(ranks: &dyn Collective, seconds: f64) -> Result<()> {
    let gpu = gpu(ranks)?;
    let mut reducer = ranks.reducer(gpu, &[1000.into()])?;
    ranks.watch();
    super::say(format_args!("ready {} {}", ranks.rank(), std::process::id()));
    let since = Instant::now();
    let gradient = Tensor::full(&[1000], 1.0, Dtype::F32).to_device(gpu)?;
    while !super::any(ranks, since.elapsed().as_secs_f64() > seconds)? {
        reducer.submit(0, vec![gradient.clone()])?;
        let sum = reducer.wait(0)?.remove(0).to_host()?;
        expect(sum.read::<f32>()[999] == ranks.size() as f32, || "a wrong sum".into())?;
    }
    Ok(())
}
