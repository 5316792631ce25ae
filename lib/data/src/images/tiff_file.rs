//! TIFF files: bilevel, grey, palette, RGB, CMYK and YCbCr with 1 to 16 bits; uncompressed, PackBits, LZW, Deflate, JPEG
//! and CCITT group 4; strips and tiles, planes, several pages.

use super::decode::DecodeOptions;
use super::jpeg_file;
use super::pixels::{Colour, RgbImage, Samples};
use super::tiff_fax::FaxPage;
use std::borrow::Cow;
use std::io::Cursor;
use tiff::decoder::{ChunkType, Decoder, Limits};
use tiff::tags::{CompressionMethod as Compression, PhotometricInterpretation as Photometric, Tag};
use tiff::{ColorType, TiffError};

/// Maximum number of pages of a file.
const MAX_PAGES: u32 = 65_536;
/// Value of `SampleFormat` for unsigned integers.
const UNSIGNED: u64 = 1;
/// Value of `FillOrder` if the lowest bit of a byte comes first.
const LOWEST_BIT_FIRST: u64 = 2;
/// Values of `ExtraSamples`: alpha, with which colours have been multiplied or not.
const PREMULTIPLIED: u64 = 1;
const ALPHA: u64 = 2;

type Reader<'a> = Decoder<Cursor<&'a [u8]>>;

fn open(bytes: &[u8]) -> Result<Reader<'_>, String> {
    // The library compares the second limit with what a strip states, and allocates nothing of that size.
    let mut limits = Limits::default();
    limits.intermediate_buffer_size = usize::MAX;
    Ok(Decoder::new(Cursor::new(bytes)).map_err(problem)?.with_limits(limits))
}

/// Counts the pages. Errors: the problem.
pub(super) fn count_pages(bytes: &[u8]) -> Result<u32, String> {
    let mut reader = open(bytes)?;
    let mut pages = 1;
    while reader.more_images() {
        if pages == MAX_PAGES {
            return Err(format!("more than {MAX_PAGES} pages; split the file"));
        }
        reader.next_image().map_err(problem)?;
        pages += 1;
    }
    Ok(pages)
}

/// Decodes a page; the second value is its orientation. Errors: the problem.
pub(super) fn decode(
    bytes: &[u8],
    page: u32,
    options: &DecodeOptions,
) -> Result<(RgbImage, u16), String> {
    let mut reader = open(bytes)?;
    seek(&mut reader, page)?;
    let found = Page::read(&mut reader)?;
    found.require_supported(&mut reader)?;
    let orientation = u16::try_from(found.orientation).unwrap_or(1);
    let orientation = if (1..=8).contains(&orientation) { orientation } else { 1 };
    if found.compression == Compression::Fax4 {
        options.require(found.width, found.height, 3)?;
        return Ok((found.fax_page(bytes)?.decode()?, orientation));
    }
    let bits = found.bits * found.samples;
    options.require(found.width, found.height, bits.div_ceil(8) + 3)?;
    found.require_small_frames(bytes)?;
    let palette = found.palette(&mut reader)?;
    // The library reads neither palettes nor other orders of bits: it gets a copy with other values.
    let edited = found.edited(bytes, &mut reader)?;
    let mut reader = open(&edited)?;
    seek(&mut reader, page)?;
    let layout = reader.image_buffer_layout().map_err(problem)?;
    if layout.complete_len as u64 > options.max_bytes {
        return Err("its rows take more memory than the limit".into());
    }
    let mut samples = vec![0; layout.complete_len];
    reader.read_image_bytes(&mut samples).map_err(problem)?;
    let colour = match (found.colour(&mut reader)?, &palette) {
        (_, Some(palette)) => Colour::Palette(palette),
        (colour, None) => colour,
    };
    let planar = found.planar && colour.samples() > 1;
    let samples = Samples {
        width: found.width,
        height: found.height,
        depth: found.bits as u8,
        big_endian: cfg!(target_endian = "big"),
        planar,
        colour,
        key: None,
        bytes: &samples,
    };
    Ok((samples.to_rgb(options.transparency)?, orientation))
}

fn seek(reader: &mut Reader, page: u32) -> Result<(), String> {
    for skipped in 0..page {
        if !reader.more_images() {
            return Err(format!("page {page} is missing; pages are 0 to {skipped}"));
        }
        reader.next_image().map_err(problem)?;
    }
    Ok(())
}

/// The tags of a page that the library does not interpret, or that are checked before it does.
struct Page {
    width: u32,
    height: u32,
    bits: u64,
    samples: u64,
    photometric: Photometric,
    compression: Compression,
    planar: bool,
    fill_order: u64,
    orientation: u64,
    rows_per_strip: u64,
    /// Offset and length of strips or tiles.
    chunks: Vec<(u64, u64)>,
    extra: Vec<u64>,
    predictor: u64,
    sample_format: u64,
    is_tiled: bool,
    tile: (u64, u64),
}

impl Page {
    fn read(reader: &mut Reader) -> Result<Self, String> {
        let (width, height) = reader.dimensions().map_err(problem)?;
        let is_tiled = reader.get_chunk_type() == ChunkType::Tile;
        let mut list = |tag| {
            let found = reader.find_tag_unsigned_vec::<u64>(tag).map_err(problem);
            found.map(Option::unwrap_or_default)
        };
        let offsets = list(if is_tiled { Tag::TileOffsets } else { Tag::StripOffsets })?;
        let lengths = list(if is_tiled { Tag::TileByteCounts } else { Tag::StripByteCounts })?;
        let extra = list(Tag::ExtraSamples)?;
        let mut first =
            |tag, usual: u64| Ok::<u64, String>(list(tag)?.first().copied().unwrap_or(usual));
        let photometric = first(Tag::PhotometricInterpretation, 0)?;
        let compression = first(Tag::Compression, 1)?;
        Ok(Self {
            width,
            height,
            bits: first(Tag::BitsPerSample, 1)?,
            samples: first(Tag::SamplesPerPixel, 1)?,
            photometric: u16::try_from(photometric)
                .ok()
                .and_then(Photometric::from_u16)
                .ok_or_else(|| {
                    format!("photometric interpretation {photometric} is not supported")
                })?,
            compression: Compression::from_u16_exhaustive(u16::try_from(compression).unwrap_or(0)),
            planar: first(Tag::PlanarConfiguration, 1)? == 2,
            fill_order: first(Tag::FillOrder, 1)?,
            orientation: first(Tag::Orientation, 1)?,
            rows_per_strip: first(Tag::RowsPerStrip, u64::from(height))?,
            predictor: first(Tag::Predictor, 1)?,
            sample_format: first(Tag::SampleFormat, UNSIGNED)?,
            tile: (first(Tag::TileWidth, 0)?, first(Tag::TileLength, 0)?),
            chunks: offsets.into_iter().zip(lengths).collect(),
            extra,
            is_tiled,
        })
    }

    /// Refuses what the code below or the library would get wrong. Errors: the problem.
    fn require_supported(&self, reader: &mut Reader) -> Result<(), String> {
        let unsupported = |what: String| {
            Err(format!("a TIFF page with {what} is not supported; convert it to PNG"))
        };
        let is_fax = self.compression == Compression::Fax4;
        match self.compression {
            Compression::None | Compression::LZW | Compression::PackBits | Compression::Fax4 => {}
            Compression::Deflate | Compression::OldDeflate | Compression::ModernJPEG => {}
            other => return unsupported(format!("compression {} ({other:?})", other.to_u16())),
        }
        if is_fax && ((self.bits, self.samples) != (1, 1) || self.is_tiled) {
            return unsupported("group 4 compression of tiles, or of more than one bit".into());
        }
        if self.sample_format != UNSIGNED {
            return unsupported("signed or floating-point samples".into());
        }
        if ![1, 2, 4, 8, 16].contains(&self.bits) || (self.bits < 8 && self.samples > 1) {
            return unsupported(format!("{} samples of {} bits", self.samples, self.bits));
        }
        if self.photometric == Photometric::RGBPalette && (self.samples > 1 || self.bits > 8) {
            return unsupported("a palette of more than 8 bits, or with alpha".into());
        }
        let kept = match self.photometric {
            Photometric::RGBPalette => 1,
            _ if is_fax => 1,
            _ => self.colour(reader)?.samples() as u64,
        };
        // The library drops other samples before it undoes the predictor, and keeps their planes.
        if kept != self.samples && (self.predictor != 1 || self.planar) {
            return unsupported(format!("{} samples a pixel", self.samples));
        }
        Ok(())
    }

    /// Returns the meaning of the samples that the library returns. Errors: the problem.
    fn colour(&self, reader: &mut Reader) -> Result<Colour<'static>, String> {
        if self.photometric == Photometric::RGBPalette {
            return Ok(Colour::Grey);
        }
        let alpha =
            self.extra.first().copied().filter(|extra| [PREMULTIPLIED, ALPHA].contains(extra));
        let is_grey = matches!(self.photometric, Photometric::BlackIsZero);
        match reader.colortype().map_err(problem)? {
            ColorType::Gray(_) => Ok(Colour::Grey),
            ColorType::Multiband { num_samples: 2, .. } if is_grey && alpha == Some(ALPHA) => {
                Ok(Colour::GreyAlpha)
            }
            ColorType::RGB(_) => Ok(Colour::Rgb),
            ColorType::RGBA(_) if alpha == Some(PREMULTIPLIED) => Ok(Colour::RgbPremultiplied),
            ColorType::RGBA(_) => Ok(Colour::RgbAlpha),
            ColorType::CMYK(8) => Ok(Colour::Cmyk),
            ColorType::YCbCr(8) => Ok(Colour::YCbCr),
            other => Err(format!(
                "a TIFF page with colours {other:?} is not supported; convert it to PNG"
            )),
        }
    }

    /// Returns the bytes of all strips or tiles. Errors: the problem.
    fn chunks<'a>(&self, bytes: &'a [u8]) -> Result<Vec<&'a [u8]>, String> {
        let own = self.chunks.iter().map(|(offset, length)| {
            let start = usize::try_from(*offset).ok()?;
            bytes.get(start..start.checked_add(usize::try_from(*length).ok()?)?)
        });
        let own = own.collect::<Option<Vec<_>>>();
        let own = own.ok_or("truncated: pixels beyond the end of the file; copy it again")?;
        // Otherwise a small file with many strips in one place would take hours.
        match own.iter().map(|chunk| chunk.len()).sum::<usize>() <= bytes.len() {
            true => Ok(own),
            false => Err("damaged: its strips overlap".into()),
        }
    }

    fn fax_page<'a>(&self, bytes: &'a [u8]) -> Result<FaxPage<'a>, String> {
        let is_inverted = match self.photometric {
            Photometric::WhiteIsZero => false,
            Photometric::BlackIsZero => true,
            other => {
                return Err(format!("group 4 compression with colours {other:?} is not supported"));
            }
        };
        Ok(FaxPage {
            width: self.width,
            height: self.height,
            rows_per_strip: u32::try_from(self.rows_per_strip).unwrap_or(u32::MAX).max(1),
            lowest_bit_first: self.fill_order == LOWEST_BIT_FIRST,
            is_inverted,
            strips: self.chunks(bytes)?,
        })
    }

    /// Checks that JPEG streams are not larger than their strips or tiles, because they are decoded in full.
    fn require_small_frames(&self, bytes: &[u8]) -> Result<(), String> {
        if self.compression != Compression::ModernJPEG {
            return Ok(());
        }
        let (width, height) = match self.is_tiled {
            true => self.tile,
            false => (u64::from(self.width), self.rows_per_strip.min(u64::from(self.height))),
        };
        let fits = |(own_width, own_height): (u16, u16)| {
            u64::from(own_width) == width && u64::from(own_height) <= height
        };
        match self.chunks(bytes)?.iter().all(|chunk| jpeg_file::frame_size(chunk).is_some_and(fits))
        {
            true => Ok(()),
            false => {
                Err("damaged: a JPEG stream without a size, or with another size than its strip"
                    .into())
            }
        }
    }

    /// Returns the palette, if the page has one. Errors: the problem.
    fn palette(&self, reader: &mut Reader) -> Result<Option<[[u8; 4]; 256]>, String> {
        if self.photometric != Photometric::RGBPalette {
            return Ok(None);
        }
        let colours = reader.get_tag_u16_vec(Tag::ColorMap).map_err(problem)?;
        let entries = 1 << self.bits;
        if colours.len() != 3 * entries {
            return Err(format!(
                "damaged: a palette of {} values, not 3 x {entries}",
                colours.len()
            ));
        }
        let mut palette = [[0, 0, 0, 255]; 256];
        for (at, own) in palette.iter_mut().take(entries).enumerate() {
            for (channel, value) in own[..3].iter_mut().enumerate() {
                // Pillow keeps the high byte.
                *value = (colours[channel * entries + at] >> 8) as u8;
            }
        }
        Ok(Some(palette))
    }

    /// Returns the file as the library can read it: indices of a palette as grey levels, and the highest bit first.
    fn edited<'a>(&self, bytes: &'a [u8], reader: &mut Reader) -> Result<Cow<'a, [u8]>, String> {
        let has_palette = self.photometric == Photometric::RGBPalette;
        // As in libtiff, JPEG streams have one order only.
        let is_reversed =
            self.fill_order == LOWEST_BIT_FIRST && self.compression != Compression::ModernJPEG;
        if !has_palette && !is_reversed {
            return Ok(Cow::Borrowed(bytes));
        }
        let mut edited = bytes.to_vec();
        if is_reversed {
            self.chunks(bytes)?;
            for (offset, length) in &self.chunks {
                let chunk = &mut edited[*offset as usize..][..*length as usize];
                chunk.iter_mut().for_each(|byte| *byte = byte.reverse_bits());
            }
        }
        if has_palette {
            let value = photometric_at(bytes, reader).and_then(|at| edited.get_mut(at..at + 2));
            let value = value.ok_or("damaged: its directory is cut off")?;
            let grey = Photometric::BlackIsZero.to_u16();
            value.copy_from_slice(&match is_big_endian(bytes) {
                true => grey.to_be_bytes(),
                false => grey.to_le_bytes(),
            });
        }
        Ok(Cow::Owned(edited))
    }
}

fn is_big_endian(bytes: &[u8]) -> bool {
    bytes.starts_with(b"MM")
}

/// Returns the position of the value of `PhotometricInterpretation` in the directory of the current page.
fn photometric_at(bytes: &[u8], reader: &mut Reader) -> Option<usize> {
    let directory = usize::try_from(reader.ifd_pointer()?.0).ok()?;
    let short = |at: usize| {
        let own = bytes.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if is_big_endian(bytes) { u16::from_be_bytes(own) } else { u16::from_le_bytes(own) })
    };
    // Sizes of the number of entries, of an entry, and of its tag, type and count, without and with 64-bit offsets.
    let (header, entry, value) = if short(2)? == 42 { (2, 12, 8) } else { (8, 20, 12) };
    let tag = Tag::PhotometricInterpretation.to_u16();
    let mut at = directory.checked_add(header)?;
    while short(at)? != tag {
        at = at.checked_add(entry)?;
    }
    Some(at + value)
}

/// Describes an error of the library.
fn problem(cause: TiffError) -> String {
    match cause {
        TiffError::IoError(_) => "truncated or damaged TIFF file; copy it again".into(),
        TiffError::UnsupportedError(_) => format!("{cause}; convert the image to PNG"),
        TiffError::LimitsExceeded => "its parts take more memory than the limit".into(),
        cause => format!("damaged TIFF file: {cause}"),
    }
}
