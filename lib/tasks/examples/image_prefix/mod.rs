//! The image that sequences begin with in the programs that measure decoders: the counterpart of
//! `tests/peers/image_prefix.py`.

use std::path::Path;
use tasks::language::SftModel;
use tasks::language::vision::{Grid, Images};
use unix::{Error, Result};

/// The number from which on pseudorandom numbers are pixels; tokens have smaller ones.
const PIXELS: usize = 1 << 40;

/// An image in front of the text of each sequence, or nothing.
pub struct ImagePrefix {
    /// The tokens that each sequence begins with: vision_start, one for each square of patches, vision_end.
    pub tokens: Vec<i32>,
    /// Tokens of text have ids below this.
    pub text: usize,
    /// The patches of the image.
    grids: Vec<Grid>,
    /// Values of an image.
    values: usize,
}

/// Reads ROWSxCOLUMNS. Errors: it is something else.
pub fn grid(text: &str) -> Result<Grid, String> {
    let sides = text.split_once('x').map(|(rows, columns)| (rows.parse(), columns.parse()));
    match sides {
        Some((Ok(rows), Ok(columns))) if rows > 0 && columns > 0 => Ok(Grid { rows, columns }),
        _ => Err("must be two numbers of patches, such as 4x24".into()),
    }
}

impl ImagePrefix {
    /// An image with the patches `grid` for the model in `folder`, whose config.json has the ids of the tokens around images.
    ///
    /// Errors: 2 if the model has no vision tower or merges other squares of patches; 65 if config.json lacks an id.
    pub fn new(folder: &Path, config: &SftModel, grid: Option<Grid>) -> Result<Self> {
        let Some(grid) = grid else {
            let text = config.decoder.vocab_size;
            return Ok(Self { tokens: Vec::new(), text, grids: Vec::new(), values: 0 });
        };
        let Some(vision) = &config.vision else {
            return Err(Error::usage("--image: the model has no vision tower"));
        };
        let merge = vision.spatial_merge_size;
        if !grid.rows.is_multiple_of(merge) || !grid.columns.is_multiple_of(merge) {
            return Err(Error::usage(format!("--image: must be multiples of {merge} patches")));
        }
        let path = folder.join("config.json");
        let bad = |what: String| Error::data(format!("{}: {what}", path.display()));
        let keys = std::fs::read_to_string(&path).map_err(|error| bad(error.to_string()))?;
        let keys: serde_json::Value =
            serde_json::from_str(&keys).map_err(|error| bad(error.to_string()))?;
        let id = |key: &str| {
            let found = keys[key].as_u64().ok_or_else(|| bad(format!("{key} is missing")));
            found.map(|id| id as usize)
        };
        let [start, end, video] =
            ["vision_start_token_id", "vision_end_token_id", "video_token_id"].map(id);
        let [start, end, video] = [start?, end?, video?];
        let image = vision.image_token_id;
        let mut tokens = vec![image as i32; grid.patches() / (merge * merge)];
        tokens.insert(0, start as i32);
        tokens.push(end as i32);
        let text = start.min(end).min(video).min(image);
        let values = grid.patches() * vision.patch_values();
        Ok(Self { tokens, text, grids: vec![grid], values })
    }

    /// The values of `count` images from number `first` on, one after the other: pseudorandom in [-1, 1).
    pub fn values(&self, first: usize, count: usize) -> Vec<f32> {
        let pixel = |at: usize| (mixed((PIXELS + at) as u64) >> 40) as f32 / (1 << 23) as f32 - 1.0;
        (first * self.values..(first + count) * self.values).map(pixel).collect()
    }

    /// The image of the sequence with this number among those whose images have the `values`.
    pub fn images<'a>(&'a self, values: &'a [f32], sequence: usize) -> Images<'a> {
        Images { grids: &self.grids, values: &values[sequence * self.values..][..self.values] }
    }
}

/// The output function of SplitMix64 (Steele, Lea, Flood 2014).
pub fn mixed(number: u64) -> u64 {
    let x = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
