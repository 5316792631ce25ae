//! Parses a pickle as data: supports only the opcodes that build tensors and plain containers.
//!
//! A pickle is a program for a small stack machine with a memo (CPython's `Lib/pickletools.py` describes every opcode).
//! This machine cannot import or call anything: a global becomes a [`Name`], a call one of the constructors in
//! `construct.rs`, and everything else is an error that names the opcode or global. Containers live in one table and
//! refer to each other by index, so that dropping cyclic or deeply nested values is safe.

mod construct;
mod names;

use names::{Name, name_of};
use tensor::FileDtype;

/// Maximum size of a pickle in bytes; the contents of the tensors are not part of it.
pub(super) const MAX_PICKLE: u64 = 32 << 20;
/// Maximum number of values that a pickle may create, which bounds the memory.
const MAX_VALUES: usize = 1 << 20;

/// A value on the stack; containers, strings and tensors are indices into [`Contents`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    /// `None`, a bool, a float or a large integer: values irrelevant to tensors.
    Other,
    Int(i64),
    Text(usize),
    List(usize),
    Tuple(usize),
    Dict(usize),
    Name(Name),
    Storage(usize),
    Tensor(usize),
}

/// A tensor storage, held in one archive entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Storage {
    /// Index of the string that holds the entry key.
    pub key: usize,
    pub dtype: FileDtype,
    pub count: u64,
}

/// A tensor as a view of a storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct View {
    /// Index of the storage.
    pub storage: usize,
    pub offset: u64,
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
}

/// Tables of the values created by a pickle.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub texts: Vec<String>,
    /// Items of lists and tuples; alternating keys and values of dictionaries.
    pub containers: Vec<Vec<Value>>,
    pub storages: Vec<Storage>,
    pub views: Vec<View>,
}

/// Parses a pickle and returns its result as the value. The error names the unsupported construct.
pub(super) fn read(bytes: &[u8]) -> Result<(Contents, Value), String> {
    if bytes.len() as u64 > MAX_PICKLE {
        return Err(format!("its pickle has {} bytes, more than {MAX_PICKLE}", bytes.len()));
    }
    let mut machine = Machine { rest: bytes, ..Machine::default() };
    loop {
        if let Some(value) = machine.step()? {
            return Ok((machine.contents, value));
        }
    }
}

#[derive(Default)]
struct Machine<'a> {
    rest: &'a [u8],
    stack: Vec<Value>,
    /// Stack height at each mark.
    marks: Vec<usize>,
    memo: Vec<Value>,
    made: usize,
    contents: Contents,
}

impl<'a> Machine<'a> {
    /// Executes one opcode; returns the result at STOP.
    fn step(&mut self) -> Result<Option<Value>, String> {
        match self.byte()? {
            0x80 => match self.byte()? {
                2..=5 => {}
                version => return Err(format!("pickle protocol {version} is not supported")),
            },
            // FRAME is only a hint about lengths.
            0x95 => drop(self.take(8)?),
            b'.' => return self.pop().map(Some),
            b'(' => {
                self.count(1)?;
                self.marks.push(self.stack.len());
            }
            b'0' => drop(self.pop()?),
            b'N' | 0x88 | 0x89 => self.push(Value::Other)?,
            b'G' => {
                self.take(8)?;
                self.push(Value::Other)?;
            }
            b'J' => {
                let number = self.number(4)? as u32;
                self.push(Value::Int(i64::from(number as i32)))?;
            }
            b'K' => self.push_number(1)?,
            b'M' => self.push_number(2)?,
            0x8a => {
                let length = self.number(1)? as usize;
                let value = self.take(length)?;
                let value = signed(value).map_or(Value::Other, Value::Int);
                self.push(value)?;
            }
            b'X' => self.push_text(4)?,
            0x8c => self.push_text(1)?,
            b']' => self.push_container(Value::List, Vec::new())?,
            b'}' => self.push_container(Value::Dict, Vec::new())?,
            b')' => self.push_container(Value::Tuple, Vec::new())?,
            b't' => self.collect(None)?,
            length @ 0x85..=0x87 => self.collect(Some(usize::from(length - 0x84)))?,
            b'a' => self.append(1, Some(1))?,
            b's' => self.append(2, Some(2))?,
            b'e' => self.append(1, None)?,
            b'u' => self.append(2, None)?,
            b'q' => self.memorise(1)?,
            b'r' => self.memorise(4)?,
            0x94 => self.remember(self.memo.len())?,
            b'h' => self.recall(1)?,
            b'j' => self.recall(4)?,
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.push(Value::Name(name_of(&module, &name)?))?;
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (module, name) = (self.text(module)?, self.text(name)?);
                let name = name_of(module, name)?;
                self.push(Value::Name(name))?;
            }
            b'Q' => self.persistent()?,
            b'R' => self.call()?,
            b'b' => self.build()?,
            other => return Err(format!("pickle opcode {:?} is not supported", char::from(other))),
        }
        Ok(None)
    }

    /// Counts the creation of `more` values, on the stack or in a container.
    fn count(&mut self, more: usize) -> Result<(), String> {
        self.made += more;
        let full = self.made > MAX_VALUES;
        if full { Err(format!("its pickle makes more than {MAX_VALUES} values")) } else { Ok(()) }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or("its pickle is truncated")?;
        self.rest = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, String> {
        self.take(1).map(|byte| byte[0])
    }

    /// Reads a little-endian integer of up to 4 bytes.
    fn number(&mut self, length: usize) -> Result<u64, String> {
        let bytes = self.take(length)?;
        Ok(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn line(&mut self) -> Result<String, String> {
        let end = self.rest.iter().take(256).position(|byte| *byte == b'\n');
        let line = self.take(end.ok_or("its pickle has an unterminated name")?)?;
        self.take(1)?;
        Ok(String::from_utf8_lossy(line).into_owned())
    }

    fn push(&mut self, value: Value) -> Result<(), String> {
        self.count(1)?;
        self.stack.push(value);
        Ok(())
    }

    fn push_number(&mut self, length: usize) -> Result<(), String> {
        let number = self.number(length)?;
        self.push(Value::Int(number as i64))
    }

    fn push_text(&mut self, length: usize) -> Result<(), String> {
        let length = self.number(length)? as usize;
        let text = std::str::from_utf8(self.take(length)?)
            .map_err(|_| "its pickle has a string that is not UTF-8")?;
        self.contents.texts.push(text.into());
        self.push(Value::Text(self.contents.texts.len() - 1))
    }

    fn push_container(
        &mut self,
        kind: fn(usize) -> Value,
        items: Vec<Value>,
    ) -> Result<(), String> {
        self.contents.containers.push(items);
        self.push(kind(self.contents.containers.len() - 1))
    }

    fn pop(&mut self) -> Result<Value, String> {
        // Values below a mark must not be popped.
        let floor = self.marks.last().copied().unwrap_or(0);
        let value = if self.stack.len() > floor { self.stack.pop() } else { None };
        value.ok_or_else(|| "its pickle pops from an empty stack".into())
    }

    /// Pops the last `length` values, or the values since the mark.
    fn pop_items(&mut self, length: Option<usize>) -> Result<Vec<Value>, String> {
        let (floor, top) = (self.marks.last().copied().unwrap_or(0), self.stack.len());
        let from = match length {
            None => self.marks.pop().filter(|mark| *mark <= top),
            Some(length) => top.checked_sub(length).filter(|from| *from >= floor),
        };
        Ok(self.stack.split_off(from.ok_or("its pickle pops from an empty stack")?))
    }

    /// Pushes a tuple of the last `length` values, or of the values since the mark.
    fn collect(&mut self, length: Option<usize>) -> Result<(), String> {
        let items = self.pop_items(length)?;
        self.push_container(Value::Tuple, items)
    }

    /// Pops `length` values, or the values since the mark, and appends them to the list (`width` 1) or, as keys and
    /// values, to the dictionary (`width` 2) below them.
    fn append(&mut self, width: usize, length: Option<usize>) -> Result<(), String> {
        let items = self.pop_items(length)?;
        let at = match (self.stack.last(), width) {
            (Some(Value::List(at)), 1) => *at,
            (Some(Value::Dict(at)), 2) if items.len().is_multiple_of(2) => *at,
            _ => return Err("its pickle adds items to a value that is not a container".into()),
        };
        self.count(items.len())?;
        self.contents.containers[at].extend(items);
        Ok(())
    }

    fn memorise(&mut self, length: usize) -> Result<(), String> {
        let at = self.number(length)? as usize;
        self.remember(at)
    }

    fn remember(&mut self, at: usize) -> Result<(), String> {
        let value = *self.stack.last().ok_or("its pickle pops from an empty stack")?;
        // Python numbers memo entries consecutively; a large number would only waste memory.
        if at > self.memo.len() {
            return Err("its pickle fills the memo out of order".into());
        }
        match self.memo.get_mut(at) {
            Some(known) => *known = value,
            None => {
                self.count(1)?;
                self.memo.push(value);
            }
        }
        Ok(())
    }

    fn recall(&mut self, length: usize) -> Result<(), String> {
        let at = self.number(length)? as usize;
        let value =
            *self.memo.get(at).ok_or("its pickle reads a memo entry that does not exist")?;
        self.push(value)
    }

    fn text(&self, value: Value) -> Result<&str, String> {
        match value {
            Value::Text(at) => Ok(&self.contents.texts[at]),
            _ => Err("its pickle has a non-string value where a string is expected".into()),
        }
    }

    fn tuple(&self, value: Value) -> Result<&[Value], String> {
        match value {
            Value::Tuple(at) => Ok(&self.contents.containers[at]),
            _ => Err("its pickle has a non-tuple value where a tuple is expected".into()),
        }
    }

    /// Ignores the attributes of an object: a state_dict keeps only version numbers there.
    fn build(&mut self) -> Result<(), String> {
        self.pop()?;
        match self.stack.last() {
            Some(Value::Dict(_)) => Ok(()),
            other => Err(format!("attributes for {other:?} are not supported")),
        }
    }
}

/// Decodes a little-endian two's complement integer; None when it is longer than 8 bytes.
fn signed(bytes: &[u8]) -> Option<i64> {
    let negative = bytes.last().is_some_and(|byte| *byte >= 0x80);
    let mut wide = [if negative { 0xff } else { 0 }; 8];
    wide.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(i64::from_le_bytes(wide))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the error for a protocol 2 pickle with these opcodes, followed by STOP.
    fn refused(opcodes: &[u8]) -> String {
        read(&[b"\x80\x02", opcodes, b"."].concat()).map(|(_, value)| value).unwrap_err()
    }

    #[test]
    fn what_would_run_or_import_is_refused_by_name() {
        let call = b"cos\nsystem\nX\x02\0\0\0ls\x85R";
        assert!(refused(call).contains("os.system"), "{}", refused(call));
        let stacked = b"\x8c\x02os\x8c\x06system\x93";
        assert!(refused(stacked).contains("os.system"));
        // INST, OBJ, NEWOBJ, EXT1, PERSID, BINSTRING, INT
        for opcode in [b'i', b'o', 0x81, 0x82, b'P', b'T', b'I'] {
            assert!(
                refused(&[b'N', opcode, 0, 0, 0, 0]).contains("is not supported"),
                "{opcode:x}"
            );
        }
        assert!(refused(b"K\x01}b").contains("attributes"));
    }

    #[test]
    fn memory_is_bounded_whatever_is_asked_for() {
        assert!(refused(&vec![b'N'; 2 << 20]).contains("more than"));
        assert!(refused(&vec![b'('; 2 << 20]).contains("more than"));
        assert!(refused(&vec![b']'; 2 << 20]).contains("more than"));
        // A list inside a list inside a list …, and one whose size doubles with every opcode.
        assert!(refused(&[&b")"[..], &vec![0x85; 2 << 20]].concat()).contains("more than"));
        let doubling = [&b"]q\0"[..], &b"(h\0h\0t".repeat(400_000)].concat();
        assert!(refused(&doubling).contains("more than"));
        assert!(refused(b"X\xff\xff\xff\xff").contains("truncated"));
        assert!(refused(b"Nr\xff\xff\xff\x7f").contains("out of order"));
    }

    #[test]
    fn deep_values_can_be_made_and_dropped() {
        let deep = [&b"\x80\x02)"[..], &vec![0x85; 500_000], b"."].concat();
        assert!(read(&deep).is_ok(), "depth is for the reader of the value to bound");
    }
}
