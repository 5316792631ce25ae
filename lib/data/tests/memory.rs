//! Memory of a process while it reads. The only test in its process, because others would allocate too.

use data::fields::field::Shape;
use data::fields::split::{Split, SplitName};
use data::fields::split_set::{TrajectorySet, Verify};
use data::fields::write::{Header, write_field};
use data::loader::{Ahead, Order, Prefetch};
use data::split::{By, DivideRequest, GroupBy, Share, divide};
use tensor::{Dtype, Tensor};

const BATCH: u64 = 16;
const WINDOW: usize = 7;

/// RssAnon of this process in bytes, which excludes mapped files.
fn held() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    1024 * line.split_whitespace().next().unwrap().parse::<usize>().unwrap()
}

#[test]
fn epochs_take_no_more_memory() {
    let folder = tempfile::tempdir().unwrap();
    let shape = Shape { trajectories: 90, frames: 21, grid: vec![512], channels: 1 };
    for ending in ["hdf5", "safetensors"] {
        let path = folder.path().join(format!("field_Nu0.1.{ending}"));
        let header = Header::tensor(shape.clone(), vec![Vec::new()], Vec::new());
        write_field(&path, &header, |writer| {
            (0..shape.trajectories)
                .try_for_each(|i| writer.write(i, &vec![i as f32; shape.trajectory_len()]))
        })
        .unwrap();
        let manifest = path.with_extension("json");
        let shares = [Share::Fraction(1.0), Share::Count(0), Share::Count(0)];
        let (by, group_by) = (By::Trajectory, Some(GroupBy::State));
        let request = DivideRequest { by, group_by, shares, fixed: &[], seed: 0, near: None };
        let split: Split = divide(&request, &[path], &manifest).unwrap();
        split.save(&manifest).unwrap();
        let set = TrajectorySet::open(&manifest, SplitName::Train, Verify::Sizes).unwrap();
        let starts = (shape.frames - WINDOW + 1) as u64;
        let order = Order::new(3, shape.trajectories as u64 * starts, BATCH).unwrap();
        let length = WINDOW * shape.frame_len();
        let mut batches = Prefetch::start(0, Ahead { batches: 2, workers: 2 }, move |update| {
            let mut values = Tensor::empty(&[BATCH as usize, length], Dtype::F32);
            let rows = values.write::<f32>().chunks_exact_mut(length);
            for (sample, row) in order.batch(update).into_iter().zip(rows) {
                let first = (sample % starts) as usize;
                set.read_frames((sample / starts) as usize, first..first + WINDOW, row)?;
            }
            Ok(values)
        })
        .unwrap();
        let epoch = shape.trajectories as u64 * starts / BATCH;
        let mut after = Vec::new();
        for update in 0..6 * epoch {
            let samples = order.batch(update);
            let values = batches.next().unwrap();
            for (sample, row) in samples.iter().zip(values.read::<f32>().chunks_exact(length)) {
                assert!(row.iter().all(|x| *x == (sample / starts) as f32), "sample {sample}");
            }
            if (update + 1).is_multiple_of(epoch) {
                after.push(held());
            }
        }
        let batch = BATCH as usize * 4 * length;
        // Two batches are queued, one is being made and one is in use, at the latest in a later epoch than the first;
        // an epoch has 84 batches.
        assert!(after[5] <= after[0] + 8 * batch, "{ending}: {after:?}, a batch has {batch}");
    }
}
