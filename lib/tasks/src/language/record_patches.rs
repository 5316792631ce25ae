//! The images of conversations, as patches.

use super::batch::Labelled;
use super::vision::{Grid, Images};
use data::images::RgbImage;
use data::text::TokenSet;
use data::text::chat::ImageTokens;
use rayon::prelude::*;
use unix::{Error, Exit, Result};

/// Some conversations with their images.
pub struct Records<'a>(Vec<(Labelled<'a>, RecordPatches)>);

impl<'a> Records<'a> {
    /// Reads records, each a set and a number in it. Errors: 65 for damaged tokens, and those of [`RecordPatches::of`].
    pub fn read(
        records: impl Iterator<Item = (&'a TokenSet, usize)>,
        tokens: Option<&ImageTokens>,
    ) -> Result<Self> {
        let of = |(set, i): (&'a TokenSet, usize)| {
            Ok((Labelled::of(set, i)?, RecordPatches::of(set, i, tokens)?))
        };
        records.map(of).collect::<Result<_>>().map(Self)
    }

    /// The conversations as a model reads them.
    pub fn labelled(&self) -> Vec<Labelled<'_>> {
        self.0.iter().map(|(own, images)| own.with(images)).collect()
    }

    /// The images of each conversation.
    pub fn images(&self) -> impl Iterator<Item = &RecordPatches> {
        self.0.iter().map(|(_, images)| images)
    }
}

/// The most records whose images are decoded to check them.
const CHECKED: usize = 256;

/// Decodes the images of records and cuts them into patches: of all that have any, or of [`CHECKED`] spread over them; says how
/// many. Errors: 65 with the images that are damaged.
pub fn check<'a>(
    records: impl Iterator<Item = (&'a TokenSet, usize)>,
    tokens: &ImageTokens,
) -> Result<String> {
    let has_images =
        |(set, i): &(&TokenSet, usize)| set.images(*i).map_or(true, |own| !own.is_empty());
    let all: Vec<_> = records.filter(has_images).collect();
    let count = all.len().min(CHECKED);
    // The first and the last one are among them.
    let spread = (0..count).map(|k| all[k * (all.len() - 1) / (count - 1).max(1)]);
    let read = |(set, i): (&TokenSet, usize)| RecordPatches::of(set, i, Some(tokens)).err();
    let damaged: Vec<Error> = spread.collect::<Vec<_>>().into_par_iter().filter_map(read).collect();
    let of = format!("images of {count} of {} records", all.len());
    match damaged.len() {
        0 => Ok(format!("{of} decode, with as many patches as tokens")),
        bad => Err(Error::list(Exit::Data, format!("{of} read: {bad} cannot be used"), &damaged)),
    }
}

/// The patches of the images of a conversation.
#[derive(Clone, Debug, Default)]
pub struct RecordPatches {
    grids: Vec<Grid>,
    values: Vec<f32>,
}

impl RecordPatches {
    /// Reads the images of record `i` of a set. Errors: 65 for an image that is damaged, or whose patches are not as many as its
    /// tokens.
    pub fn of(set: &TokenSet, i: usize, tokens: Option<&ImageTokens>) -> Result<Self> {
        let mut found = Self::default();
        for (number, image) in set.images(i)?.into_iter().enumerate() {
            let name = format!("{}: record {i}, image {number}", set.folder().display());
            let tokens = tokens.ok_or_else(|| Error::bug("images without an image processor"))?;
            found.push(&name, &image.decode(&name)?, tokens)?;
            let [rows, columns] = image.grid;
            if found.grids.last() != Some(&Grid { rows, columns }) {
                return Err(Error::data(format!(
                    "{name}: it is cut into other patches than by ds-prep tokenize; run it again"
                )));
            }
        }
        Ok(found)
    }

    /// Cuts images, which are called as named in errors. Errors: 65 for an image that cannot be cut.
    pub fn of_new(images: &[(String, RgbImage)], tokens: &ImageTokens) -> Result<Self> {
        let mut found = Self::default();
        images.iter().try_for_each(|(name, image)| found.push(name, image, tokens))?;
        Ok(found)
    }

    fn push(&mut self, name: &str, image: &RgbImage, tokens: &ImageTokens) -> Result<()> {
        let patches = tokens.patches(name, image)?;
        let [_, rows, columns] = patches.grid.map(|side| side as usize);
        self.grids.push(Grid { rows, columns });
        self.values.extend(patches.values);
        Ok(())
    }

    /// Rows and columns of the patches of each image.
    pub fn grids(&self) -> impl Iterator<Item = [usize; 2]> {
        self.grids.iter().map(|grid| [grid.rows, grid.columns])
    }

    /// The images as a model reads them.
    pub fn images(&self) -> Images<'_> {
        Images { grids: &self.grids, values: &self.values }
    }
}
