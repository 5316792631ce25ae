//! Many images in one.

use super::{Filter, RgbImage, resize};
use unix::Result;

/// Side of the cell of an image, and the space around it, in pixels.
const CELL: u32 = 240;
const MARGIN: u32 = 8;
/// Images in a row.
const COLUMNS: usize = 4;

/// Draws images row by row, each shrunk to a cell of 240 x 240 pixels if it is larger. Errors: 65 when it does not fit into memory.
pub fn contact_sheet(images: &[RgbImage]) -> Result<RgbImage> {
    let (columns, rows) = (images.len().clamp(1, COLUMNS), images.len().div_ceil(COLUMNS).max(1));
    let side = |cells: usize| cells as u32 * (CELL + MARGIN) + MARGIN;
    let (width, height) = (side(columns), side(rows));
    let mut pixels = vec![0xd0; 3 * (width * height) as usize];
    for (number, image) in images.iter().enumerate() {
        let most = image.width.max(image.height);
        let fit = |side: u32| (u64::from(side) * u64::from(CELL) / u64::from(most)).max(1) as u32;
        let shrunk = match most > CELL {
            true => Some(resize(image, fit(image.width), fit(image.height), Filter::Lanczos)?),
            false => None,
        };
        let image = shrunk.as_ref().unwrap_or(image);
        let left = (number % COLUMNS) as u32 * (CELL + MARGIN) + MARGIN + (CELL - image.width) / 2;
        let top = (number / COLUMNS) as u32 * (CELL + MARGIN) + MARGIN + (CELL - image.height) / 2;
        let row_bytes = 3 * image.width as usize;
        for (y, row) in image.pixels.chunks_exact(row_bytes).enumerate() {
            let at = 3 * ((top as usize + y) * width as usize + left as usize);
            pixels[at..at + row_bytes].copy_from_slice(row);
        }
    }
    Ok(RgbImage { width, height, pixels })
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
        assert_eq!((sheet.width, sheet.height), (4 * 248 + 8, 2 * 248 + 8));
        let at = |x: u32, y: u32| sheet.pixels[3 * (y * sheet.width + x) as usize];
        let centre = |cell: u32| cell * 248 + 8 + 120;
        let found = [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1)].map(|(x, y)| at(centre(x), centre(y)));
        assert_eq!(found, [1, 2, 3, 4, 5]);
        assert_eq!((at(0, 0), at(centre(1), centre(1))), (0xd0, 0xd0));
        assert_eq!(contact_sheet(&[]).unwrap().width, 256);
    }
}
