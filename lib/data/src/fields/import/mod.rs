//! Converts files of any supported layout and format into contiguous files for training at full speed.
//!
//! Trajectories are streamed in blocks of frames, so memory does not depend on file sizes. An output records its
//! source, the source's BLAKE3 hash and all options, so an existing file made in the same way is recognised and kept.
//! An unfinished output is resumed, however its process ended, because the completed part is synced to disk every few
//! trajectories.

mod plan;
mod provenance;
mod resample;
mod target;

pub use plan::{Crop, Format, ImportOptions};
pub(crate) use provenance::content_hash;
pub use target::{ImportOutcome, Target, targets};

use crate::fields::field::Field;
use crate::fields::write::{FieldWriter, PartialFile, remove_leftovers};
use plan::Conversion;
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use unix::{Exit, Result, note};

/// Number of bytes written between syncs to disk.
const AT_ONCE: usize = 32 << 20;

/// Writes the file of a target from its source, on the threads of the current rayon pool. `done` is called from any
/// thread with the number of trajectories completed since its last call; if it returns an error, the import stops.
/// After an error 75 or 74, the next call resumes from the completed part.
///
/// An existing file that was made in the same way is kept. Errors: 66 and 65 for the source, 2 for options that do not
/// apply to it, 73 when a different file exists or the file cannot be created, 74 for I/O errors, and 75 when another
/// process is writing it.
pub fn import(
    plan: &ImportOptions,
    target: &Target,
    done: impl Fn(usize) -> Result<()> + Sync,
) -> Result<ImportOutcome> {
    let field = Field::open_as(&target.source, &plan.reading)?;
    field.require_fit_but_times()?;
    for what in
        field.ambiguity().into_iter().chain(field.unused().map(|all| format!("not read: {all}")))
    {
        note!("{}: {what}", target.source.display());
    }
    let conversion = Conversion::new(plan, target, &field)?;
    if target.path.exists() {
        conversion.require_same(&target.path)?;
        remove_leftovers(&target.path);
        return Ok(ImportOutcome::Kept);
    }
    let mut partial = PartialFile::open(&target.path, &conversion.header)?;
    match fill(&field, &conversion, &mut partial, done) {
        Ok(()) => partial.publish()?,
        Err(error) if matches!(error.exit, Exit::Again | Exit::Io) => return Err(error),
        Err(error) => {
            partial.discard();
            return Err(error);
        }
    }
    Ok(ImportOutcome::New)
}

/// Writes the missing part of a file.
fn fill(
    field: &Field,
    conversion: &Conversion,
    partial: &mut PartialFile,
    done: impl Fn(usize) -> Result<()> + Sync,
) -> Result<()> {
    let shape = &conversion.header.shape;
    let before = partial.done();
    if before > 0 {
        let all = shape.trajectories;
        note!("{}: resuming after {before} of {all} trajectories", partial.path().display());
        done(before)?;
    }
    let bytes = conversion.header.dtype.bytes() * shape.trajectory_len();
    let missing = AtomicUsize::new(0);
    let step = (AT_ONCE / bytes.max(1)).max(2 * rayon::current_num_threads());
    for first in (before..shape.trajectories).step_by(step) {
        let some = first..shape.trajectories.min(first + step);
        let writer = partial.writer();
        some.clone().into_par_iter().try_for_each_init(Vec::new, |buffer, i| {
            missing.fetch_add(copy(field, conversion, writer, i, buffer)?, Relaxed);
            done(1)
        })?;
        partial.advance(some.end)?;
    }
    if let count @ 1.. = missing.into_inner() {
        let path = partial.path().display();
        note!(
            "{path}: {count} values are missing, which training refuses; `ds-prep check` names them"
        );
    }
    Ok(())
}

/// Copies trajectory `i` to the file, and returns its number of missing values.
fn copy(
    field: &Field,
    conversion: &Conversion,
    writer: &FieldWriter,
    i: usize,
    buffer: &mut Vec<f32>,
) -> Result<usize> {
    let source = field.shape();
    let sample = conversion.samples[i];
    let to = &conversion.header.shape;
    let missing = |values: &[f32]| values.iter().filter(|value| value.is_nan()).count();
    let mut count = 0;
    if conversion.stride == 1 && conversion.resampler.is_none() {
        for frames in to.frame_blocks() {
            buffer.resize(frames.len() * source.frame_len(), 0.0);
            let from = conversion.first_frame + frames.start..conversion.first_frame + frames.end;
            field.read_frames(sample, from, buffer)?;
            count += missing(buffer);
            writer.write_frames(i, frames, buffer)?;
        }
        return Ok(count);
    }
    for frame in 0..to.frames {
        let from = conversion.first_frame + frame * conversion.stride;
        buffer.resize(source.frame_len(), 0.0);
        field.read_frames(sample, from..from + 1, buffer)?;
        let resampled = conversion.resampler.as_ref().map(|resampler| resampler.frame(buffer));
        let values = resampled.as_ref().unwrap_or(buffer);
        count += missing(values);
        writer.write_frames(i, frame..frame + 1, values)?;
    }
    Ok(count)
}
