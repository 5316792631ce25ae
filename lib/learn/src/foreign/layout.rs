//! Parameters of a model that another program stores in other tensors: under other names, stacked with others, or with
//! another origin, such as a factor γ instead of 1 + γ.

use serde_json::Value;
use std::ops::Range;
use tensor::{Dtype, Tensor};
use unix::Result;

use super::names::Named;

/// Rows of a tensor of the other program.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// Name of the tensor.
    pub tensor: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Rows along its first axis.
    pub rows: Range<usize>,
    /// What is added to their values.
    pub offset: f64,
}

/// The pieces of each parameter of a model, in the order of the parameters: its values in row-major order are those of
/// its pieces, one after the other.
pub type Layout = Vec<Vec<Piece>>;

/// How another program stores a model.
#[derive(Clone, Copy, Debug)]
pub struct ForeignModel {
    /// Name of the program in messages.
    pub name: &'static str,
    /// A tensor that all its files have, perhaps after a prefix that ends in a dot.
    pub marker: &'static str,
    /// Returns the layout, given names and shapes in the file, without the prefix, and those of the parameters. Errors
    /// (65): the program has no such parameter.
    pub layout: fn(&[Named], &[Named]) -> Result<Layout>,
    /// What users of the imported model should know, given its configuration.
    pub caution: fn(&Value) -> Option<String>,
}

impl ForeignModel {
    /// Returns what precedes the first name of the marker.
    pub(crate) fn prefix<'a>(&self, mut names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
        names.find_map(|name| {
            let prefix = name.strip_suffix(self.marker)?;
            (prefix.is_empty() || prefix.ends_with('.')).then_some(prefix)
        })
    }
}

impl Piece {
    /// A whole tensor.
    pub fn whole(tensor: impl Into<String>, shape: &[usize]) -> Self {
        let rows = 0..shape.first().copied().unwrap_or(1);
        Self { tensor: tensor.into(), shape: shape.to_vec(), rows, offset: 0.0 }
    }

    /// Whether this is all of its tensor, as it is.
    fn is_whole(&self) -> bool {
        *self == Self::whole(self.tensor.as_str(), &self.shape)
    }

    /// Returns the values of this piece of a tensor, in row-major order.
    ///
    /// # Panics
    /// If the tensor has another shape.
    pub fn values(&self, tensor: &Tensor) -> Vec<f64> {
        assert_eq!(tensor.shape(), self.shape, "{}", self.tensor);
        let width: usize = self.shape.iter().skip(1).product();
        let values = &tensor.to_f64()[self.rows.start * width..self.rows.end * width];
        values.iter().map(|value| value + self.offset).collect()
    }
}

/// Returns a parameter that consists of `pieces`, whose tensors `read` returns.
pub(crate) fn assemble(
    pieces: &[Piece],
    (shape, dtype): (&[usize], Dtype),
    read: impl Fn(&Piece) -> Result<Tensor>,
) -> Result<Tensor> {
    // Most parameters are one whole tensor, and need no copy.
    if let [piece] = pieces
        && piece.is_whole()
    {
        return Ok(read(piece)?.reshape(shape));
    }
    let mut values = Vec::with_capacity(shape.iter().product());
    for piece in pieces {
        values.extend(piece.values(&read(piece)?));
    }
    Ok(Tensor::from_slice(&values, shape).to_dtype(dtype))
}
