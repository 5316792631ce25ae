//! Bilevel TIFF pages with CCITT group 4 compression, the usual form of scanned documents.
//!
//! The strips are decoded here and not by the library for TIFF, which reads at most 65,535 rows of a strip and only one
//! order of bits.

use super::pixels::RgbImage;
use fax::decoder::{DecodeStatus, Group4Decoder};
use std::convert::Infallible;

/// A page whose pixels are coded.
pub(super) struct FaxPage<'a> {
    pub width: u32,
    pub height: u32,
    /// Rows of each strip but the last.
    pub rows_per_strip: u32,
    /// Whether the first bit of a byte is its lowest one.
    pub lowest_bit_first: bool,
    /// Whether the runs that group 4 calls white are black.
    pub is_inverted: bool,
    pub strips: Vec<&'a [u8]>,
}

impl FaxPage<'_> {
    /// Decodes the page. Errors: the problem.
    pub(super) fn decode(&self) -> Result<RgbImage, String> {
        let columns = u16::try_from(self.width).map_err(|_| {
            format!("group 4 compression of {} pixels a row is not supported", self.width)
        })?;
        let row_bytes = 3 * self.width as usize;
        let background = if self.is_inverted { 0 } else { 255 };
        let mut pixels = vec![background; row_bytes * self.height as usize];
        let rows = (self.rows_per_strip as usize).min(self.height as usize);
        for (strip, rows) in self.strips.iter().zip(pixels.chunks_mut(row_bytes * rows)) {
            let lowest_first = self.lowest_bit_first;
            let flip = move |byte: &u8| if lowest_first { byte.reverse_bits() } else { *byte };
            let bits = strip.iter().map(move |byte| Ok::<u8, Infallible>(flip(byte)));
            let Ok(mut decoder) = Group4Decoder::new(bits, columns);
            for row in rows.chunks_exact_mut(row_bytes) {
                match decoder.advance() {
                    Ok(DecodeStatus::Incomplete) => fill(row, decoder.transition(), !background),
                    Ok(DecodeStatus::End) => return Err("truncated: group 4 data end early".into()),
                    Err(cause) => return Err(format!("damaged group 4 data: {cause:?}")),
                }
            }
        }
        Ok(RgbImage { width: self.width, height: self.height, pixels })
    }
}

/// Sets the pixels of every other run to `value`; `ends` are the columns at which the colour changes.
fn fill(row: &mut [u8], ends: &[u16], value: u8) {
    for run in ends.chunks(2) {
        let start = (3 * usize::from(run[0])).min(row.len());
        let end = run.get(1).map_or(row.len(), |end| (3 * usize::from(*end)).min(row.len()));
        // Damaged data may have runs of negative length.
        row[start..end.max(start)].fill(value);
    }
}
