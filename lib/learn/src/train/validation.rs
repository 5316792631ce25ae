//! Judging a model on the validation split.

use crate::params::Params;
use crate::pass::Pass;
use crate::score::{Metrics, Scores};
use crate::task::Task;
use dist::Collective;
use tensor::Tape;
use unix::{Error, Result};

/// Samples that go through the model together.
const CHUNK: usize = 64;

/// Metrics of `params` on `samples` samples of the validation split, spread evenly; on all of them for 0.
/// Ranks share the chunks, whose errors are summed in their order: the same bits for any number of ranks.
pub fn validate(
    task: &dyn Task,
    params: &Params,
    samples: u64,
    ranks: &dyn Collective,
) -> Result<Metrics> {
    let chosen = spread(task.validation_samples(), samples);
    let mut mine = Vec::new();
    for chunk in chosen.chunks(CHUNK).skip(ranks.rank()).step_by(ranks.size()) {
        let mut scores = Scores::default();
        let tape = Tape::without_gradients();
        task.evaluate(&Pass::frozen(&tape, params), chunk, &mut scores)?;
        mine.push(scores);
    }
    let parts = match ranks.size() {
        1 => vec![mine],
        _ => {
            let told = ranks.gather(&serde_json::to_vec(&mine).map_err(Error::bug)?)?;
            let part = |bytes: &Vec<u8>| serde_json::from_slice(bytes).map_err(Error::bug);
            told.iter().map(part).collect::<Result<Vec<Vec<Scores>>>>()?
        }
    };
    let mut all = Scores::default();
    for number in 0..chosen.len().div_ceil(CHUNK) {
        let part = &parts[number % parts.len()];
        part.get(number / parts.len()).into_iter().for_each(|chunk| all.merge(chunk));
    }
    Ok(all.metrics())
}

/// `count` of `total` numbers, spread evenly; all of them for 0.
fn spread(total: u64, count: u64) -> Vec<u64> {
    let count = if count == 0 { total } else { count.min(total) };
    (0..count).map(|i| i * total / count).collect()
}
