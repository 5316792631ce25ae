//! Settings of image processors, and images that they refuse.

use super::{computed, folder};
use data::images::{Filter, Preprocessor};
use serde_json::{Value, json};
use unix::Exit;

fn settings() -> Value {
    let path = folder().join("processors/qwen3/preprocessor_config.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn parse(settings: &Value) -> unix::Result<Preprocessor> {
    Preprocessor::parse("x.json".as_ref(), settings.as_object().unwrap())
}

#[test]
fn settings_come_from_the_new_file_or_else_from_the_old_one() {
    let temporary = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &Value| {
        std::fs::write(temporary.path().join(name), content.to_string()).unwrap();
    };
    let open = || Preprocessor::open(temporary.path());
    let error = open().unwrap_err();
    assert_eq!(error.exit, Exit::NoInput);
    assert!(error.to_string().contains("preprocessor_config.json"), "{error}");
    write("preprocessor_config.json", &settings());
    // Files of processors without images are possible.
    write("processor_config.json", &json!({"processor_class": "Qwen3VLProcessor"}));
    let old = open().unwrap();
    assert_eq!((old.patch_size, old.merge_size, old.temporal_patch_size), (16, 2, 2));
    assert_eq!(
        (old.min_pixels, old.max_pixels, old.rescale_factor),
        (65536, 16_777_216, 1.0 / 255.0)
    );
    assert_eq!(
        (old.do_resize, old.filter, old.max_width, old.max_image_tokens),
        (true, Filter::Bicubic, None, 1280)
    );
    let mut own = settings();
    own["max_width"] = json!(512);
    own["max_image_tokens"] = json!(400);
    write("processor_config.json", &json!({"image_processor": own, "video_processor": {"a": 1}}));
    let new = open().unwrap();
    assert_eq!(new, Preprocessor { max_width: Some(512), max_image_tokens: 400, ..old });
    write("processor_config.json", &json!({"image_processor": 3}));
    assert_eq!(open().unwrap_err().exit, Exit::Data);
    std::fs::write(temporary.path().join("processor_config.json"), "{").unwrap();
    assert_eq!(open().unwrap_err().exit, Exit::Data);
}

#[test]
fn older_settings_are_read() {
    let mut own = settings();
    own["do_resize"] = json!(false);
    own["max_width"] = json!(512);
    assert!(parse(&own).unwrap_err().to_string().contains("max_width 512: requires do_resize"));
    let mut own = settings();
    own.as_object_mut().unwrap().remove("size");
    own["min_pixels"] = json!(3136);
    own["max_pixels"] = json!(12_845_056);
    own["image_mean"] = json!(0.25);
    own["resample"] = json!(1);
    own["image_processor_type"] = json!("Qwen2VLImageProcessorFast");
    let found = parse(&own).unwrap();
    assert_eq!((found.min_pixels, found.max_pixels, found.mean), (3136, 12_845_056, [0.25; 3]));
    assert_eq!(found.filter, Filter::Lanczos);
}

#[test]
fn settings_that_are_not_supported_are_refused_with_file_and_key() {
    for (key, value) in [
        ("patch_size", json!(0)),
        ("patch_size", json!(2000)),
        ("patch_size", Value::Null),
        ("merge_size", json!("2")),
        ("temporal_patch_size", json!(1.5)),
        ("size", json!({"shortest_edge": 100})),
        ("size", json!({"shortest_edge": 100, "longest_edge": 0})),
        ("size", json!({"shortest_edge": 100, "longest_edge": 99})),
        ("size", json!({"height": 100, "width": 100})),
        ("size", json!(100)),
        ("size", Value::Null),
        ("image_mean", json!([0.5, 0.5])),
        ("image_mean", json!([0.5, 0.5, 1e300])),
        ("image_std", json!([0.5, 0, 0.5])),
        ("image_std", Value::Null),
        ("rescale_factor", json!("1/255")),
        ("resample", json!(2)),
        ("resample", json!("bicubic")),
        ("do_resize", json!(1)),
        ("do_rescale", json!(false)),
        ("do_normalize", json!(false)),
        ("do_convert_rgb", json!(false)),
        ("do_center_crop", json!(true)),
        ("image_processor_type", json!("CLIPImageProcessor")),
        ("max_width", json!(0)),
        ("max_image_tokens", json!(-1)),
        ("max_image_tokens", json!(1_u64 << 32)),
        ("crop_to_patches", json!(true)),
    ] {
        let mut own = settings();
        own[key] = value.clone();
        let error = parse(&own).unwrap_err();
        assert_eq!(error.exit, Exit::Data);
        let text = error.to_string();
        assert!(text.contains("x.json") && text.contains(key), "{key} {value}: {text}");
    }
}

#[test]
fn images_that_do_not_fit_are_refused() {
    let usual = parse(&settings()).unwrap();
    let few = Preprocessor { min_pixels: 1, max_image_tokens: 50, ..usual.clone() };
    let none = Preprocessor { max_image_tokens: 63, ..usual.clone() };
    let fixed = Preprocessor { do_resize: false, ..usual.clone() };
    for (processor, size, text) in [
        (&usual, (201, 1), "at most 200 times"),
        (&usual, (0, 10), "at most 200 times"),
        (&usual, (10, 0), "at most 200 times"),
        (&few, (20_000, 100), "take 100 x 1 tokens, more than max_image_tokens 50"),
        (&none, (100, 100), "raise it to 64 or more"),
        (&fixed, (100, 96), "no multiples of 32"),
    ] {
        let error = processor.fit("a.png", size.0, size.1).unwrap_err();
        assert_eq!(error.exit, Exit::Data);
        let message = error.to_string();
        assert!(message.starts_with("a.png: ") && message.contains(text), "{message}");
    }
    let patches = fixed.patches("a.png", &computed(64, 32)).unwrap();
    assert_eq!((patches.grid, patches.count()), ([1, 2, 4], 8));
    // The examples of 2550 x 3300 pixels: 336 tokens at 512 pixels, 8,240 of the whole page.
    let narrow = Preprocessor { max_width: Some(512), ..usual.clone() };
    let fit = narrow.fit("a", 2550, 3300).unwrap();
    assert_eq!((fit.shrunk, fit.width, fit.height, fit.tokens), (Some((512, 663)), 512, 672, 336));
    let whole = Preprocessor { max_image_tokens: 10_000, ..usual };
    assert_eq!(whole.fit("a", 2550, 3300).unwrap().tokens, 8240);
}
