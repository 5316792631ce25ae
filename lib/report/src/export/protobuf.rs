//! A writer of protocol buffer messages (<https://protobuf.dev/programming-guides/encoding/>).

/// An encoded message. Fields with their default value are written too, which readers accept.
#[derive(Clone, Debug, Default)]
pub(super) struct Message(Vec<u8>);

impl Message {
    /// Returns the encoded bytes.
    pub fn encoded(self) -> Vec<u8> {
        self.0
    }

    /// Appends an integer, boolean or enum.
    pub fn int(mut self, field: u32, value: u64) -> Self {
        self.key(field, 0);
        self.varint(value);
        self
    }

    /// Appends a double.
    pub fn double(mut self, field: u32, value: f64) -> Self {
        self.key(field, 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Appends a float.
    pub fn float(mut self, field: u32, value: f32) -> Self {
        self.key(field, 5);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Appends a string or bytes.
    pub fn bytes(mut self, field: u32, value: impl AsRef<[u8]>) -> Self {
        let value = value.as_ref();
        self.key(field, 2);
        self.varint(value.len() as u64);
        self.0.extend(value);
        self
    }

    /// Appends a string, if there is one.
    pub fn optional(self, field: u32, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.bytes(field, value),
            None => self,
        }
    }

    /// Appends a message.
    pub fn message(self, field: u32, value: Message) -> Self {
        self.bytes(field, value.0)
    }

    /// Appends the messages of a repeated field.
    pub fn messages(self, field: u32, values: impl IntoIterator<Item = Message>) -> Self {
        values.into_iter().fold(self, |message, value| message.message(field, value))
    }

    fn key(&mut self, field: u32, wire_type: u64) {
        self.varint(u64::from(field) << 3 | wire_type);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of the encoding guide.
    #[test]
    fn messages_of_the_encoding_guide() {
        assert_eq!(Message::default().int(1, 150).encoded(), [0x08, 0x96, 0x01]);
        let text = Message::default().bytes(2, "testing");
        assert_eq!(text.encoded(), *b"\x12\x07testing");
        let inner = Message::default().int(1, 150);
        assert_eq!(Message::default().message(3, inner).encoded(), [0x1a, 3, 0x08, 0x96, 0x01]);
    }
}
