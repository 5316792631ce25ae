//! Conversations with images, from files of the user to tokens.

use crate::vectors::manifest;
use data::images::headers::{Options, Preset, page, png};
use data::inputs::verify_all;
use data::split::check::CheckReport;
use data::split::{By, DivideRequest, Share, Source, SplitName, divide};
use data::store::RecordStore;
use data::store::check::check_store;
use data::text::chat::{INSTRUCTION, ImageLimits, LossOn};
use data::text::{
    Columns, NewPrompts, TextImport, TextKind, TextSet, TextSplit, TextStore, TokenSet, Tokenizer,
    folder_columns, import, near_leaks, open_images, tokenize_chat, vocabulary,
};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};

/// Bytes in base64.
fn base64(bytes: &[u8]) -> String {
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let of = |part: &[u8]| {
        let bits = part.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte))
            << (8 * (3 - part.len()));
        let digit = |at: usize| match at <= part.len() {
            true => digits[(bits >> (18 - 6 * at)) as usize & 63] as char,
            false => '=',
        };
        (0..4).map(digit).collect::<String>()
    };
    bytes.chunks(3).map(of).collect()
}

/// A page of `rows` rows, 192 x 16·rows pixels.
fn picture(index: u64, rows: usize) -> Vec<u8> {
    png(&page(Preset::Clean, 7, index, &Options::rows(rows, rows).unwrap())).unwrap()
}

fn columns(folder: &Path, text: &str) -> Columns {
    fs::write(folder.join("columns.yaml"), text).unwrap();
    Columns::load(&folder.join("columns.yaml")).unwrap()
}

/// A store of pages as paths, in base64 and twice, and with images that cannot be read.
fn store(folder: &Path) -> TextStore {
    let path = |name: &str| folder.join(name);
    fs::create_dir(path("images")).unwrap();
    for index in 0..6 {
        fs::write(path(&format!("images/{index}.png")), picture(index, 2 + index as usize % 3))
            .unwrap();
    }
    let whole = picture(1, 3);
    fs::write(path("images/cut.png"), &whole[..whole.len() / 2]).unwrap();
    let mut lines: Vec<_> = (0..6)
        .map(|i| json!({"id": format!("p{i}"), "image": format!("images/{i}.png"), "answer": format!("page {i}"), "well": i % 2}))
        .collect();
    lines[0]["instruction"] = "Read this.".into();
    let data = format!("data:image/png;base64,{}", base64(&picture(9, 2)));
    lines.insert(2, json!({"id": "b", "image": data, "answer": "in base64", "well": 5}));
    lines.insert(3, json!({"id": "c", "image": "images/cut.png", "answer": "cut", "well": 5}));
    lines.insert(4, json!({"id": "n", "image": "images/none.png", "answer": "none", "well": 5}));
    // The same bytes as those of page 1, without a name.
    lines
        .push(json!({"id": "again", "image": base64(&whole), "answer": "page 1 again", "well": 1}));
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(path("pages.jsonl"), lines).unwrap();
    let columns = columns(
        folder,
        "{image: image, prompt: instruction, completion: answer, id: id, group: well}",
    );
    import(&columns, &[path("pages.jsonl")], &path("store"), |_| Ok(())).unwrap()
}

#[test]
fn images_are_stored_once_and_as_they_are() {
    let temporary = tempfile::tempdir().unwrap();
    let store = store(temporary.path());
    assert_eq!((store.len(), store.image_store().unwrap().len()), (8, 7));
    let ids: Vec<&str> = (0..8).map(|i| store.id(i).unwrap()).collect();
    assert_eq!(ids, ["p0", "p1", "b", "p2", "p3", "p4", "p5", "again"]);
    let images = store.image_store().unwrap();
    for i in 0..8 {
        let [own] = store.images(i)[..] else { panic!("{i}") };
        let index = [0, 1, 9, 2, 3, 4, 5, 1][i];
        assert!(images.bytes(own.image) == picture(index, [2, 3, 2, 4, 2, 3, 4, 3][i]), "{i}");
        let messages: Vec<serde_json::Value> =
            serde_json::from_str(store.texts(i)[0].unwrap()).unwrap();
        let question = if i == 0 { "Read this." } else { INSTRUCTION };
        assert_eq!(
            messages[0]["content"],
            json!([{"type": "image"}, {"type": "text", "text": question}])
        );
    }
    assert_eq!(
        (store.image_names(0), store.image_names(2)),
        (vec!["images/0.png"], vec!["image 0"])
    );
    assert!(
        store.input_hash(1) == store.input_hash(7) && store.input_hash(0) != store.input_hash(1)
    );
    // The same command again changes nothing.
    let (hash, path) = (store.hash().to_string(), |name: &str| temporary.path().join(name));
    let own = columns(
        temporary.path(),
        "{image: image, prompt: instruction, completion: answer, id: id, group: well}",
    );
    assert_eq!(
        import(&own, &[path("pages.jsonl")], &path("store"), |_| Ok(())).unwrap().hash(),
        hash
    );
    // An image that was changed is found.
    let shard = path("store/images/shard-00000.safetensors");
    let mut bytes = fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&shard, bytes).unwrap();
    assert!(!verify_all(&store.input_files()).is_empty());
}

/// Tokens of images stand where the template has them, as many as the processor makes; a loss counts the answer only.
#[test]
fn images_become_tokens() {
    let temporary = tempfile::tempdir().unwrap();
    let path = |name: &str| temporary.path().join(name);
    store(temporary.path());
    let split = manifest(temporary.path(), &[path("store")], [4, 2, 2]);
    let train = TextSet::open(&split, SplitName::Train).unwrap();
    assert_eq!(vocabulary(&train, 262, Some(8), &path("tokenizer")).unwrap(), 262);
    let encode = |length: usize, limits: ImageLimits, to: &str| {
        let mut chat = Tokenizer::open_chat(&path("tokenizer"), length, LossOn::Assistant).unwrap();
        chat.images.as_mut().unwrap().limit(limits).unwrap();
        tokenize_chat(&split, &chat, length, &path(to), |_| Ok(()))
    };
    let sets = encode(2048, ImageLimits::default(), "tokens").unwrap();
    assert_eq!(sets.iter().map(TokenSet::len).sum::<usize>(), 8);
    for set in &sets {
        let chat = Tokenizer::open_chat(set.folder(), 2048, LossOn::Assistant).unwrap();
        assert_eq!(Some(chat.info()), set.info().chat);
        let images = chat.images.as_ref().unwrap();
        for i in 0..set.len() {
            let [image] = set.images(i).unwrap()[..] else { panic!("{i}") };
            let decoded = image.decode("page").unwrap();
            let patches = images.patches("page", &decoded).unwrap();
            assert_eq!(image.grid, [decoded.height as usize / 8, 192 / 8]);
            assert_eq!([1, image.grid[0] as u32, image.grid[1] as u32], patches.grid);
            let tokens = image.grid[0] * image.grid[1] / 4;
            let ids = set.ids(i);
            let first = ids.iter().position(|id| *id == images.token).unwrap();
            assert!(ids[first..first + tokens].iter().all(|id| *id == images.token));
            assert_eq!(ids.iter().filter(|id| **id == images.token).count(), tokens);
            assert_eq!(chat.tokenizer.token(ids[first - 1]).unwrap(), "<|vision_start|>");
            let counted: Vec<i32> = ids
                .iter()
                .zip(set.types(i))
                .filter(|(_, own)| **own == 1)
                .map(|(id, _)| *id)
                .collect();
            let answer = chat.tokenizer.decode(&counted).unwrap();
            assert!(answer.starts_with("page ") || answer == "in base64\n", "{answer:?}");
        }
    }
    // Wide images are shrunk first, then to the largest number of tokens.
    let limits = ImageLimits { max_width: Some(96), max_image_tokens: None };
    let small = encode(2048, limits, "small").unwrap();
    assert!(
        small.iter().all(|set| (0..set.len()).all(|i| set.images(i).unwrap()[0].grid[1] == 12))
    );
    let limits = ImageLimits { max_width: None, max_image_tokens: Some(6) };
    let few = encode(2048, limits, "few").unwrap();
    let patches =
        |set: &TokenSet, i: usize| set.images(i).unwrap()[0].grid.iter().product::<usize>();
    assert!(few.iter().all(|set| (0..set.len()).all(|i| patches(set, i) <= 24)));
    // What is too long loses the end of its answer, but never a part of its image.
    let longest =
        sets.iter().flat_map(|set| (0..set.len()).map(|i| set.ids(i).len())).max().unwrap();
    let cut = encode(longest - 1, ImageLimits::default(), "cut").unwrap();
    assert!(cut.iter().map(TokenSet::truncated).sum::<usize>() > 0);
    let error = encode(20, ImageLimits::default(), "short").unwrap_err().to_string();
    assert!(error.contains("its images take") && error.contains("--max-image-tokens"), "{error}");
    // Without an image processor.
    fs::remove_file(path("tokenizer/preprocessor_config.json")).unwrap();
    let chat = Tokenizer::open_chat(&path("tokenizer"), 2048, LossOn::Assistant).unwrap();
    let error =
        tokenize_chat(&split, &chat, 2048, &path("none"), |_| Ok(())).unwrap_err().to_string();
    assert!(error.contains("line 1") && error.contains("processor_config.json"), "{error}");
}

#[test]
fn a_folder_of_images_has_their_answers_beside_them() {
    let temporary = tempfile::tempdir().unwrap();
    let path = |name: &str| temporary.path().join(name);
    for well in ["a", "b"] {
        fs::create_dir_all(path(&format!("pages/{well}"))).unwrap();
        fs::write(path(&format!("pages/{well}/1.png")), picture(1, 2)).unwrap();
        fs::write(path(&format!("pages/{well}/1.md")), format!("# Page of {well}\n")).unwrap();
    }
    fs::write(path("pages/alone.PNG"), picture(2, 2)).unwrap();
    fs::write(path("pages/answer.md"), "no image").unwrap();
    let files = [path("pages")];
    let columns = folder_columns();
    let plan =
        TextImport { columns: &columns, files: &files, vectors: &Default::default(), chunks: None };
    let store = data::text::import_with(&plan, &path("store"), |_| Ok(())).unwrap();
    assert_eq!((store.len(), store.image_store().unwrap().len()), (2, 1));
    assert_eq!([store.id(0), store.group_name(1)], [Some("a/1"), Some("b")]);
    assert!(store.texts(0)[0].unwrap().contains("# Page of a"));

    let prompts = |to: &Path| {
        let mut all = NewPrompts::open(to).unwrap();
        let mut found = Vec::new();
        while let Some(own) = all.read().unwrap() {
            let images = open_images(&own.messages, NewPrompts::folder_of(to)).unwrap();
            found.push((own.id.unwrap_or_default(), images[0].0.clone(), images[0].1.height));
        }
        found
    };
    let of = |name: &str| (name.to_string(), name.to_string(), 32);
    assert_eq!(prompts(&path("pages")), [of("a/1.png"), of("alone.PNG"), of("b/1.png")]);
    assert_eq!(prompts(&path("pages/alone.PNG")), [of("alone.PNG")]);
    let line = json!({"id": "x", "image": "pages/a/1.png"}).to_string();
    fs::write(path("new.jsonl"), line).unwrap();
    assert_eq!(prompts(&path("new.jsonl")), [("x".into(), "pages/a/1.png".into(), 32)]);
}

#[test]
fn columns_of_images_are_checked() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("columns.yaml");
    let error = |text: &str| {
        fs::write(&path, text).unwrap();
        Columns::load(&path).unwrap_err().to_string()
    };
    assert!(error("{image: i}").contains("completion"));
    assert!(error("{image: i, completion: c, text: t}").contains("excludes"));
    assert!(error("{prompt: p, completion: c, instruction: i}").contains("no effect"));
    assert!(error("{completion: c}").contains("needs `prompt` or `image`"));
}

#[test]
fn a_file_without_a_readable_image_is_refused() {
    let temporary = tempfile::tempdir().unwrap();
    let path = |name: &str| -> PathBuf { temporary.path().join(name) };
    fs::write(path("a.jsonl"), "{\"image\": \"http://x/y.png\", \"answer\": \"a\"}\n").unwrap();
    let columns = columns(temporary.path(), "{image: image, completion: answer}");
    let error = import(&columns, &[path("a.jsonl")], &path("store"), |_| Ok(())).unwrap_err();
    assert!(error.to_string().contains("none of the images"), "{error}");
}

/// A copy of a page with other bytes is found in another split; other pages are not.
#[test]
fn nearly_equal_images_are_found_across_splits() {
    let temporary = tempfile::tempdir().unwrap();
    let path = |name: &str| temporary.path().join(name);
    let mut lines = String::new();
    for index in 0..12 {
        let own = page(Preset::Moderate, 3, index % 11, &Options::rows(4, 4).unwrap());
        let mut own = own;
        // The last page is the first one with a grey margin.
        if index == 11 {
            own.pixels[..192].fill(200);
        }
        fs::write(path(&format!("{index}.png")), png(&own).unwrap()).unwrap();
        lines += &format!("{}\n", json!({"image": format!("{index}.png"), "answer": "a"}));
    }
    fs::write(path("pages.jsonl"), lines).unwrap();
    let columns = columns(temporary.path(), "{image: image, completion: answer}");
    import(&columns, &[path("pages.jsonl")], &path("store"), |_| Ok(())).unwrap();
    let report = check_store::<TextKind>(&path("store"), 1e9);
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    let split = manifest(temporary.path(), &[path("store")], [4, 4, 4]);
    let sets = TextSet::open_all(&split).unwrap();
    let set_of = |record: usize| {
        let holds = |set: &&TextSet| (0..set.len()).any(|i| set.locate(i).1 == record);
        sets.iter().find(holds).unwrap().name()
    };
    let mut report = CheckReport::default();
    near_leaks(&sets, 0.95, &mut report);
    let expected = usize::from(set_of(0) != set_of(11));
    assert_eq!(report.problems.len(), expected, "{:?}", report.problems);
    // Kept together if that is asked for.
    let request = DivideRequest {
        by: By::Trajectory,
        group_by: None,
        shares: [4, 4, 4].map(Share::Count),
        fixed: &[],
        seed: 0,
        near: Some(0.05),
    };
    for seed in 0..4 {
        let to = path("near.json");
        let request = DivideRequest { seed, ..request };
        let split: TextSplit = divide(&request, &[path("store")], &to).unwrap();
        split.save(&to).unwrap();
        let mut report = CheckReport::default();
        near_leaks(&TextSet::open_all(&to).unwrap(), 0.95, &mut report);
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }
}
