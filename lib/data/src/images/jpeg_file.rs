//! JPEG files: baseline and progressive, grey, YCbCr, RGB, CMYK and YCCK with 8 bits. Four components are inverted, as
//! Adobe's programs write them and Pillow assumes.

use super::decode::DecodeOptions;
use super::exif;
use super::pixels::RgbImage;
use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

/// Bytes of memory for each pixel: RGB, and coefficients of a progressive file with four components, 2 bytes each.
const PER_PIXEL: u64 = 3 + 8;

/// Decodes a file; the second value is its EXIF orientation. Errors: the problem.
pub(super) fn decode(bytes: &[u8], options: &DecodeOptions) -> Result<(RgbImage, u16), String> {
    let settings = DecoderOptions::default()
        // Otherwise the rest of a truncated file is grey.
        .set_strict_mode(true)
        .set_max_width(usize::from(u16::MAX))
        .set_max_height(usize::from(u16::MAX))
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), settings);
    decoder.decode_headers().map_err(|cause| problem(&cause))?;
    let info = decoder.info().ok_or("damaged JPEG file: it has no frame")?;
    let (width, height) = (u32::from(info.width), u32::from(info.height));
    options.require(width, height, PER_PIXEL)?;
    if !is_complete(bytes) {
        return Err("truncated JPEG file: it has no end marker; copy it again".into());
    }
    let orientation = decoder.exif().map_or(1, |exif| exif::orientation(exif));
    let pixels = decoder.decode().map_err(|cause| problem(&cause))?;
    match pixels.len() as u64 == 3 * u64::from(width) * u64::from(height) {
        true => Ok((RgbImage { width, height, pixels }, orientation)),
        false => {
            Err("a JPEG file with other components than grey, YCbCr, RGB, CMYK or YCCK".into())
        }
    }
}

/// Describes an error of the library.
fn problem(cause: &DecodeErrors) -> String {
    format!(
        "damaged, truncated or unsupported JPEG file: {cause:?}; copy it again, or convert it to PNG"
    )
}

/// A segment of a JPEG stream: its marker, and the bytes after its length.
struct Segment<'a> {
    marker: u8,
    content: &'a [u8],
}

const START_OF_SCAN: u8 = 0xda;
const END_OF_IMAGE: u8 = 0xd9;

/// The segments of a JPEG stream up to its end marker, which is the last one, or to its truncated end.
struct Segments<'a> {
    bytes: &'a [u8],
    at: usize,
    has_ended: bool,
}

impl<'a> Segments<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 2, has_ended: false }
    }
}

impl<'a> Iterator for Segments<'a> {
    type Item = Segment<'a>;

    fn next(&mut self) -> Option<Segment<'a>> {
        // Pixels have no marker in them: there, 0 follows 0xff. Restarts have no length, and 0xff may be repeated.
        let is_marker = |pair: &[u8]| pair[0] == 0xff && ![0, 0xff].contains(&pair[1]);
        let is_restart = |pair: &[u8]| (0xd0..=0xd7).contains(&pair[1]);
        let rest = self.bytes.get(self.at..).filter(|_| !self.has_ended)?;
        let skipped = rest.windows(2).position(|pair| is_marker(pair) && !is_restart(pair))?;
        let start = self.at + skipped + 2;
        let marker = self.bytes[start - 1];
        if marker == END_OF_IMAGE {
            self.has_ended = true;
            return Some(Segment { marker, content: &[] });
        }
        let length = self.bytes.get(start..start + 2)?;
        let length = usize::from(u16::from_be_bytes([length[0], length[1]])).max(2);
        self.at = start + length;
        Some(Segment { marker, content: self.bytes.get(start + 2..self.at)? })
    }
}

/// Whether a JPEG stream has scans and then an end marker. The library decodes streams without one.
fn is_complete(bytes: &[u8]) -> bool {
    let mut segments = Segments::of(bytes);
    segments.any(|segment| segment.marker == START_OF_SCAN)
        && segments.any(|segment| segment.marker == END_OF_IMAGE)
}

/// Returns width and height in the frame header of a JPEG stream.
pub(super) fn frame_size(bytes: &[u8]) -> Option<(u16, u16)> {
    // The frame headers, except the tables and extensions among them.
    let is_frame =
        |marker| (0xc0..=0xcf).contains(&marker) && ![0xc4, 0xc8, 0xcc].contains(&marker);
    let frame = Segments::of(bytes).find(|segment| is_frame(segment.marker))?;
    let &[_, height, low_height, width, low_width, ..] = frame.content else { return None };
    Some((u16::from_be_bytes([width, low_width]), u16::from_be_bytes([height, low_height])))
}
