//! Checks every collective against the result that each rank computes alone, from the random numbers of all ranks.

use dist::{Bucket, Collective, Reducer};
use tensor::random::{Philox, Purpose};
use tensor::{Device, Dtype, Tensor};
use unix::{Error, Result};

/// Element `element` of tensor `tensor` of a rank. Magnitudes vary widely, so that the order of a sum matters.
fn number(seed: u64, round: usize, rank: usize, tensor: usize, element: usize) -> f32 {
    let philox = Philox::new(seed, Purpose::Test).at_update(round as u64);
    let uniform = philox.uniform((rank * 100 + tensor) as u64, element as u64);
    let sign = if element.is_multiple_of(3) { -1.0 } else { 1.0 };
    sign * (uniform * 20.0 - 10.0).exp()
}

fn tensors(seed: u64, round: usize, rank: usize, lengths: &[usize]) -> Vec<Tensor> {
    let of = |(tensor, len): (usize, &usize)| {
        let values: Vec<f32> = (0..*len).map(|i| number(seed, round, rank, tensor, i)).collect();
        Tensor::from_slice(&values, &[*len])
    };
    lengths.iter().enumerate().map(of).collect()
}

/// The sum in the order that the tree defines.
fn tree(mut values: Vec<f32>) -> f32 {
    while values.len() > 1 {
        let pairs = values.chunks(2);
        values = pairs.map(|p| if p.len() == 2 { p[0] + p[1] } else { p[0] }).collect();
    }
    values[0]
}

fn fault(what: impl std::fmt::Display) -> Error {
    Error::bug(what)
}

fn expect(holds: bool, what: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(fault(what())) }
}

/// Compares sums bit for bit with those of a single rank.
fn expect_sums(found: &[Tensor], seed: u64, round: usize, ranks: usize) -> Result<()> {
    for (tensor, found) in found.iter().enumerate() {
        for (i, found) in found.read::<f32>().iter().enumerate() {
            let values = (0..ranks).map(|rank| number(seed, round, rank, tensor, i)).collect();
            let sum = tree(values);
            expect(found.to_bits() == sum.to_bits(), || {
                format!("round {round}, tensor {tensor}, element {i}: {found} is not {sum}")
            })?;
        }
    }
    Ok(())
}

/// Runs all checks. Errors: the first that fails.
pub fn all(ranks: &dyn Collective, seed: u64) -> Result<()> {
    let (rank, size) = (ranks.rank(), ranks.size());
    small(ranks)?;
    let mut not_a_number = ranks.reducer(Device::Cpu, &[2.into()])?;
    let last = if rank == size - 1 { f32::NAN } else { 2.0 };
    not_a_number.submit(0, vec![Tensor::from_slice(&[1.0, last], &[2])])?;
    let sums = not_a_number.wait(0)?[0].copied();
    let sums = sums.read::<f32>();
    expect(sums[0] == size as f32 && sums[1].is_nan(), || format!("NaN: {sums:?}"))?;
    all_reduce(ranks)?;
    all_gather(ranks, seed)?;
    reducer(ranks, seed)?;
    println!("rank {rank} of {size}: all as computed by one");
    Ok(())
}

fn small(ranks: &dyn Collective) -> Result<()> {
    let (rank, size) = (ranks.rank(), ranks.size());
    for length in [0, 1, 1000, 100_003] {
        let of =
            |rank: usize| -> Vec<u8> { (0..length).map(|i| (i * 7 + rank + 1) as u8).collect() };
        expect(ranks.broadcast(of(rank))? == of(0), || format!("broadcast of {length}"))?;
        let ragged = |rank: usize| of(rank)[..length / (rank + 1)].to_vec();
        let all = ranks.all_gather_bytes(&ragged(rank))?;
        expect(all == (0..size).map(ragged).collect::<Vec<_>>(), || format!("gather of {length}"))?;
    }
    Ok(())
}

/// Sums of numbers in rank order.
fn all_reduce(ranks: &dyn Collective) -> Result<()> {
    let of = |rank: usize| [0.1 + rank as f64, 1e9 / (rank as f64 + 0.7), f64::INFINITY];
    let mut sums = Tensor::from_slice(&of(ranks.rank()), &[3]);
    ranks.all_reduce(&mut sums)?;
    let mut expected = [0.0; 3];
    for rank in 0..ranks.size() {
        expected.iter_mut().zip(of(rank)).for_each(|(sum, number)| *sum += number);
    }
    expect(sums.read::<f64>() == expected, || format!("all-reduce: {:?}", sums.to_f64()))
}

/// Broadcasts of every tensor from its owner, in any dtype.
fn all_gather(ranks: &dyn Collective, seed: u64) -> Result<()> {
    let (rank, size) = (ranks.rank(), ranks.size());
    let lengths: Vec<usize> = (0..2 * size + 3).map(|i| (i * 977) % 5000).collect();
    let of = |rank| -> Vec<Tensor> {
        let cast = |(i, t): (usize, Tensor)| if i % 3 == 1 { t.to_dtype(Dtype::Bf16) } else { t };
        tensors(seed, 50, rank, &lengths).into_iter().enumerate().map(cast).collect()
    };
    let mut own = of(rank);
    let mut owned: Vec<(usize, &mut Tensor)> =
        own.iter_mut().enumerate().map(|(i, tensor)| ((i * 5) % size, tensor)).collect();
    ranks.all_gather(&mut owned)?;
    for (i, tensor) in own.iter().enumerate() {
        let expected = &of((i * 5) % size)[i];
        expect(tensor.as_bytes() == expected.as_bytes(), || format!("share of tensor {i}"))?;
    }
    Ok(())
}

/// Buckets submitted in one order and awaited in another, several times.
fn reducer(ranks: &dyn Collective, seed: u64) -> Result<()> {
    let (rank, size) = (ranks.rank(), ranks.size());
    // No tensor, one, odd lengths, several tensors, more than a slice or a few cache lines of messages.
    let buckets: [&[usize]; 8] =
        [&[70_001, 3], &[0], &[5, 17], &[33_333], &[], &[1], &[65_536], &[70_001, 5, 0, 140_003]];
    let elements = buckets.map(|lengths| Bucket::from(lengths.iter().sum::<usize>()));
    for device in [Device::Cpu, Device::Emu] {
        if device == Device::Emu && tensor::kernel::emu::require().is_err() {
            continue;
        }
        let mut reducer = ranks.reducer(device, &elements)?;
        for round in 100..104 {
            for bucket in [2, 0, 3, 1, 7, 4, 6, 5] {
                let own = tensors(seed, round * 10 + bucket, rank, buckets[bucket]);
                let own: Result<Vec<Tensor>> = own.iter().map(|t| t.to_device(device)).collect();
                let mut own = own?;
                // In every other round the first bucket is computed in the buffer where it is summed, if possible.
                if let Some(mut buffers) = reducer.buffers(bucket, &shapes(buckets[bucket]))?
                    && round % 2 == 1
                    && !own.is_empty()
                {
                    buffers[0].write::<f32>().copy_from_slice(own[0].read());
                    own[0] = buffers.swap_remove(0);
                }
                reducer.submit(bucket, own)?;
            }
            for bucket in 0..8 {
                let sums = reducer.wait(bucket)?;
                let sums: Result<Vec<Tensor>> = sums.iter().map(Tensor::to_host).collect();
                expect_sums(&sums?, seed, round * 10 + bucket, size)?;
            }
        }
        let wrong = reducer.submit(0, vec![Tensor::zeros_on(device, &[7], Dtype::F32)]);
        expect(size == 1 || wrong.is_err(), || "a bucket of another size was taken".into())?;
        let times = reducer.take_times();
        expect(size == 1 || times.busy.as_nanos() > 0, || format!("{times:?}"))?;
        held(&mut *reducer, seed, rank, buckets[2])?;
    }
    Ok(())
}

fn shapes(lengths: &[usize]) -> Vec<Vec<usize>> {
    lengths.iter().map(|len| vec![*len]).collect()
}

/// A rank that still holds memory that others are about to write gets an error. Bucket 2 has these lengths.
fn held(reducer: &mut dyn Reducer, seed: u64, rank: usize, lengths: &[usize]) -> Result<()> {
    let own = || tensors(seed, 1, rank, lengths);
    let Some(mut buffers) = reducer.buffers(2, &shapes(lengths))? else { return Ok(()) };
    let copy = buffers[1].clone();
    buffers[1].write::<f32>().fill(1.0);
    let apart = copy.as_bytes().as_ptr() != buffers[1].as_bytes().as_ptr();
    expect(apart, || "what is written into a shared tensor is seen in the other".into())?;
    expect(reducer.submit(2, buffers).is_err(), || "summed while a gradient was held".into())?;
    drop(copy);
    reducer.submit(2, own())?;
    let mut sums = reducer.wait(2)?;
    expect(reducer.buffers(2, &shapes(lengths)).is_err(), || {
        "buffers while a sum was held".into()
    })?;
    // Copy-on-write: others do not see what is written from here on.
    sums.truncate(1);
    sums[0].write::<f32>().fill(0.0);
    expect(reducer.buffers(2, &shapes(lengths))?.is_some(), || "no buffers".into())
}
