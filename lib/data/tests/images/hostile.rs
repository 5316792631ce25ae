//! Damaged files, and files that claim more than they have.

use super::{file, folder};
use data::images::{DecodeOptions, Transparency, count_pages, decode};
use unix::Exit;

fn error(bytes: &[u8]) -> String {
    let error = decode("a.tif", bytes, None, &DecodeOptions::default()).unwrap_err();
    assert_eq!(error.exit, Exit::Data);
    let text = error.to_string();
    assert!(text.starts_with("a.tif: "), "{text}");
    text
}

fn names() -> Vec<String> {
    let entries = std::fs::read_dir(folder().join("files")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Replaces the header of a PNG file by one with another size.
fn png_of_size(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = file("rgb.png");
    bytes[16..20].copy_from_slice(&width.to_be_bytes());
    bytes[20..24].copy_from_slice(&height.to_be_bytes());
    let sum = crc(&bytes[12..29]);
    bytes[29..33].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// The checksum of PNG.
fn crc(bytes: &[u8]) -> u32 {
    let step = |sum: u32, _| if sum & 1 == 1 { 0xedb8_8320 ^ (sum >> 1) } else { sum >> 1 };
    !bytes.iter().fold(u32::MAX, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), step))
}

/// Changes the value of a tag of an uncompressed TIFF file in little-endian order.
fn with_tag(name: &str, tag: u16, value: u32) -> Vec<u8> {
    let mut bytes = file(name);
    let directory = u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
    let entries = usize::from(bytes[directory]);
    let mut entries = (0..entries).map(|entry| directory + 2 + 12 * entry);
    let at = entries.find(|at| bytes[*at..at + 2] == tag.to_le_bytes()).unwrap();
    // A 32-bit value.
    bytes[at + 2] = 4;
    bytes[at + 8..at + 12].copy_from_slice(&value.to_le_bytes());
    bytes
}

#[test]
fn files_that_are_no_images_are_refused() {
    assert!(error(b"").contains("the file is empty"));
    for bytes in [b"GIF89a".as_slice(), b"\x89PNG\r\n\x1a", b"II*", b"<svg/>", &[0xff, 0xd8]] {
        assert!(error(bytes).contains("not a PNG, JPEG or TIFF image"));
    }
    assert_eq!(count_pages("a", b"x").unwrap_err().exit, Exit::Data);
}

#[test]
fn sizes_are_refused_before_anything_is_allocated() {
    for (width, height, text) in [
        (60_000, 60_000, "60000 x 60000 pixels is more than the limit"),
        (i32::MAX as u32, i32::MAX as u32, "more than the limit"),
        (0, 7, "PNG"),
        (13, 0, "PNG"),
    ] {
        let found = error(&png_of_size(width, height));
        assert!(found.contains(text), "{found}");
    }
    // Within the limit of pixels, but not of memory.
    let options = DecodeOptions { max_bytes: 1 << 20, ..Default::default() };
    let found = decode("a", &png_of_size(1000, 1000), None, &options).unwrap_err();
    assert!(found.to_string().contains("more than the limit of 1.0 MiB of memory"), "{found}");
    let mut jpeg = file("rgb.jpg");
    let frame = jpeg.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    jpeg[frame + 5..frame + 9].copy_from_slice(&[0xff; 4]);
    assert!(error(&jpeg).contains("65535 x 65535 pixels is more than the limit"));
    jpeg[frame + 5..frame + 9].copy_from_slice(&[0, 0, 0, 9]);
    assert!(error(&jpeg).contains("JPEG"));
    for tag in [256, 257] {
        assert!(error(&with_tag("rgb.tif", tag, 0)).contains("TIFF"));
        let found = error(&with_tag("rgb.tif", tag, u32::MAX));
        assert!(found.contains("TIFF") || found.contains("limit"), "{found}");
    }
    // A JPEG stream in a strip that is larger than the page.
    let mut tiff = file("jpeg.tif");
    let frame = tiff.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    tiff[frame + 5..frame + 9].copy_from_slice(&[0x3f; 4]);
    assert!(error(&tiff).contains("with another size than its strip"));
}

#[test]
fn tiff_pages_that_are_not_supported_are_named() {
    for (name, tag, value, text) in [
        ("rgb16.tif", 259, 5000, "compression 5000"),
        ("group4_one_strip.tif", 259, 3, "compression 3 (Fax3)"),
        ("white_is_zero.tif", 258, 32, "32 bits"),
        ("white_is_zero.tif", 262, 32_803, "interpretation"),
        ("group4_one_strip.tif", 262, 3, "group 4 compression with colours RGBPalette"),
        ("group4_one_strip.tif", 262, 5, "group 4 compression with colours CMYK"),
        ("group4_one_strip.tif", 256, 70_000, "group 4 compression of 70000 pixels a row"),
        ("group4_one_strip.tif", 257, 1000, "group 4"),
        ("white_is_zero.tif", 273, u32::MAX, "TIFF"),
        ("group4_one_strip.tif", 273, u32::MAX, "beyond the end of the file"),
        ("group4_one_strip.tif", 279, u32::MAX, "beyond the end of the file"),
        ("palette4.tif", 320, 100, "TIFF"),
    ] {
        let found = error(&with_tag(name, tag, value));
        assert!(found.contains(text), "{name} {tag} {value}: {found}");
    }
}

#[test]
fn a_cycle_of_tiff_pages_is_an_error() {
    let mut bytes = file("rgb16.tif");
    let directory = u32::from_le_bytes(bytes[4..8].try_into().unwrap());
    let link = directory as usize + 2 + 12 * usize::from(bytes[directory as usize]);
    bytes[link..link + 4].copy_from_slice(&directory.to_le_bytes());
    assert_eq!(count_pages("a.tif", &bytes).unwrap_err().exit, Exit::Data);
    let options = DecodeOptions::default();
    assert_eq!(decode("a.tif", &bytes, Some(7), &options).unwrap_err().exit, Exit::Data);
}

/// What is cut off may be metadata, or an end marker after the last pixel.
#[test]
fn a_truncated_file_never_becomes_another_image() {
    let options = DecodeOptions::default();
    for name in names() {
        let bytes = file(&name);
        let whole = decode(&name, &bytes, None, &options).unwrap();
        let mut read = 0;
        for length in 0..bytes.len() {
            match decode(&name, &bytes[..length], None, &options) {
                Ok(image) => {
                    assert!(image == whole, "{name} cut at {length}");
                    read += 1;
                }
                Err(error) => assert_eq!(error.exit, Exit::Data),
            }
        }
        if read > 0 {
            println!("{name}: {read} of {} lengths are read", bytes.len());
        }
    }
}

#[test]
fn damaged_files_end_in_errors() {
    // Small, so that no claimed size takes time.
    let options = DecodeOptions { max_pixels: 1 << 20, max_bytes: 64 << 20, ..Default::default() };
    let (mut state, mut refused, mut all) = (7_u64, 0, 0);
    let mut draw = move |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for name in names() {
        let bytes = file(&name);
        for _ in 0..200 {
            let mut damaged = bytes.clone();
            for _ in 0..1 + draw(4) {
                damaged[draw(bytes.len())] = [0, 255, draw(256) as u8, 1 << draw(8)][draw(4)];
            }
            let transparency = [Transparency::Ignored, Transparency::OnWhite][draw(2)];
            let options = DecodeOptions { transparency, ..options };
            if let Err(error) = decode(&name, &damaged, None, &options) {
                assert_eq!(error.exit, Exit::Data);
                refused += 1;
                if error.to_string().contains("the decoder failed") {
                    println!("{error}");
                }
            }
            let _ = count_pages(&name, &damaged);
            all += 1;
        }
    }
    println!("{refused} of {all} damaged files were refused");
    assert!(refused > all / 4);
}
