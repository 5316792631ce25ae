//! Converts fields in physical units to the normalised patches that models read, and back.

use super::models::Patches;
use super::normalisation::Normalisation;
use learn::task::Buffers;
use learn::trained::Parts;
use tensor::{Dtype, Tensor};
use unix::{Error, Result};

/// Normalisation and patches of fields of one size.
#[derive(Clone, Debug)]
pub struct FieldTokens {
    /// Division of fields into patches.
    pub patches: Patches,
    /// Normalisation, applied before cutting.
    pub normalisation: Normalisation,
}

impl FieldTokens {
    /// Number of values per field.
    pub fn field_len(&self) -> usize {
        self.patches.field_len()
    }

    /// Normalises a field [grid.., channels] and cuts it into [tokens·patch].
    pub fn cut(&self, field: &[f32], out: &mut [f32]) {
        let mut normalised = vec![0.0; field.len()];
        self.normalisation.apply(field, &mut normalised);
        self.patches.cut(&normalised, out);
    }

    /// Normalises fields [n, grid.., channels] and cuts them into [n, tokens·patch].
    pub fn cut_all(&self, fields: &[f32]) -> Tensor {
        let length = self.field_len();
        let mut tokens = Tensor::empty(&[fields.len() / length, length], Dtype::F32);
        let rows = fields.chunks_exact(length).zip(tokens.write::<f32>().chunks_exact_mut(length));
        rows.for_each(|(field, out)| self.cut(field, out));
        tokens
    }

    /// Inverts [`FieldTokens::cut_all`] on the host.
    pub fn join_all(&self, tokens: &Tensor) -> Vec<f32> {
        let length = self.field_len();
        let (mut fields, mut joined) = (vec![0.0; tokens.len()], vec![0.0; length]);
        let rows = tokens.read::<f32>().chunks_exact(length);
        for (tokens, field) in rows.zip(fields.chunks_exact_mut(length)) {
            self.patches.join(tokens, &mut joined);
            self.normalisation.invert(&joined, field);
        }
        fields
    }

    /// Returns the buffers for a checkpoint.
    pub fn buffers(&self, name: &str) -> Buffers {
        let mut buffers = self.normalisation.buffers(name);
        let grid: Vec<f64> = self.patches.grid().iter().map(|n| *n as f64).collect();
        buffers.push((format!("{name}.grid"), Tensor::from_slice(&grid, &[grid.len()])));
        buffers
    }

    /// Restores the buffers of [`FieldTokens::buffers`]; `patches` builds the patches from grid and number of channels.
    ///
    /// Errors: 65 when a buffer is missing or does not match.
    pub fn restore(
        name: &str,
        parts: &Parts,
        patches: impl FnOnce(&[usize], usize) -> Result<Patches, String>,
    ) -> Result<Self> {
        let normalisation = Normalisation::restore(name, parts)?;
        let values = parts.buffer(&format!("{name}.grid"))?;
        if values.is_empty() || !values.iter().all(|n| (1.0..1e9).contains(n)) {
            return Err(Error::data(format!(
                "the checkpoint's {name}.grid is {values:?}; expected positive grid sizes"
            )));
        }
        let grid: Vec<usize> = values.iter().map(|n| *n as usize).collect();
        let patches = patches(&grid, normalisation.channels()).map_err(Error::data)?;
        Ok(Self { patches, normalisation })
    }
}
