//! Many images in one.

use super::{Filter, RgbImage, resize};
use std::borrow::Cow;
use unix::Result;

/// Largest side of an image, and the space around it, in pixels.
const CELL: u32 = 240;
const MARGIN: u32 = 8;
/// Images in a row.
const COLUMNS: usize = 4;

/// Draws images row by row, each shrunk to 240 x 240 pixels if it is larger; a row is as high as its tallest image. Errors: 65
/// when they do not fit into memory.
pub fn contact_sheet(images: &[RgbImage]) -> Result<RgbImage> {
    let images = images.iter().map(fitted).collect::<Result<Vec<_>>>()?;
    let columns = images.len().clamp(1, COLUMNS) as u32;
    let tallest = |row: &[Cow<RgbImage>]| row.iter().map(|own| own.height).max().unwrap_or(0);
    let width = columns * (CELL + MARGIN) + MARGIN;
    let height = images.chunks(COLUMNS).map(|row| tallest(row) + MARGIN).sum::<u32>() + MARGIN;
    let mut pixels = vec![0xd0; 3 * (width * height) as usize];
    let mut top = MARGIN;
    for row in images.chunks(COLUMNS) {
        let row_height = tallest(row);
        for (image, column) in row.iter().zip(0..) {
            let left = column * (CELL + MARGIN) + MARGIN + (CELL - image.width) / 2;
            let top = top + (row_height - image.height) / 2;
            let row_bytes = 3 * image.width as usize;
            for (y, line) in image.pixels.chunks_exact(row_bytes).enumerate() {
                let at = 3 * ((top as usize + y) * width as usize + left as usize);
                pixels[at..at + row_bytes].copy_from_slice(line);
            }
        }
        top += row_height + MARGIN;
    }
    Ok(RgbImage { width, height, pixels })
}

/// Shrinks an image whose larger side is longer than [`CELL`] to this length.
fn fitted(image: &RgbImage) -> Result<Cow<'_, RgbImage>> {
    let most = image.width.max(image.height);
    if most <= CELL {
        return Ok(Cow::Borrowed(image));
    }
    let fit = |side: u32| (u64::from(side) * u64::from(CELL) / u64::from(most)).max(1) as u32;
    resize(image, fit(image.width), fit(image.height), Filter::Lanczos).map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_of_any_size_have_their_cell() {
        let image = |width: u32, height: u32, grey: u8| RgbImage {
            width,
            height,
            pixels: vec![grey; 3 * (width * height) as usize],
        };
        let all = [
            image(2, 2, 1),
            image(1000, 10, 2),
            image(6, 700, 3),
            image(240, 240, 4),
            image(5, 5, 5),
        ];
        let sheet = contact_sheet(&all).unwrap();
        assert_eq!((sheet.width, sheet.height), (4 * 248 + 8, 248 + 5 + 8 + 8));
        let at = |x: u32, y: u32| sheet.pixels[3 * (y * sheet.width + x) as usize];
        let centre = |column: u32| column * 248 + 8 + 120;
        let first = [0, 1, 2, 3].map(|column| at(centre(column), 128));
        assert_eq!((first, at(centre(0), 258)), ([1, 2, 3, 4], 5));
        assert_eq!((at(0, 0), at(centre(1), 258)), (0xd0, 0xd0));
        assert_eq!(contact_sheet(&[]).unwrap().width, 256);
    }
}
