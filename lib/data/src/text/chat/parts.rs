//! Messages whose content is a list of parts, texts and images, as in transformers.

use super::Messages;
use serde_json::{Value, json};

/// The keys under which transformers finds the image of a part.
const KEYS: [&str; 4] = ["image", "path", "url", "base64"];

/// What is asked about an image without a question of its own.
pub const INSTRUCTION: &str = "Convert the document to Markdown. Answer with the Markdown only, without code fences. Keep \
     headers, footers and small print. Write tables in HTML, charts as Markdown tables, and check boxes as \u{2610} or \u{2611}.";

/// The user's message that asks a question about images, each the path of a file or bytes in base64.
pub fn about_images(images: &[&str], question: &str) -> Value {
    let images = images.iter().map(|image| json!({"type": "image", "image": image}));
    let content = images.chain([json!({"type": "text", "text": question})]);
    json!({"role": "user", "content": content.collect::<Vec<_>>()})
}

/// The assistant's message.
pub fn answer(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

/// Checks the parts of a message. Errors: what is wrong.
pub(super) fn check(parts: &[Value]) -> Result<(), String> {
    for (number, part) in parts.iter().enumerate() {
        let is_right = match part["type"].as_str() {
            Some("text") => part["text"].is_string(),
            Some("image") => true,
            _ => false,
        };
        if !is_right {
            return Err(format!(
                "part {number} of its content is neither {{\"type\": \"text\", \"text\": ...}} nor {{\"type\": \"image\", \
                 \"image\": ...}}"
            ));
        }
    }
    Ok(())
}

fn is_image(part: &&Value) -> bool {
    part["type"] == "image"
}

fn images(messages: &[Value]) -> impl Iterator<Item = &Value> {
    let parts = messages.iter().filter_map(|message| message["content"].as_array());
    parts.flatten().filter(is_image)
}

/// Number of images in messages.
pub fn count_images(messages: &[Value]) -> usize {
    images(messages).count()
}

/// The images of messages, each the path of a file or bytes in base64. Errors: an image without either.
pub fn references(messages: &[Value]) -> Result<Vec<String>, String> {
    let of = |(number, part): (usize, &Value)| {
        let found = KEYS.iter().find_map(|key| part[*key].as_str()).filter(|own| !own.is_empty());
        let missing =
            || format!("image {number}: no `image`, the path of its file or its bytes in base64");
        found.map(String::from).ok_or_else(missing)
    };
    images(messages).enumerate().map(of).collect()
}

/// The same messages without their images, in whose places `{"type": "image"}` stays.
pub fn without_images(messages: &[Value]) -> Messages {
    let mut own = messages.to_vec();
    let contents = own.iter_mut().filter_map(|message| message.get_mut("content"));
    for part in contents.filter_map(Value::as_array_mut).flatten() {
        if is_image(&&*part) {
            *part = json!({"type": "image"});
        }
    }
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_parts_of_messages() {
        let messages = vec![about_images(&["a.png"], "What?"), answer("This.")];
        assert_eq!(references(&messages).unwrap(), ["a.png"]);
        let stripped = without_images(&messages);
        assert_eq!((count_images(&messages), count_images(&stripped)), (1, 1));
        assert!(references(&stripped).unwrap_err().contains("image 0"));
        check(stripped[0]["content"].as_array().unwrap()).unwrap();
        assert!(check(&[json!({"type": "video"})]).unwrap_err().contains("part 0"));
        assert!(check(&[json!({"type": "text"})]).is_err());
    }
}
