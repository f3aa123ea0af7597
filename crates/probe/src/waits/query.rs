//! The statement that a process works on, read from its own memory.
//!
//! `debug_query_string` points to the text of the statement a client sent last, and is 0 between
//! statements; a parallel worker has its leader's. The server changes both at any moment, so a text is
//! taken only if the pointer was the same before and after; what cannot be read is no text.

use std::{collections::HashMap, fmt, sync::Arc};

use howdah_inspect::Memory;

/// A statement's text, as a number. Numbers are of one [`Sampler`](super::Sampler).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueryId(u32);

/// How statements are read. See [`Options::queries`](super::Options::queries).
pub struct QueryOptions {
    /// How much of a text is read, in bytes.
    pub text_bytes: usize,
    /// What a text becomes before it is compared with others, such as itself without its literals.
    /// Called for every text that is read.
    pub normalise: Box<dyn FnMut(&str) -> String + Send>,
    /// How many different texts are kept; later ones are all [`QueryId::OTHER`].
    pub texts_max: usize,
}

/// Texts of statements, each kept once.
#[derive(Debug)]
pub struct Texts {
    options: QueryOptions,
    texts: Vec<Arc<str>>,
    ids: HashMap<Arc<str>, QueryId>,
}

/// The texts that were read.
#[derive(Debug)]
pub(super) struct Queries {
    pointer: u64,
    texts: Texts,
}

impl QueryId {
    /// Every text after those that are kept.
    pub const OTHER: Self = Self(u32::MAX);
}

impl Default for QueryOptions {
    /// 1024 bytes of each text, as it is; 10,000 texts.
    fn default() -> Self {
        Self { text_bytes: 1024, normalise: Box::new(str::to_owned), texts_max: 10_000 }
    }
}

impl fmt::Debug for QueryOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueryOptions").field("text_bytes", &self.text_bytes).finish_non_exhaustive()
    }
}

impl Queries {
    /// `pointer` is the address of `debug_query_string`, the same in all processes of a server.
    pub(super) fn at(pointer: u64, options: QueryOptions) -> Self {
        Self { pointer, texts: Texts::new(options) }
    }

    /// What the process works on; three system calls.
    pub(super) fn read(&mut self, memory: Memory) -> Option<QueryId> {
        let address = memory.pointer(self.pointer).ok().filter(|&address| address != 0)?;
        let text = memory.text(address, self.texts.options.text_bytes).ok()?;
        let is_still = memory.pointer(self.pointer).is_ok_and(|after| after == address);
        (is_still && is_text(&text)).then(|| self.texts.id(&String::from_utf8_lossy(&text)))
    }

    pub(super) fn text(&self, id: QueryId) -> Option<&str> {
        self.texts.text(id)
    }
}

impl Texts {
    /// None so far.
    #[must_use]
    pub fn new(options: QueryOptions) -> Self {
        Self { options, texts: Vec::new(), ids: HashMap::new() }
    }

    /// The text of a number; `None` for [`QueryId::OTHER`].
    #[must_use]
    pub fn text(&self, id: QueryId) -> Option<&str> {
        self.texts.get(id.0 as usize).map(|text| &**text)
    }

    /// The number of a text, normalised.
    pub fn id(&mut self, text: &str) -> QueryId {
        let text = (self.options.normalise)(text);
        if let Some(&id) = self.ids.get(&*text) {
            return id;
        }
        if self.texts.len() >= self.options.texts_max.min(QueryId::OTHER.0 as usize) {
            return QueryId::OTHER;
        }
        let id = QueryId(u32::try_from(self.texts.len()).unwrap_or(QueryId::OTHER.0));
        let text: Arc<str> = text.into();
        self.texts.push(Arc::clone(&text));
        self.ids.insert(text, id);
        id
    }
}

/// Memory that was given back and holds something else by now has bytes that no statement has.
fn is_text(text: &[u8]) -> bool {
    let is_control = |byte: &u8| *byte < b' ' && !matches!(byte, b'\t' | b'\n' | b'\r' | b'\x0c');
    !text.is_empty() && !text.iter().any(is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Memory {
        Memory::of(std::process::id())
    }

    #[test]
    fn a_text_is_read_through_its_pointer() {
        let text = b"SELECT 'M\xfcller'\0";
        let pointer = text.as_ptr();
        let mut queries = Queries::at(&raw const pointer as u64, QueryOptions::default());
        let id = queries.read(own()).expect("there is a text");
        assert_eq!(queries.text(id), Some("SELECT 'M\u{fffd}ller'"));
        assert_eq!(queries.read(own()), Some(id));
    }

    #[test]
    fn what_cannot_be_a_statement_is_none() {
        for pointer in [
            std::ptr::null(),
            0x10 as *const u8,
            c"\x7f\x01\x02".as_ptr().cast(),
            c"".as_ptr().cast(),
        ] {
            let mut queries = Queries::at(&raw const pointer as u64, QueryOptions::default());
            assert_eq!(queries.read(own()), None);
        }
    }

    #[test]
    fn texts_are_bounded_in_length_and_number() {
        let options = QueryOptions { text_bytes: 10, texts_max: 1, ..QueryOptions::default() };
        let texts: [&[u8]; 2] = [b"SELECT a, b\0", b"DELETE\0"];
        let mut pointer = texts[0].as_ptr();
        let mut queries = Queries::at(&raw const pointer as u64, options);
        let id = queries.read(own()).expect("there is a text");
        assert_eq!(queries.text(id), Some("SELECT a, "));
        pointer = texts[1].as_ptr();
        std::hint::black_box(&mut pointer);
        assert_eq!(queries.read(own()), Some(QueryId::OTHER));
        assert_eq!(queries.text(QueryId::OTHER), None);
    }
}
