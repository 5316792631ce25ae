//! Images have the pixels of Pillow and the patches of transformers (golden_images.py), and hostile files are refused.

mod hostile;
mod processors;

use data::images::{
    DecodeOptions, Filter, Patches, Preprocessor, RgbImage, Transparency, count_pages, decode,
    open, resize, smart_resize,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/images")
}

fn file(name: &str) -> Vec<u8> {
    std::fs::read(folder().join("files").join(name)).unwrap()
}

fn cases<T: DeserializeOwned>(name: &str) -> Vec<T> {
    serde_json::from_slice(&std::fs::read(folder().join(name)).unwrap()).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(digits).collect()
}

fn hash(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// `computed` of golden_images.py.
fn computed(width: u32, height: u32) -> RgbImage {
    let mut pixels = Vec::with_capacity(3 * (width * height) as usize);
    for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
        pixels.extend((0..3_u32).map(|c| {
            let terms = [(x, 374_761_393_u32), (y, 668_265_263), (c, 2_246_822_519)];
            let n = terms.iter().fold(0_u32, |n, (a, b)| n.wrapping_add(a.wrapping_mul(*b)));
            let n = (n ^ (n >> 13)).wrapping_mul(1_274_126_177);
            let n = (n ^ (n >> 16)) as u8;
            match (x / 5 + y / 3) % 2 == 0 {
                true => u8::from(n >= 128) * 255,
                false => n,
            }
        }));
    }
    RgbImage { width, height, pixels }
}

#[derive(Deserialize)]
struct Decoded {
    file: String,
    page: u32,
    width: u32,
    height: u32,
    pixels: String,
    on_white: Option<String>,
}

#[test]
fn decoded_files_have_the_pixels_of_pillow() {
    let cases: Vec<Decoded> = cases("decoded.json");
    assert!(cases.len() > 60 && cases.iter().filter(|case| case.on_white.is_some()).count() > 6);
    let mut wrong = Vec::new();
    for case in &cases {
        // Another decoder of JPEG rounds in other places.
        let is_jpeg = case.file.ends_with(".jpg") || case.file == "jpeg.tif";
        let tolerance = if is_jpeg { 2 } else { 0 };
        let on_white = case.on_white.as_ref().unwrap_or(&case.pixels);
        for (transparency, expected) in
            [(Transparency::Ignored, &case.pixels), (Transparency::OnWhite, on_white)]
        {
            let options = DecodeOptions { transparency, ..Default::default() };
            let found = match decode(&case.file, &file(&case.file), Some(case.page), &options) {
                Ok(found) => found,
                Err(error) => {
                    wrong.push(error.to_string());
                    continue;
                }
            };
            assert_eq!((found.width, found.height), (case.width, case.height), "{}", case.file);
            let expected = bytes(expected);
            assert_eq!(found.pixels.len(), expected.len(), "{}", case.file);
            let pairs = found.pixels.iter().zip(&expected);
            let largest = pairs.map(|(a, b)| a.abs_diff(*b)).max().unwrap();
            if largest > tolerance {
                wrong.push(format!("{} {transparency:?}: differs by {largest}", case.file));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn files_are_opened_by_content_and_page() {
    let options = DecodeOptions::default();
    let path = folder().join("files/pages.tif").display().to_string();
    let sizes = [(13, 7), (13, 7), (4, 9)];
    assert_eq!(count_pages("pages.tif", &file("pages.tif")).unwrap(), 3);
    for (page, size) in sizes.iter().enumerate() {
        let found = open(&format!("{path}#{page}"), &options).unwrap();
        assert_eq!((found.width, found.height), *size);
    }
    assert_eq!(open(&path, &options).unwrap(), open(&format!("{path}#0"), &options).unwrap());
    let error = open(&format!("{path}#3"), &options).unwrap_err();
    assert!(error.to_string().contains("page 3 is missing; pages are 0 to 2"), "{error}");
    assert_eq!((error.exit, error.to_string().starts_with(&path)), (unix::Exit::Data, true));
    // The extension does not matter.
    let temporary = tempfile::tempdir().unwrap();
    let wrong = temporary.path().join("image.jpg");
    std::fs::write(&wrong, file("rgb.png")).unwrap();
    let wrong = wrong.display().to_string();
    assert_eq!(open(&wrong, &options).unwrap().width, 13);
    assert_eq!(open(&format!("{wrong}#0"), &options).unwrap().width, 13);
    let error = open(&format!("{wrong}#1"), &options).unwrap_err();
    assert!(error.to_string().contains("only TIFF files have pages"), "{error}");
    assert_eq!(open("no/such.png#1", &options).unwrap_err().exit, unix::Exit::NoInput);
    let error = open(&wrong, &DecodeOptions { max_bytes: 100, ..options }).unwrap_err();
    assert!(error.to_string().contains("more than the limit of 100"), "{error}");
}

#[derive(Deserialize)]
struct Resized {
    from: [u32; 2],
    to: [u32; 2],
    filter: String,
    hash: String,
}

#[test]
fn resized_images_have_the_pixels_of_pillow() {
    for case in cases::<Resized>("resized.json") {
        let filter = if case.filter == "bicubic" { Filter::Bicubic } else { Filter::Lanczos };
        let image = computed(case.from[0], case.from[1]);
        let found = resize(&image, case.to[0], case.to[1], filter).unwrap();
        assert_eq!([found.width, found.height], case.to);
        assert_eq!(hash(&found.pixels), case.hash, "{:?} {:?} {filter:?}", case.from, case.to);
    }
    let image = computed(3, 3);
    assert_eq!(resize(&image, 3, 3, Filter::Bicubic).unwrap(), image);
    for (width, height) in [(0, 3), (3, 0), (u32::MAX, u32::MAX)] {
        assert!(resize(&image, width, height, Filter::Bicubic).is_err());
    }
    let empty = RgbImage { width: 0, height: 3, pixels: Vec::new() };
    let short = RgbImage { width: 1, height: 1, pixels: vec![0; 2] };
    for image in [empty, short] {
        assert!(resize(&image, 2, 2, Filter::Bicubic).is_err());
    }
}

#[derive(Deserialize)]
struct Sizes {
    factor: u32,
    min: u64,
    max: u64,
    hash: String,
}

#[test]
fn sizes_are_those_of_transformers() {
    for case in cases::<Sizes>("sizes.json") {
        let mut found = Vec::new();
        for (width, height) in
            (1..700).step_by(3).flat_map(|w| (1..700).step_by(3).map(move |h| (w, h)))
        {
            let pair = smart_resize(width, height, case.factor, case.min, case.max);
            let (width, height) = pair.unwrap_or((0, 0));
            found.extend((width as u32).to_le_bytes());
            found.extend((height as u32).to_le_bytes());
        }
        assert_eq!(hash(&found), case.hash, "{} {} {}", case.factor, case.min, case.max);
    }
}

#[derive(Deserialize)]
struct Processed {
    size: [u32; 2],
    config: String,
    max_width: Option<u32>,
    max_image_tokens: Option<u32>,
    grid: [u32; 3],
    first: Vec<f64>,
    hash: String,
}

#[test]
fn patches_are_those_of_transformers() {
    let cases: Vec<Processed> = cases("patches.json");
    assert!(cases.len() > 40);
    for case in &cases {
        let mut processor =
            Preprocessor::open(&folder().join("processors").join(&case.config)).unwrap();
        processor.max_width = case.max_width;
        processor.max_image_tokens = case.max_image_tokens.unwrap_or(1280);
        let image = computed(case.size[0], case.size[1]);
        let Patches { grid, values } = processor.patches("x", &image).unwrap();
        let what = format!("{} {:?}", case.config, case.size);
        assert_eq!(grid, case.grid, "{what}");
        let first: Vec<f64> =
            values[..case.first.len()].iter().map(|value| f64::from(*value)).collect();
        assert_eq!(first, case.first, "{what}");
        let all: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(hash(&all), case.hash, "{what}");
        let fit = processor.fit("x", image.width, image.height).unwrap();
        let merge = processor.merge_size;
        assert_eq!((fit.grid, fit.tokens), (grid, grid[1] * grid[2] / merge / merge), "{what}");
        assert!(fit.tokens <= processor.max_image_tokens);
        assert_eq!(
            (fit.width, fit.height),
            (grid[2] * processor.patch_size, grid[1] * processor.patch_size)
        );
    }
}
