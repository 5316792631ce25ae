//! The loop over tokens.

use super::{Decoder, Finish, Generated, Generation, Prompt};
use crate::evaluate::check_stop;
use std::collections::HashSet;
use tensor::Tensor;
use tensor::functions::{Candidates, argmax::argmax};
use tensor::parallel::row_blocks;
use tensor::random::{Philox, Purpose};
use unix::{Error, Exit, Result};

/// Longest block, in tokens, whose repetition ends a sample.
const LONGEST_BLOCK: usize = 32;
/// How often a block must occur for a repetition.
const LEAST_BLOCKS: usize = 4;
/// In place of a token for logits that give none.
const NONE: i32 = -1;

/// A sample that is being generated.
struct Sample {
    /// Place of the prompt among all.
    prompt: usize,
    ids: Vec<i32>,
    finish: Option<Finish>,
    /// Tokens of the prompt and generated ones; empty if nothing depends on them.
    seen: HashSet<i32>,
}

/// Continues all prompts, in one batch. Finished samples leave the batch when they are at least half of it.
///
/// Errors: 78 for options out of range; 65 for a prompt without tokens; 1 for logits that are not finite; 75 after a stop
/// signal; those of the decoder.
pub fn generate<D: Decoder>(
    decoder: &D,
    prompts: &[Prompt],
    options: &Generation,
) -> Result<Vec<Generated>> {
    if let Some((key, text)) = options.sampling.violations().into_iter().next() {
        return Err(Error::config(format!("{key}: {text}")));
    }
    if let Some(empty) = prompts.iter().find(|prompt| prompt.ids.is_empty()) {
        return Err(Error::data(format!("prompt {} has no tokens", empty.number)));
    }
    let longest = prompts.iter().map(|prompt| prompt.ids.len()).max();
    let (Some(longest), 1..) = (longest, options.max_new_tokens) else {
        let none = || Generated { ids: Vec::new(), finish: Finish::Length };
        return Ok(prompts.iter().map(|_| none()).collect());
    };
    check_stop()?;
    let ids: Vec<&[i32]> = prompts.iter().map(|prompt| prompt.ids).collect();
    // The last token is not read.
    let capacity = longest.saturating_add(options.max_new_tokens - 1);
    let (mut cache, mut logits) = decoder.prefill(&ids, capacity)?;
    let has_penalty = options.sampling.has_penalty();
    let mut samples: Vec<Sample> = (0..prompts.len())
        .map(|prompt| {
            let seen = ids[prompt].iter().filter(|_| has_penalty).copied().collect();
            Sample { prompt, ids: Vec::new(), finish: None, seen }
        })
        .collect();
    let mut done = Vec::with_capacity(prompts.len());
    loop {
        let mut tokens = next(&logits, &samples, prompts, options)?;
        for (sample, token) in samples.iter_mut().zip(&mut tokens) {
            if sample.finish.is_some() {
                // Any token keeps the sequence in step with the others.
                *token = 0;
                continue;
            }
            require_token(*token, prompts[sample.prompt].number)?;
            sample.add(*token, options, has_penalty);
        }
        let live: Vec<usize> =
            (0..samples.len()).filter(|row| samples[*row].finish.is_none()).collect();
        if live.is_empty() {
            done.extend(samples);
            break;
        }
        check_stop()?;
        if 2 * live.len() <= samples.len() {
            decoder.keep(&mut cache, &live)?;
            tokens = live.iter().map(|row| tokens[*row]).collect();
            let (kept, left): (Vec<_>, Vec<_>) =
                samples.into_iter().partition(|sample| sample.finish.is_none());
            samples = kept;
            done.extend(left);
        }
        logits = decoder.step(&mut cache, &tokens)?;
    }
    done.sort_by_key(|sample| sample.prompt);
    let generated = |sample: Sample| {
        let finish = sample.finish.unwrap_or(Finish::Length);
        Generated { ids: sample.ids, finish }
    };
    Ok(done.into_iter().map(generated).collect())
}

impl Sample {
    /// Adds a token and decides whether the sample ends with it.
    fn add(&mut self, token: i32, options: &Generation, has_penalty: bool) {
        if options.stop.contains(&token) {
            self.finish = Some(Finish::Stop);
            return;
        }
        self.ids.push(token);
        if has_penalty {
            self.seen.insert(token);
        }
        if repeats(&self.ids, options.max_repeat) {
            self.finish = Some(Finish::Runaway);
        } else if self.ids.len() >= options.max_new_tokens {
            self.finish = Some(Finish::Length);
        }
    }
}

/// Whether the last `count` tokens repeat one block of at most [`LONGEST_BLOCK`] tokens, at least [`LEAST_BLOCKS`] times.
pub(super) fn repeats(ids: &[i32], count: usize) -> bool {
    if count == 0 || ids.len() < count {
        return false;
    }
    let last = &ids[ids.len() - count..];
    let most = LONGEST_BLOCK.min(count / LEAST_BLOCKS);
    (1..=most).any(|period| last[period..] == last[..count - period])
}

/// Chooses the next token of each sample; [`NONE`] if its logits [V] are not finite. Those of samples that have finished
/// have no meaning.
fn next(
    logits: &Tensor,
    samples: &[Sample],
    prompts: &[Prompt],
    options: &Generation,
) -> Result<Vec<i32>> {
    let width = logits.width();
    if logits.shape() != [samples.len(), width] {
        let count = samples.len();
        return Err(Error::bug(format!("logits {:?} of {count} sequences", logits.shape())));
    }
    let sampling = &options.sampling;
    if sampling.is_argmax() {
        // NaN or infinity among the logits make the logarithm of the probability NaN.
        let choice = argmax(logits, Candidates::new(width))?;
        let (index, log_p) = (choice.index.to_host()?, choice.log_p.to_host()?);
        let tokens = index.read::<i32>().iter().zip(log_p.to_f64());
        return Ok(tokens.map(|(id, p)| if p.is_nan() { NONE } else { *id }).collect());
    }
    let random = Philox::new(sampling.seed, Purpose::Tokens);
    let (logits, mut tokens) = (logits.to_host()?, vec![NONE; samples.len()]);
    let logits = logits.read::<f32>();
    row_blocks((&mut *tokens, 1), 1, |rows, tokens| {
        for (row, token) in rows.zip(tokens) {
            let sample = &samples[row];
            if sample.finish.is_none() {
                let prompt = &prompts[sample.prompt];
                let position = (prompt.ids.len() + sample.ids.len()) as u64;
                let own = &logits[row * width..][..width];
                let drawn = sampling.draw(own, &sample.seen, &random, [prompt.number, position]);
                *token = drawn.unwrap_or(NONE);
            }
        }
    });
    Ok(tokens)
}

/// Errors: 1 for logits that give no token.
fn require_token(token: i32, number: u64) -> Result<()> {
    if token != NONE {
        return Ok(());
    }
    Err(Error::new(
        Exit::Failure,
        format!(
            "the logits of the next token of prompt {number} are not finite (NaN or infinity), so it has no continuation; \
             use an earlier checkpoint (ckpt list RUN), or train again with a lower learning rate"
        ),
    ))
}
