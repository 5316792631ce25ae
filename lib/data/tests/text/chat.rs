//! Conversations are rendered and encoded as by transformers.

use crate::vectors::manifest;
use data::split::SplitName;
use data::text::chat::{LossOn, check};
use data::text::{
    Columns, NewPrompt, NewPrompts, TextSet, TokenSet, Tokenizer, import, tokenize_chat, vocabulary,
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// An entry of conversations.json, see golden_chat.py.
#[derive(Deserialize)]
struct Golden {
    folder: String,
    messages: Vec<Value>,
    text: String,
    prompt: String,
    ids: Vec<i32>,
    counted: Vec<u8>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/chat")
}

fn goldens() -> Vec<Golden> {
    serde_json::from_slice(&fs::read(folder().join("conversations.json")).unwrap()).unwrap()
}

#[test]
fn texts_ids_and_turns_are_those_of_transformers() {
    let goldens = goldens();
    assert!(goldens.len() >= 16);
    let mut changed_turns = 0;
    for golden in &goldens {
        let Golden { folder: name, messages, text, prompt, ids, counted } = golden;
        let chat = Tokenizer::open_chat(&folder().join(name), 4096, LossOn::Assistant).unwrap();
        let what = format!("{name}: {messages:?}");
        assert_eq!(chat.template.render(messages, false).unwrap(), *text, "{what}");
        assert_eq!(chat.template.render(&messages[..1], true).unwrap(), *prompt, "{what}");
        let [Ok((encoded, changed))] = &chat.encode(&[(messages, &[])])[..] else {
            panic!("{what}")
        };
        assert_eq!(encoded.ids, *ids, "{what}");
        assert_eq!(encoded.types, *counted, "{what}");
        changed_turns += changed;
        let all = Tokenizer::open_chat(&folder().join(name), 4096, LossOn::All).unwrap();
        let (encoded, _) = all.encode(&[(messages, &[])]).remove(0).unwrap();
        assert!(encoded.types.iter().all(|counted| *counted == 1));
        let special = &chat.tokenizer.special();
        let eos = special.eos.and_then(|id| chat.tokenizer.token(id)).unwrap();
        assert!(text.contains(&eos), "{what}");
    }
    // Of Qwen3: turns before the last question of the user, whose thoughts are left out.
    assert_eq!(changed_turns, 6);
}

#[test]
fn conversations_are_imported_and_encoded() {
    let temporary = tempfile::tempdir().unwrap();
    let path = |name: &str| temporary.path().join(name);
    let messages: Vec<Vec<Value>> = goldens()
        .into_iter()
        .filter(|golden| golden.folder == "llama3")
        .map(|golden| golden.messages)
        .collect();
    let lines = messages.iter().map(|messages| json!({ "messages": messages }).to_string() + "\n");
    fs::write(path("chat.jsonl"), lines.collect::<String>()).unwrap();
    let pairs = "{\"prompt\": \"one?\", \"completion\": \"1\"}\n";
    fs::write(path("pairs.jsonl"), pairs).unwrap();
    let columns = |text: &str| -> Columns {
        fs::write(path("columns.yaml"), text).unwrap();
        Columns::load(&path("columns.yaml")).unwrap()
    };
    let of_messages = columns("messages: messages");
    import(&of_messages, &[path("chat.jsonl")], &path("chat"), |_| Ok(())).unwrap();
    let of_pairs = columns("{prompt: prompt, completion: completion}");
    let store = import(&of_pairs, &[path("pairs.jsonl")], &path("pairs"), |_| Ok(())).unwrap();
    let expected = json!([
        {"role": "user", "content": "one?"},
        {"role": "assistant", "content": "1"},
    ]);
    assert_eq!(store.texts(0), [Some(expected.to_string().as_str()), None]);

    let split = manifest(temporary.path(), &[path("chat"), path("pairs")], [4, 1, 1]);
    let encode = |length: usize, to: &str| {
        let chat = Tokenizer::open_chat(&folder().join("llama3"), length, LossOn::Assistant);
        tokenize_chat(&split, &chat.unwrap(), length, &path(to), |_| Ok(()))
    };
    let error = encode(12, "short").unwrap_err().to_string();
    assert!(error.contains(".jsonl: line 1: its first 12 tokens have none"), "{error}");
    let lengths = |sets: &[TokenSet]| -> Vec<usize> {
        let all = sets.iter().flat_map(|set| (0..set.len()).map(|i| set.ids(i).len()));
        all.collect()
    };
    let whole = encode(4096, "whole").unwrap();
    assert_eq!(whole.iter().map(TokenSet::len).sum::<usize>(), messages.len() + 1);
    let longest = lengths(&whole).into_iter().max().unwrap();
    let cut = encode(longest - 1, "cut").unwrap();
    assert_eq!(cut.iter().map(TokenSet::truncated).sum::<usize>(), 1);
    assert_eq!(lengths(&cut).into_iter().max(), Some(longest - 1));
    for set in &whole {
        let chat = set.info().chat.as_ref().unwrap();
        assert_eq!(chat.loss_on, LossOn::Assistant);
        assert!((0..set.len()).all(|i| set.types(i).contains(&1)));
    }
    // The folder has what encodes further conversations in the same way.
    let again = Tokenizer::open_chat(&path("whole"), 4096, LossOn::Assistant).unwrap();
    assert_eq!(Some(again.info()), whole[0].info().chat);
    assert_eq!(again.tokenizer.special(), &whole[0].info().special);
}

/// The last turn is what follows the prompt, up to the token that ends it.
#[test]
fn the_last_turn_follows_its_prompt() {
    for golden in goldens() {
        let Golden { folder: name, messages, ids, .. } = golden;
        let chat = Tokenizer::open_chat(&folder().join(&name), 8, LossOn::All).unwrap();
        let stops = chat.stops().unwrap();
        let eos = chat.tokenizer.special().eos.unwrap();
        assert_eq!(stops, [eos], "{name}");
        if messages.last().unwrap()["role"] != "assistant" {
            continue;
        }
        let turn = chat.last_turn((&messages, &[]), &stops).unwrap().unwrap();
        let whole = [&turn.prompt[..], &turn.answer, &stops].concat();
        assert_eq!(ids[..whole.len()], whole, "{name}: {messages:?}");
        assert!(ids.len() - whole.len() <= 1, "{name}: only a line break follows");
    }
}

#[test]
fn prompts_are_read_line_by_line() {
    let temporary = tempfile::tempdir().unwrap();
    let read_as = |name: &str, text: &str| -> unix::Result<Vec<NewPrompt>> {
        let path = temporary.path().join(name);
        fs::write(&path, text).unwrap();
        let mut prompts = NewPrompts::open(&path)?;
        let mut all = Vec::new();
        while let Some(prompt) = prompts.read()? {
            all.push(prompt);
        }
        Ok(all)
    };
    let read = |text: &str| read_as("prompts.txt", text);
    let user = |text: &str| json!([{"role": "user", "content": text}]);
    let found = read(
        "{\"prompt\": \"a\", \"id\": 7}\n{\"messages\": [{\"role\": \"user\", \"content\": \"b\"}, \
         {\"role\": \"assistant\", \"content\": \"c\"}], \"id\": \"x\"}\n\nplain text\n",
    );
    let found = found.unwrap();
    let messages: Vec<Value> = found.iter().map(|own| json!(own.messages)).collect();
    assert_eq!(messages, [user("a"), user("b"), user("plain text")]);
    let ids: Vec<Option<&str>> = found.iter().map(|own| own.id.as_deref()).collect();
    assert_eq!((ids, found[2].line), (vec![Some("7"), Some("x"), None], 4));
    for (line, expected) in [
        ("{\"text\": \"a\"}", "neither `messages` nor `prompt`"),
        ("{\"prompt\": 3}", "`prompt` is not a text"),
        ("{\"prompt\": \"a\", \"messages\": []}", "remove one"),
        ("{\"messages\": []}", "there are no messages"),
        ("{\"messages\": [{\"role\": \"robot\", \"content\": \"a\"}]}", "the role \"robot\""),
        ("{\"messages\": ", "not an object"),
    ] {
        let error = read(&format!("fine\n{line}\n")).unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains(expected), "{error}");
    }
    // In JSON lines every line is an object; tables and documents have no prompt on each line.
    let error = read_as("prompts.jsonl", "{\"prompt\": \"a\"}\nplain\n").unwrap_err().to_string();
    assert!(error.contains("prompts.jsonl: line 2: not a JSON object"), "{error}");
    for name in ["prompts.json", "prompts.csv"] {
        let error = read_as(name, "[{\"prompt\": \"a\"}]").unwrap_err();
        assert_eq!(error.exit, unix::Exit::Usage);
        assert!(error.to_string().contains("prompts are read from lines"), "{error}");
    }
}

/// A template for tokens that the tokenizer does not have.
#[test]
fn marks_that_are_not_tokens_are_named() {
    for name in ["qwen2", "qwen3", "llama3"] {
        let chat = Tokenizer::open_chat(&folder().join(name), 64, LossOn::All).unwrap();
        assert_eq!(chat.divided_marks().unwrap(), [""; 0], "{name}");
    }
    let temporary = tempfile::tempdir().unwrap();
    for (file, from) in [
        ("tokenizer.json", "llama3"),
        ("tokenizer_config.json", "llama3"),
        ("chat_template.jinja", "qwen2"),
    ] {
        fs::copy(folder().join(from).join(file), temporary.path().join(file)).unwrap();
    }
    let chat = Tokenizer::open_chat(temporary.path(), 64, LossOn::All).unwrap();
    assert_eq!(chat.divided_marks().unwrap(), ["<|im_start|>", "<|im_end|>"]);
}

/// A byte-level vocabulary encodes every text, and its template marks the answers.
#[test]
fn a_vocabulary_of_conversations_encodes_any_text() {
    let temporary = tempfile::tempdir().unwrap();
    let path = |name: &str| temporary.path().join(name);
    let line = |i: usize| {
        json!({"prompt": format!("what is {i}?"), "completion": "a number"}).to_string() + "\n"
    };
    fs::write(path("pairs.jsonl"), (0..40).map(line).collect::<String>()).unwrap();
    fs::write(path("columns.yaml"), "{prompt: prompt, completion: completion}").unwrap();
    let columns = Columns::load(&path("columns.yaml")).unwrap();
    import(&columns, &[path("pairs.jsonl")], &path("pairs"), |_| Ok(())).unwrap();
    let split = manifest(temporary.path(), &[path("pairs")], [30, 5, 5]);
    let train = TextSet::open(&split, SplitName::Train).unwrap();
    let entries = vocabulary(&train, 280, None, &path("tokenizer")).unwrap();
    assert!((262..=280).contains(&entries), "{entries}");
    assert_eq!(vocabulary(&train, 280, None, &path("again")).unwrap(), entries);
    let json = |name: &str| fs::read(path(name).join("tokenizer.json")).unwrap();
    assert!(json("tokenizer") == json("again"));
    let error = vocabulary(&train, 258, None, &path("small")).unwrap_err().to_string();
    assert!(error.contains("need 259 entries"), "{error}");
    let error = vocabulary(&train, 262, None, &path("again")).unwrap_err().to_string();
    assert!(error.contains("another tokenizer exists"), "{error}");

    let chat = Tokenizer::open_chat(&path("tokenizer"), 4096, LossOn::Assistant).unwrap();
    assert_eq!(chat.tokenizer.vocabulary(), entries);
    let text = "Zoë's 12 + 3 = 15\n\n\t— 日本 🦀";
    let messages = vec![
        json!({"role": "user", "content": "?"}),
        json!({"role": "assistant", "content": text}),
    ];
    let stops = chat.stops().unwrap();
    let turn = chat.last_turn((&messages, &[]), &stops).unwrap().unwrap();
    assert_eq!(chat.tokenizer.decode(&turn.answer).unwrap(), text);
    // Digits stay apart, words of the texts do not.
    let tokens = |text: &str| chat.tokenizer.encode_rendered(text).unwrap().ids.len();
    assert_eq!((tokens("123"), tokens("a number")), (3, 2));
}

#[test]
fn unusable_conversations_and_templates_are_refused() {
    let user = json!({"role": "user", "content": "a"});
    let wrong = |messages: Value, expected: &str| {
        let error = check(messages.as_array().unwrap()).unwrap_err();
        assert!(error.contains(expected), "{error}");
    };
    wrong(json!([user]), "no message is an assistant's");
    wrong(
        json!([user, {"role": "bot", "content": "b"}]),
        "message 1: the role \"bot\" is not one of",
    );
    wrong(
        json!([user, {"role": "assistant"}]),
        "message 1: its content is neither a text nor a list",
    );
    wrong(json!(["a"]), "message 0: not an object with role and content");

    // transformers builds the tokenizer of this class from the vocabulary alone.
    let temporary = tempfile::tempdir().unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
        fs::copy(folder().join("qwen2").join(file), temporary.path().join(file)).unwrap();
    }
    let json = fs::read_to_string(folder().join("qwen2/tokenizer.json")).unwrap();
    fs::write(temporary.path().join("tokenizer.json"), json.replace("\"NFC\"", "\"NFD\"")).unwrap();
    let error = Tokenizer::open_chat(temporary.path(), 64, LossOn::All).unwrap_err().to_string();
    assert!(error.contains("normalizer is {\"type\":\"NFD\"}"), "{error}");

    let temporary = tempfile::tempdir().unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(folder().join("llama3").join(file), temporary.path().join(file)).unwrap();
    }
    let open = || Tokenizer::open_chat(temporary.path(), 64, LossOn::Assistant);
    assert!(open().unwrap_err().to_string().contains("no chat template"));
    let template = temporary.path().join("chat_template.jinja");
    let messages = [vec![user, json!({"role": "assistant", "content": "b"})]];
    for (text, expected) in [
        ("a\n{% if %}", "chat_template.jinja: line 2: "),
        ("a\nb\n{{ raise_exception('no ' + messages[1].role) }}", "line 3: no assistant"),
        ("{% for i in range(9999) %}{% for j in range(9999) %}x{% endfor %}{% endfor %}", "fuel"),
        ("nothing", "renders no assistant's turn"),
    ] {
        fs::write(&template, text).unwrap();
        let error =
            open().and_then(|chat| chat.encode(&[(&messages[0][..], &[])]).remove(0)).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}
