//! PNG files.

use super::Transparency;
use super::decode::DecodeOptions;
use super::exif;
use super::pixels::{Colour, RgbImage, Samples};
use super::{Filter, resize};
use png::{BitDepth, ColorType, DecodingError, Limits, Transformations};
use std::io::Cursor;
use unix::{Error, Result};

/// Encodes an image as PNG, shrunk if a side has more than `longest` pixels. Errors: 65 when it does not fit into memory.
pub fn thumbnail(image: &RgbImage, longest: u32) -> Result<Vec<u8>> {
    let most = image.width.max(image.height);
    let side = |side: u32| ((u64::from(side) * u64::from(longest) / u64::from(most)) as u32).max(1);
    let shrunk = match most > longest {
        true => Some(resize(image, side(image.width), side(image.height), Filter::Lanczos)?),
        false => None,
    };
    encode(shrunk.as_ref().unwrap_or(image)).map_err(|cause| Error::bug(format!("PNG: {cause}")))
}

fn encode(image: &RgbImage) -> Result<Vec<u8>, png::EncodingError> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, image.width, image.height);
    encoder.set_color(ColorType::Rgb);
    encoder.set_depth(BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&image.pixels)?;
    writer.finish()?;
    Ok(bytes)
}

/// Decodes a file; the second value is its EXIF orientation. Errors: the problem.
pub(super) fn decode(bytes: &[u8], options: &DecodeOptions) -> Result<(RgbImage, u16), String> {
    let limits = Limits { bytes: usize::try_from(options.max_bytes).unwrap_or(usize::MAX) };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), limits);
    // Samples are converted here, and texts and colour profiles may be decompressed to any size.
    decoder.set_transformations(Transformations::IDENTITY);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let info = decoder.read_header_info().map_err(|cause| problem(&cause))?;
    let (width, height, depth) = (info.width, info.height, info.bit_depth as u8);
    let bits = u64::from(depth) * info.color_type.samples() as u64;
    options.require(width, height, bits.div_ceil(8) + 3)?;
    let mut reader = decoder.read_info().map_err(|cause| problem(&cause))?;
    let info = reader.info();
    let palette = palette(info.palette.as_deref(), info.trns.as_deref());
    let colour = match info.color_type {
        ColorType::Grayscale => Colour::Grey,
        ColorType::GrayscaleAlpha => Colour::GreyAlpha,
        ColorType::Rgb => Colour::Rgb,
        ColorType::Rgba => Colour::RgbAlpha,
        ColorType::Indexed => Colour::Palette(&palette),
    };
    let key = match (options.transparency, info.trns.as_deref()) {
        (Transparency::OnWhite, Some(key)) => transparent(colour, info.bit_depth, key)?,
        _ => None,
    };
    let size = reader.output_buffer_size().ok_or("its size overflows")?;
    let mut samples = vec![0; size];
    reader.next_frame(&mut samples).map_err(|cause| problem(&cause))?;
    // Metadata may follow the pixels. The frames of an animation are skipped.
    reader.finish().map_err(|cause| problem(&cause))?;
    let orientation = reader.info().exif_metadata.as_deref().map_or(1, exif::orientation);
    if matches!((colour, depth, key), (Colour::Rgb, 8, None)) {
        return Ok((RgbImage { width, height, pixels: samples }, orientation));
    }
    let samples = Samples {
        width,
        height,
        depth,
        big_endian: true,
        planar: false,
        colour,
        key,
        bytes: &samples,
    };
    Ok((samples.to_rgb(options.transparency)?, orientation))
}

/// Returns the colours of all indices. Those beyond the end of the palette are black, as in Pillow.
fn palette(colours: Option<&[u8]>, alphas: Option<&[u8]>) -> [[u8; 4]; 256] {
    let mut palette = [[0, 0, 0, 255]; 256];
    for (own, rgb) in palette.iter_mut().zip(colours.unwrap_or_default().chunks_exact(3)) {
        own[..3].copy_from_slice(rgb);
    }
    for (own, alpha) in palette.iter_mut().zip(alphas.unwrap_or_default()) {
        own[3] = *alpha;
    }
    palette
}

/// Returns the colour, as 8 bits, that a file declares transparent. Errors: the problem.
fn transparent(colour: Colour, depth: BitDepth, key: &[u8]) -> Result<Option<[u8; 3]>, String> {
    // The library has dropped the high byte of each sample of the key.
    let scale = match (colour, depth) {
        (Colour::Palette(_), _) => return Ok(None),
        (_, BitDepth::Sixteen) => {
            return Err(
                "a transparent colour of 16 bits is not supported; convert the image to 8 bits"
                    .into(),
            );
        }
        (_, depth) => 255 / ((1_u16 << depth as u8) - 1),
    };
    let own = |at: usize| key.get(at).map(|value| (u16::from(*value) * scale) as u8);
    let key = match colour {
        Colour::Grey => own(0).map(|grey| [grey; 3]),
        _ => own(0).zip(own(1)).zip(own(2)).map(|((red, green), blue)| [red, green, blue]),
    };
    Ok(key)
}

/// Describes an error of the library.
fn problem(cause: &DecodingError) -> String {
    match cause {
        DecodingError::LimitsExceeded => "its chunks take more memory than the limit".into(),
        DecodingError::IoError(_) => "truncated PNG file; copy it again".into(),
        cause => format!("damaged PNG file: {cause}"),
    }
}
