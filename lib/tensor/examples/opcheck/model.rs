//! A model of the time that launches take on a GPU, from their machine code and a few assumptions. It is a bound that
//! kernels like ours do not exceed, not a measurement: no launch overhead, no latency, no limit of the L2 cache.
//!
//! A launch with products lasts as long as the busiest unit of the multiprocessor with the most blocks needs for their
//! main loops, or as copying its tensors takes; any other launch as copying its tensors takes. Launches follow one
//! another.

use std::collections::HashMap;
use tensor::Dtype;
use tensor::kernel::Launched;

/// What is assumed of a GPU.
pub struct Gpu {
    /// Name, and architecture whose machine code it runs.
    pub name: &'static str,
    architecture: &'static str,
    multiprocessors: f64,
    clock_hz: f64,
    /// Cycles of a scheduler, of which a multiprocessor has four, for an mma.sync of 16 x 8 x 16 16-bit or 16 x 8 x 8 tf32
    /// numbers. On Hopper, mma.sync reaches 0.65 of the rate of wgmma.
    mma_cycles: f64,
    /// Cycles of a scheduler for the multiply-adds of a warp.
    ffma_cycles: f64,
    /// Bytes per second read and written by a copy.
    copy: f64,
}

/// Four schedulers of a multiprocessor issue one instruction per cycle each; shared memory moves 128 bytes per cycle.
const SCHEDULERS: f64 = 4.0;

/// Columns of a wgmma, of 64 rows and 16 k, that takes as many cycles of all schedulers as half of its columns.
const COLUMNS: [(&str, f64); 2] = [("product_wgmma", 256.0), ("product_pingpong", 128.0)];

pub const GPUS: [Gpu; 3] = [
    Gpu {
        name: "a100",
        architecture: "sm_80",
        multiprocessors: 108.0,
        clock_hz: 1.41e9,
        mma_cycles: 8.0,
        ffma_cycles: 2.0,
        copy: 1.75e12,
    },
    Gpu {
        name: "h100",
        architecture: "sm_90a",
        multiprocessors: 132.0,
        clock_hz: 1.7e9,
        mma_cycles: 6.2,
        ffma_cycles: 1.0,
        copy: 3.0e12,
    },
    // An H100 with faster memory; its copy was measured by PyTorch.
    Gpu {
        name: "h200",
        architecture: "sm_90a",
        multiprocessors: 132.0,
        clock_hz: 1.7e9,
        mma_cycles: 6.2,
        ffma_cycles: 1.0,
        copy: 4.26e12,
    },
];

/// The table of the machine code, which `make sass` writes.
const TABLE: &str = include_str!("../../tests/nvrtc/kernels.txt");

/// Instructions in the main loop of a kernel.
struct Loop {
    all: f64,
    mma: f64,
    ffma: f64,
    shared_units: f64,
}

pub struct Model {
    gpu: &'static Gpu,
    /// By kernel and dtype.
    loops: HashMap<(&'static str, &'static str), Loop>,
}

/// What a launch waits for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    Tensor,
    Ffma,
    Shared,
    Issue,
    Memory,
}

impl Limit {
    pub fn name(self) -> &'static str {
        match self {
            Limit::Tensor => "tensor",
            Limit::Ffma => "ffma",
            Limit::Shared => "shared",
            Limit::Issue => "issue",
            Limit::Memory => "memory",
        }
    }
}

impl Model {
    pub fn new(gpu: &'static Gpu) -> Self {
        let (mut loops, mut unit) = (HashMap::new(), ("", ""));
        for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
            let words: Vec<&'static str> = line.split_whitespace().collect();
            if !line.starts_with(' ') {
                unit = (words[1], words[2]);
            } else if unit.1 == gpu.architecture {
                let number = |i: usize| words[i].parse().unwrap_or(0.0);
                let [all, mma, ffma, shared_units] = [10, 11, 12, 17].map(number);
                loops.insert((words[0], unit.0), Loop { all, mma, ffma, shared_units });
            }
        }
        Self { gpu, loops }
    }

    /// The architecture whose machine code it knows.
    pub fn architecture(&self) -> &'static str {
        self.gpu.architecture
    }

    /// Seconds that launches take, and what the longest of them waits for.
    pub fn time(&self, launches: &[Launched]) -> (f64, Limit) {
        let each: Vec<_> = launches.iter().map(|launch| self.one(launch)).collect();
        let longest = each.iter().max_by(|a, b| a.0.total_cmp(&b.0));
        let limit = longest.map_or(Limit::Memory, |(_, limit)| *limit);
        (each.iter().fold(0.0, |sum, (time, _)| sum + time), limit)
    }

    fn one(&self, launch: &Launched) -> (f64, Limit) {
        let grid = launch.grid;
        let count = |axes: [u32; 3]| axes.iter().map(|n| f64::from(*n)).product::<f64>();
        let memory = (launch.bytes as f64 / self.gpu.copy, Limit::Memory);
        let element = launch.element.to_string();
        let known = self.loops.get(&(launch.kernel, element.as_str()));
        let Some(body) = known.filter(|body| grid.operations > 0 && body.mma + body.ffma > 0.0)
        else {
            return memory;
        };
        let of_warpgroups = COLUMNS.iter().find(|(name, _)| launch.kernel.starts_with(name));
        // One warpgroup of three only copies.
        let warps = count(grid.threads) / 32.0 - if of_warpgroups.is_some() { 4.0 } else { 0.0 };
        // Of a warp: 16 x 8 x 16 multiply-adds on 16-bit numbers, 16 x 8 x 8 on tf32, a quarter of a warpgroup's, 32
        // otherwise.
        let (mma, mma_cycles) = match (of_warpgroups, launch.element) {
            (Some((_, columns)), _) => (512.0 * columns, columns / 2.0),
            (None, Dtype::F32) => (2048.0, self.gpu.mma_cycles),
            (None, _) => (4096.0, self.gpu.mma_cycles),
        };
        let in_loop = warps * if body.mma > 0.0 { mma * body.mma } else { 64.0 * body.ffma };
        let turns = grid.operations as f64 / in_loop;
        let blocks = (count(grid.blocks) / self.gpu.multiprocessors).ceil();
        let all_warps = turns * blocks * warps;
        let units = [
            (body.mma * mma_cycles / SCHEDULERS, Limit::Tensor),
            (body.ffma * self.gpu.ffma_cycles / SCHEDULERS, Limit::Ffma),
            (body.shared_units, Limit::Shared),
            (body.all / SCHEDULERS, Limit::Issue),
        ];
        let busy = units.map(|(cycles, limit)| (cycles * all_warps / self.gpu.clock_hz, limit));
        busy.into_iter().fold(memory, |most, unit| if unit.0 > most.0 { unit } else { most })
    }
}
