//! Writes sheets of synthetic well-log headers, one for each preset and enlarged four times, and prints how many pages
//! are rendered in a second:
//!
//!     cargo run --release -p data --example header_pages -- FOLDER

use data::images::headers::{Options, Page, Preset, page, png};
use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;

const COLUMNS: usize = 2;
const ROWS: usize = 6;
const SCALE: usize = 4;
/// Space around each page, in pixels of the page.
const GAP: usize = 4;
const TIMED: u64 = 5000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(std::env::args().nth(1).ok_or("usage: header_pages FOLDER")?);
    std::fs::create_dir_all(&folder)?;
    let options = Options::default();
    for preset in [Preset::Clean, Preset::Moderate, Preset::Shifted] {
        let pages: Vec<Page> =
            (0..COLUMNS * ROWS).map(|index| page(preset, 1, index as u64, &options)).collect();
        std::fs::write(folder.join(format!("{preset}.png")), png(&sheet(&pages))?)?;
        for page in &pages {
            println!("{}\n", page.answer);
        }
        let start = Instant::now();
        for index in 0..TIMED {
            black_box(page(preset, 2, index, &options));
        }
        let rate = TIMED as f64 / start.elapsed().as_secs_f64();
        println!("{preset}: {rate:.0} pages/s on one thread\n");
    }
    Ok(())
}

/// Puts pages beside and below each other on grey.
fn sheet(pages: &[Page]) -> Page {
    let cell = |size: fn(&Page) -> usize| pages.iter().map(size).max().unwrap_or(0) + GAP;
    let [cell_width, cell_height] = [cell(|page| page.width), cell(|page| page.height)];
    let [width, height] = [COLUMNS * cell_width * SCALE, ROWS * cell_height * SCALE];
    let grey_at = |at: usize| {
        let [x, y] = [at % width / SCALE, at / width / SCALE];
        let page = pages.get(y / cell_height * COLUMNS + x / cell_width)?;
        let [x, y] = [x % cell_width, y % cell_height];
        (x < page.width && y < page.height).then(|| page.pixels[y * page.width + x])
    };
    let pixels = (0..width * height).map(|at| grey_at(at).unwrap_or(128)).collect();
    let [answer, group] = [String::new(), String::new()];
    Page { width, height, pixels, answer, fields: Vec::new(), group }
}
