//! Plans shards of limited size.

/// Maximum size of a shard in bytes, unless a single record is larger.
const SHARD: u64 = 64 << 20;

/// For each k, the maximum size in bytes of an aligned run of 2^k records.
#[derive(Default)]
pub(super) struct RunSizes {
    count: u64,
    runs: [(u64, u64); 21],
}

impl RunSizes {
    pub(super) fn add(&mut self, bytes: u64) {
        for (k, (sum, largest)) in self.runs.iter_mut().enumerate() {
            if self.count.is_multiple_of(1 << k) {
                *sum = 0;
            }
            *sum += bytes;
            *largest = (*largest).max(*sum);
        }
        self.count += 1;
    }

    /// Returns the largest power of two for which all runs of this many records fit into a shard.
    pub(super) fn shard_records(&self) -> usize {
        let fits = self.runs.iter().rposition(|(_, largest)| *largest <= SHARD);
        1 << fits.unwrap_or(0)
    }
}
