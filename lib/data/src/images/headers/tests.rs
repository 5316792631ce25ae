use super::font::{Font, SLANTED_FONTS, UPRIGHT_FONTS};
use super::glyphs::{GLYPHS, GRID_HEIGHT, GRID_WIDTH, segments};
use super::raster::{Ink, Rotation, Stroke};
use super::*;
use std::collections::HashSet;

const PRESETS: [Preset; 3] = [Preset::Clean, Preset::Moderate, Preset::Shifted];

fn fonts() -> impl Iterator<Item = Font> {
    (0..UPRIGHT_FONTS).map(Font::upright).chain((0..SLANTED_FONTS).map(Font::slanted))
}

/// Asserts that the strokes have no ink outside of `width` x `height` pixels, and returns the distances of the ink from
/// the left and right edge.
fn assert_inside(strokes: &[Stroke], width: f32, height: f32, what: &str) -> [f32; 2] {
    let mut distances = [f32::MAX; 2];
    for stroke in strokes {
        let reach = stroke.width / 2.0;
        for [x, y] in stroke.ends {
            let inside =
                (reach..=width - reach).contains(&x) && (reach..=height - reach).contains(&y);
            assert!(inside, "{what}: ({x}, {y}) of {width} x {height}");
            distances = [distances[0].min(x - reach), distances[1].min(width - reach - x)];
        }
    }
    distances
}

#[test]
fn glyphs_are_on_the_grid_and_inside_their_cell() {
    let characters: HashSet<char> = GLYPHS.iter().map(|glyph| glyph.0).collect();
    assert_eq!(characters.len(), GLYPHS.len());
    assert_eq!(segments(' ').count() + segments('|').count(), 0);
    for (character, polylines) in GLYPHS {
        assert!(polylines.split(' ').all(|line| line.len() >= 4 && line.len() % 2 == 0));
        assert!(segments(character).count() > 0);
        for [x, y] in segments(character).flatten() {
            assert!((0.0..=GRID_WIDTH).contains(&x) && (0.0..=GRID_HEIGHT).contains(&y));
        }
        for font in fonts() {
            // The cell is as wide as the advance, and leans like the font.
            let mut strokes = Vec::new();
            let side = (font.advance - font.width) / 2.0;
            Font { slant: 0.0, ..font }.strokes(&character.to_string(), [side, 2.0], &mut strokes);
            let what = format!("{character} in {font:?}");
            assert_inside(&strokes, font.advance, font.height + 4.0, &what);
        }
    }
}

#[test]
fn glyphs_differ_in_every_font() {
    for font in fonts() {
        let rendered = GLYPHS.map(|(character, _)| {
            let (mut strokes, mut ink) = (Vec::new(), Ink::new(16, 16));
            font.strokes(&character.to_string(), [3.0, 3.0], &mut strokes);
            strokes.iter().for_each(|stroke| ink.draw(stroke));
            ink.values
        });
        for (i, one) in rendered.iter().enumerate() {
            for (j, other) in rendered.iter().enumerate().skip(i + 1) {
                let difference: f32 = one.iter().zip(other).map(|(a, b)| (a - b).abs()).sum();
                let pair = [GLYPHS[i].0, GLYPHS[j].0];
                assert!(difference > 2.5, "{pair:?} differ by {difference} pixels in {font:?}");
            }
        }
    }
}

/// The coverage of a pixel by a stroke is the distance of its centre from the stroke, in pixels.
#[test]
fn strokes_have_their_width_and_ends() {
    let mut ink = Ink::new(9, 7);
    ink.draw(&Stroke { ends: [[2.5, 3.25], [6.5, 3.25]], width: 1.5 });
    let column = |x: usize| -> Vec<f32> { (0..7).map(|y| ink.values[y * 9 + x]).collect() };
    assert_eq!(column(4), [0.0, 0.0, 0.5, 1.0, 0.0, 0.0, 0.0]);
    assert_eq!(column(2), column(4));
    // The centre of the pixel is 1 pixel to the left of the end and 0.25 pixels below it.
    let distance = f32::sqrt(1.0 + 0.0625);
    assert_eq!(column(1), [0.0, 0.0, 0.0, 1.25 - distance, 0.0, 0.0, 0.0]);
    // Off the page and without length.
    for ends in [[[-9.0, -9.0], [-5.0, -7.0]], [[20.0, 3.0], [30.0, 3.0]], [[3.0, 20.0]; 2]] {
        let before = ink.values.clone();
        ink.draw(&Stroke { ends, width: 1.5 });
        assert_eq!(ink.values, before);
    }
    ink.draw(&Stroke { ends: [[0.5, 0.5]; 2], width: 1.0 });
    assert_eq!(ink.values[0], 1.0);
}

#[test]
fn rotations_are_by_the_given_angle() {
    let tangent = (0.4f64.to_radians().tan()) as f32;
    let rotation = Rotation::by_half_tangent(tangent, [96.0, 40.0]);
    let mut stroke = Stroke { ends: [[96.0, 40.0], [196.0, 40.0]], width: 1.0 };
    rotation.apply(&mut stroke);
    let (sin, cos) = 0.8f64.to_radians().sin_cos();
    let expected = [[96.0, 40.0], [96.0 + 100.0 * cos, 40.0 + 100.0 * sin]];
    for (found, expected) in stroke.ends.iter().flatten().zip(expected.iter().flatten()) {
        // Coordinates below 256 have a spacing of at most 2⁻¹⁶.
        assert!((f64::from(*found) - expected).abs() < 4.0 / 65_536.0, "{found} {expected}");
    }
}

#[test]
fn blur_keeps_the_amount_of_ink() {
    let mut ink = Ink::new(5, 5);
    ink.values[12] = 1.0;
    ink.blur();
    let weights = [0.0, 1.0 / 6.0, 4.0 / 6.0, 1.0 / 6.0, 0.0f32];
    for (at, value) in ink.values.iter().enumerate() {
        assert!((value - weights[at / 5] * weights[at % 5]).abs() < 1e-6, "{at}: {value}");
    }
}

#[test]
fn scans_have_the_stated_contrast_and_noise() {
    let mut ink = Ink::new(200, 200);
    ink.values[20_000..].fill(1.0);
    let pixels = ink.to_noisy_grey(0.6, 0.08, &Philox::new(1, Purpose::Test));
    for (half, expected) in pixels.chunks(20_000).zip([0.8, 0.2]) {
        let values = || half.iter().map(|pixel| f64::from(*pixel) / 255.0);
        let mean = values().sum::<f64>() / 20_000.0;
        let variance = values().map(|value| (value - mean).powi(2)).sum::<f64>() / 20_000.0;
        // Seven standard deviations of the mean; few values are cut off at black or white.
        assert!((mean - expected).abs() < 7.0 * 0.08 / 20_000f64.sqrt(), "{mean}");
        assert!((variance.sqrt() - 0.08).abs() < 0.002, "{}", variance.sqrt());
    }
}

#[test]
fn pages_have_whole_rows_and_text_inside_the_margins() {
    for preset in PRESETS {
        for index in 0..2000 {
            let options = Options::rows(1, 1 + index as usize % 6).unwrap();
            let page = page(preset, 1, index, &options);
            let rows = page.fields.len();
            assert_eq!([page.width, page.height], [192, 16 * rows]);
            assert_eq!(page.pixels.len(), page.width * page.height);
            let own: Vec<_> =
                page.fields.iter().map(|own| (own.kind.label(), own.value.as_str())).collect();
            assert_eq!(parse_answer(&page.answer), own);
            assert_eq!(page.answer.lines().count(), rows);
            let kinds: HashSet<Kind> = page.fields.iter().map(|field| field.kind).collect();
            assert_eq!(kinds.len(), rows);
            if preset == Preset::Clean {
                assert!(page.fields.is_sorted_by_key(|field| field.kind));
            }
            for field in &page.fields {
                assert!((2..=13).contains(&field.value.len()), "{}", field.value);
                assert!(field.value.chars().all(|c| c == ' ' || segments(c).next().is_some()));
                assert!(field.kind != Kind::Well || field.value == page.group);
            }
            if preset != Preset::Shifted {
                let rows = page.pixels.chunks(page.width).enumerate();
                for (y, row) in rows {
                    let all = y == 0 || y == page.height - 1;
                    let white = if all { row } else { &[row[0], row[page.width - 1]] };
                    assert!(white.iter().all(|pixel| *pixel == 255), "{preset} {index}: row {y}");
                }
                let ink = page.pixels.iter().filter(|pixel| **pixel < 128).count();
                assert!(ink > 50 * rows_of(&page) && ink < page.pixels.len() / 3);
            }
        }
    }
}

fn rows_of(page: &Page) -> usize {
    page.height / ROW_HEIGHT
}

/// Values of the largest length, in every font, at random offsets and rotations.
#[test]
fn no_stroke_is_cut_at_the_edge() {
    let options = |rows| Options::rows(rows, rows).unwrap();
    for preset in PRESETS {
        let mut distances = [f32::MAX; 2];
        for index in 0..2000 {
            let rows = 1 + index as usize % Kind::ALL.len();
            let mut fields = page(preset, 2, index, &options(rows)).fields;
            fields[0] = Field { kind: Kind::Company, value: "WWWWWWWWW LTD".into() };
            let height = ROW_HEIGHT * rows;
            let mut draw = Draw::new(Philox::new(3, Purpose::Test), index);
            let strokes = strokes(preset, &fields, height, &mut draw);
            let found = assert_inside(&strokes, WIDTH as f32, height as f32, &preset.to_string());
            distances = [0, 1].map(|side| distances[side].min(found[side]));
        }
        assert!(distances.iter().all(|distance| *distance > 0.5), "{preset}: {distances:?}");
    }
}

#[test]
fn labels_end_before_values_begin() {
    for font in fonts() {
        let mut ends = [f32::MIN, f32::MAX];
        let (label, value) = (if font.slant == 0.0 { "COMPANY:" } else { "COMPANY" }, "W");
        for (text, left, end) in [(label, 3.0, 0), (value, 67.0, 1)] {
            let mut strokes = Vec::new();
            font.strokes(text, [left, 2.0], &mut strokes);
            for [x, _] in strokes.iter().flat_map(|stroke| stroke.ends) {
                let radius = font.stroke / 2.0;
                ends[end] =
                    if end == 0 { ends[0].max(x + radius) } else { ends[1].min(x - radius) };
            }
        }
        // Between them is the line of a table, from 61.6 to 62.4.
        let most = if font.slant == 0.0 { ends[1] - 1.0 } else { 61.0 };
        assert!(ends[0] < most, "{ends:?} in {font:?}");
    }
}

#[test]
fn pages_depend_on_preset_seed_and_index_alone() {
    let options = Options::default();
    for preset in PRESETS {
        let pages: Vec<Page> = (0..50).map(|index| page(preset, 7, index, &options)).collect();
        let threads: Vec<_> = (0..50)
            .rev()
            .map(|index| std::thread::spawn(move || page(preset, 7, index, &Options::default())))
            .collect();
        for (thread, page) in threads.into_iter().rev().zip(&pages) {
            assert_eq!(thread.join().unwrap(), *page);
        }
        let pixels: HashSet<&[u8]> = pages.iter().map(|page| &*page.pixels).collect();
        assert_eq!(pixels.len(), pages.len());
        for (index, own) in pages.iter().enumerate() {
            assert_ne!(page(preset, 8, index as u64, &options).pixels, own.pixels);
            let others = PRESETS.iter().filter(|other| **other != preset);
            for other in others {
                assert_ne!(page(*other, 7, index as u64, &options).answer, own.answer);
            }
        }
        let rows: HashSet<usize> = pages.iter().map(rows_of).collect();
        assert_eq!(rows, HashSet::from([2, 3, 4, 5]));
    }
}

/// Pixels of one page of each preset: a change of these hashes changes every generated data set.
#[test]
fn pixels_are_those_of_other_machines() {
    let expected: [[&str; 2]; 3] = [
        [
            "06b6f72c0af58064",
            "|WELL|KETFILLI 61| |COUNTY|DITPIR| |API|27-207-13328| |ELEV|6689.7 FT|",
        ],
        [
            "b24931da58506f4f",
            "|COMPANY|GYNDOVUN OIL| |API|31-441-14158| |COUNTY|CULSYXBYS| |STATE|LIGUT| |WELL|MYSMIRFO 58|",
        ],
        [
            "f1bbe90d02c2d20a",
            "|FIELD|JELHEREM| |STATE|FYRRIN| |DATE|2009-09-02| |WELL|ZALFUSSAL 68|",
        ],
    ];
    let found = PRESETS.map(|preset| {
        let page = page(preset, 7, 0, &Options::default());
        [blake3::hash(&page.pixels).to_hex()[..16].to_string(), page.answer.replace('\n', " ")]
    });
    assert_eq!(found, expected);
}

#[test]
fn values_rarely_repeat() {
    let values = |seed| -> Vec<String> {
        let pages = (0..2000).map(|index| page(Preset::Clean, seed, index, &Options::default()));
        let fields = pages.flat_map(|page| page.fields);
        // Runs have 2,574 values.
        fields.filter(|field| field.kind != Kind::Run).map(|field| field.value).collect()
    };
    let (training, held_out) = (values(1), values(2));
    let known: HashSet<&String> = training.iter().collect();
    let repeated = 1.0 - known.len() as f64 / training.len() as f64;
    assert!(repeated < 0.02, "{repeated} of the values of a seed");
    let seen = held_out.iter().filter(|value| known.contains(value)).count();
    let seen = seen as f64 / held_out.len() as f64;
    assert!(seen < 0.02, "{seen} of the values of another seed");
}

#[test]
fn png_holds_the_pixels() {
    let page = page(Preset::Shifted, 1, 0, &Options::default());
    let bytes = png(&page).unwrap();
    let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
    let mut pixels = vec![0; page.pixels.len()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!([info.width, info.height], [page.width as u32, page.height as u32]);
    assert_eq!(info.color_type, png::ColorType::Grayscale);
    assert_eq!(pixels, page.pixels);
}

#[test]
fn answers_and_ranges_that_are_wrong() {
    let answer = "WELL\n|WELL|A 1\n|RUN|2B|\n||\n|A|B|C|\n|\n|DATE||";
    assert_eq!(parse_answer(answer), [("RUN", "2B"), ("DATE", "")]);
    for (least, most) in [(0, 3), (3, 2), (2, 11)] {
        let error = Options::rows(least, most).unwrap_err();
        assert_eq!(error.exit, unix::Exit::Usage);
        assert!(error.to_string().contains("within 1 to 10"), "{error}");
    }
    for text in ["", "3", "2..", "..5", "2-5", "2..=5", "a..b", "-1..3", "2..11", "0..3", "5..2"] {
        assert_eq!(text.parse::<Options>().unwrap_err().exit, unix::Exit::Usage, "{text}");
    }
    assert_eq!("2..5".parse::<Options>().unwrap(), Options::default());
    assert_eq!(Options::rows(1, 10).unwrap().to_string(), "1..10");
}
