//! Resource usage of the process: CPU time, memory and GPU memory.

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tensor::device::Device;
use tensor::kernel::cuda::Gpu;

/// Minimum time between two samples.
const INTERVAL: Duration = Duration::from_secs(15);

/// Samples the resource usage of this process after an update, at most every 15 seconds.
#[derive(Default)]
pub(super) struct UsageSampler {
    device: Device,
    /// Time of the last sample, and the CPU time used until then.
    last: Option<(Instant, Duration)>,
}

impl UsageSampler {
    pub fn new(device: Device) -> Self {
        Self { device, last: None }
    }

    /// Returns the fields of a log record if a sample is due: resident memory in bytes, CPU time since the last sample
    /// in percent of one CPU, and GPU memory in use in bytes, including that of other processes. Values that the system
    /// does not report are omitted.
    pub fn sample(&mut self) -> Option<Value> {
        if self.last.is_some_and(|(at, _)| at.elapsed() < INTERVAL) {
            return None;
        }
        let (began, before) = self.last.unwrap_or((unix::time::process_start(), Duration::ZERO));
        let (now, used) = (Instant::now(), cpu_time());
        self.last = Some((now, used));
        let elapsed = now.saturating_duration_since(began).as_secs_f64().max(1e-9);
        let cpu = used.saturating_sub(before).as_secs_f64() / elapsed;
        let mut fields = json!({"cpu_percent": (1000.0 * cpu).round() / 10.0});
        let gpu = match self.device {
            Device::Cuda(n) => Gpu::open(n).and_then(|gpu| gpu.memory()).ok(),
            Device::Cpu | Device::Emu => None,
        };
        let gpu = gpu.map(|(free, total)| total.saturating_sub(free) as u64);
        for (name, bytes) in [("memory_bytes", unix::memory::resident()), ("gpu_memory_bytes", gpu)]
        {
            if let Some(bytes) = bytes {
                fields[name] = json!(bytes);
            }
        }
        Some(fields)
    }
}

/// Returns the CPU time of all threads of this process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}
