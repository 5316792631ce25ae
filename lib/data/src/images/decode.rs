//! Decodes image files into 8-bit RGB. The format follows from the content, never from the name of the file.
//!
//! Files come from strangers: sizes are checked against limits before anything is allocated, and every failure is an
//! error. A panic of a decoding library is caught and reported as one, too.

use super::pixels::RgbImage;
use super::{jpeg_file, png_file, tiff_file};
use std::path::Path;
use unix::cli::catch_panics;
use unix::space::human_bytes;
use unix::{Error, Result, memory, small};

/// What becomes of transparent pixels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transparency {
    /// The colours are used as if they were opaque: Pillow's `convert("RGB")`, and transformers for paths of files.
    #[default]
    Ignored,
    /// The image is laid on white: transformers 5 for images that the caller has opened with Pillow.
    OnWhite,
}

/// Limits on images, and how they are decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Maximum number of pixels. The default, 178,956,970, is the number beyond which Pillow refuses an image.
    pub max_pixels: u64,
    /// Maximum bytes of memory that decoding may take, without the file itself; also the maximum size of a file. The
    /// default is 2 GiB.
    pub max_bytes: u64,
    /// What becomes of transparent pixels.
    pub transparency: Transparency,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        Self { max_pixels: 178_956_970, max_bytes: 2 << 30, transparency: Transparency::default() }
    }
}

impl DecodeOptions {
    /// Checks the size of an image whose decoding takes `bytes` bytes of memory for each pixel. Errors: the problem.
    pub(super) fn require(&self, width: u32, height: u32, bytes: u64) -> Result<(), String> {
        let pixels = u64::from(width) * u64::from(height);
        if pixels == 0 {
            return Err(format!("an image of {width} x {height} pixels is empty"));
        }
        if pixels > self.max_pixels {
            return Err(format!(
                "{width} x {height} pixels is more than the limit of {} pixels; shrink the image or cut it into pieces",
                self.max_pixels
            ));
        }
        let needed = pixels.checked_mul(bytes);
        if needed.is_none_or(|needed| needed > self.max_bytes) {
            return Err(format!(
                "decoding {width} x {height} pixels takes more than the limit of {} of memory; shrink the image or cut it \
                 into pieces",
                human_bytes(self.max_bytes)
            ));
        }
        let what = format_args!("decoding {width} x {height} pixels");
        memory::ensure(&what, needed).map_err(|error| error.to_string())
    }
}

/// A format of image files.
enum Format {
    Png,
    Jpeg,
    Tiff,
}

impl Format {
    /// Recognises a format by the first bytes. Errors: the problem.
    fn of(bytes: &[u8]) -> Result<Self, String> {
        let is = |magic: &[u8]| bytes.starts_with(magic);
        if is(b"\x89PNG\r\n\x1a\n") {
            Ok(Self::Png)
        } else if is(b"\xff\xd8\xff") {
            Ok(Self::Jpeg)
        } else if [b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"].iter().any(|magic| is(*magic)) {
            Ok(Self::Tiff)
        } else if bytes.is_empty() {
            Err("the file is empty".into())
        } else {
            Err("not a PNG, JPEG or TIFF image; convert it to one of these".into())
        }
    }
}

/// Splits `FILE#N` into the file and the page; without `#N`, the whole is the file.
pub fn split_page(reference: &str) -> (&str, Option<u32>) {
    let page = |(file, page): (_, &str)| {
        let is_number = page.bytes().all(|byte| byte.is_ascii_digit());
        page.parse().ok().filter(|_| is_number).map(|page| (file, Some(page)))
    };
    let found = reference.rsplit_once('#').filter(|(file, _)| !file.is_empty());
    found.and_then(page).unwrap_or((reference, None))
}

/// Reads and decodes an image `FILE`, or page N of a TIFF file, `FILE#N`.
///
/// Errors: those of [`read`]; 65 as of [`decode`].
pub fn open(reference: &str, options: &DecodeOptions) -> Result<RgbImage> {
    let (file, page) = split_page(reference);
    decode(file, &read(Path::new(file), options)?, page, options)
}

/// Reads the file of an image. Errors: 65 when it is larger than the limit; 66 when it cannot be opened; 74.
pub fn read(path: &Path, options: &DecodeOptions) -> Result<Vec<u8>> {
    let size = small::require_file(path)?;
    if size > options.max_bytes {
        return Err(Error::data(format!(
            "{}: {} is more than the limit of {} for an image",
            path.display(),
            human_bytes(size),
            human_bytes(options.max_bytes)
        )));
    }
    memory::ensure(&format_args!("reading {}", path.display()), Some(size))?;
    small::read_all(path, options.max_bytes)
}

/// Decodes the file `bytes`, which is called `name` in errors, into RGB, and turns it upright as its EXIF orientation
/// says. `page` is the page of a TIFF file, from 0, the first by default.
///
/// Colours are converted as Pillow's `convert("RGB")` does it; see [`Transparency`] for transparent ones. Samples of 16
/// bits lose their low byte. So do grey levels, which Pillow clips at 255 instead: that would make a scan white. Colour
/// profiles are ignored. Of an animated PNG, the still image is decoded, as Pillow does it.
///
/// Errors: 65 for a format, a colour space or a compression that is not supported, a damaged or truncated file, an
/// image without pixels or above the limits, or a page that is not there.
pub fn decode(
    name: &str,
    bytes: &[u8],
    page: Option<u32>,
    options: &DecodeOptions,
) -> Result<RgbImage> {
    guarded(name, || {
        let format = Format::of(bytes)?;
        if let (Some(page @ 1..), false) = (page, matches!(format, Format::Tiff)) {
            return Err(format!(
                "page {page} of a file with one image; only TIFF files have pages"
            ));
        }
        let (image, orientation) = match format {
            Format::Png => png_file::decode(bytes, options)?,
            Format::Jpeg => jpeg_file::decode(bytes, options)?,
            Format::Tiff => tiff_file::decode(bytes, page.unwrap_or(0), options)?,
        };
        if orientation == 1 {
            return Ok(image);
        }
        options.require(image.width, image.height, 6)?;
        Ok(image.oriented(orientation))
    })
}

/// Counts the images of a file: the pages of a TIFF file, 1 for other formats. Pages are not decoded.
///
/// Errors: 65 for other formats, or a damaged directory of pages.
pub fn count_pages(name: &str, bytes: &[u8]) -> Result<u32> {
    guarded(name, || match Format::of(bytes)? {
        Format::Png | Format::Jpeg => Ok(1),
        Format::Tiff => tiff_file::count_pages(bytes),
    })
}

/// Turns a problem with the file `name`, or a panic about it, into an error.
fn guarded<T>(name: &str, call: impl FnOnce() -> Result<T, String>) -> Result<T> {
    let found = catch_panics(call);
    let found = found.unwrap_or_else(|cause| Err(format!("damaged: the decoder failed: {cause}")));
    found.map_err(|problem| Error::data(format!("{name}: {problem}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_numbers_after_the_last_hash() {
        for (reference, expected) in [
            ("a.tif#3", ("a.tif", Some(3))),
            ("a#b.tif#0", ("a#b.tif", Some(0))),
            ("a.tif", ("a.tif", None)),
            ("a#b.tif", ("a#b.tif", None)),
            ("a.tif#", ("a.tif#", None)),
            ("#3", ("#3", None)),
            ("a.tif#+3", ("a.tif#+3", None)),
            ("a.tif#99999999999", ("a.tif#99999999999", None)),
        ] {
            assert_eq!(split_page(reference), expected, "{reference}");
        }
    }

    #[test]
    fn sizes_are_checked_before_decoding() {
        let options = DecodeOptions { max_pixels: 100, max_bytes: 900, ..Default::default() };
        options.require(10, 10, 9).unwrap();
        for (width, height, bytes, text) in [
            (0, 10, 1, "is empty"),
            (101, 1, 1, "limit of 100 pixels"),
            (u32::MAX, u32::MAX, 1, "limit of 100 pixels"),
            (10, 10, 10, "of memory"),
            (10, 10, u64::MAX, "of memory"),
        ] {
            let error = options.require(width, height, bytes).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
    }
}
